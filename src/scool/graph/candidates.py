"""Which peers each client tries: a few candidates if trying all costs too much."""

import torch
from torch import Tensor

from scool.graph.edges import Edges, parts
from scool.graph.mixing import keep_best
from scool.randomness import generator

MEETINGS = 128  # strangers that are looked at together
BLOCK = 2**16  # trusted peers whose reports are read at once


def pairs_with(clients: Tensor, count: int, num_clients: int) -> Edges:
    """The pairs, in both directions, of clients (n,) with some `count` of all, spread evenly.

    >>> pairs_with(torch.tensor([1]), 3, 3).dense().int().tolist()
    [[0, 1, 0], [1, 1, 1], [0, 1, 0]]
    """
    stride = max(1, num_clients // count)
    others = (clients[:, None] + torch.arange(0, num_clients, stride)) % num_clients
    one, two = clients.repeat_interleave(others.shape[1]), others.flatten()
    return Edges.gathered(num_clients, torch.cat([one, two]), torch.cat([two, one]))


def choose_candidates(
    w: Edges,
    tried: Edges,
    active: Tensor,
    count: int,
    *,
    seed: int,
    round: int,
    is_last: bool = False,
) -> Edges:
    """The `count` peers that each client tries in a round, not counting itself.

    A quarter are the best so far, once more; a half are peers of these that were never tried, and
    clients that have this one among their best; the rest are strangers. Places that one kind does
    not fill, as in the first round, go to strangers.

    Args:
        w: weights of the round before; 0 where nothing is known.
        tried: pairs measured in some earlier round.
        active: (K,) bool, clients that may try and be tried.
        is_last: all places for the best so far: the choice that follows wants fresh losses.
    """
    num_best, num_heard = (count, 0) if is_last else (count // 4, count // 2)
    known = w.take((w.values > 0) & active[w.i] & active[w.j] & ~w.is_loop)
    best = keep_best(known, num_best, keep_self=False)
    chosen = best
    if num_heard:
        hints = hearsay(known.take(known.top(max(num_best, num_heard))), best)
        fresh = ~(hints.is_loop | tried.has(hints) | best.has(hints)) & active[hints.j]
        heard = keep_best(hints.take((hints.values > 0) & fresh), num_heard, keep_self=False)
        chosen = best.updated(heard)
    met = round * (count - num_best - num_heard)
    return _with_strangers(chosen, tried, active, count, Circle(len(w), seed, met))


def hearsay(told: Edges, best: Edges) -> Edges:
    r"""What the best peers report of others, $\sum_l w_{il} w_{lj}$, plus $w_{ji}$ where i is among
    the best of j.

    Args:
        told: the largest weights of each row: what a client reports of others.
        best: the few among them that it listens to.
    """
    near = best.on(told.lookup(best))
    keys, values = [near.j * len(told) + near.i], [near.values]
    for i, j, trust in parts(BLOCK, near.i, near.j, near.values):
        counts = told.degrees[j]
        edge = torch.arange(len(i)).repeat_interleave(counts)
        place = torch.arange(len(edge)) - (counts.cumsum(0) - counts)[edge] + told.ends[j][edge]
        keys.append(i[edge] * len(told) + told.j[place])
        values.append(trust[edge] * told.values[place])
    pairs = torch.cat(keys)
    return Edges.gathered(len(told), pairs // len(told), pairs % len(told), torch.cat(values))


class Circle:
    """The order in which a client meets all others, after `met` meetings.

    A tournament: clients sit in a random circle, and in every meeting each looks the same number of
    seats further, in random order of these numbers. So no client meets another twice before it has
    met all, and in each meeting every client is met once.
    """

    def __init__(self, num_clients: int, seed: int, met: int = 0) -> None:
        rng = generator(seed, "candidates")
        self.seat = torch.randperm(num_clients, generator=rng)
        self.sitting = self.seat.argsort()
        meeting = torch.randperm(num_clients, generator=rng)
        self.steps = meeting.argsort().roll(-(met % num_clients))

    def next(self, clients: Tensor, begin: int, end: int) -> Tensor:
        """(n, end - begin) whom these clients (n,) meet in some of the meetings to come."""
        seats = self.seat[clients][:, None] + self.steps[begin:end]
        return self.sitting[seats % len(self.seat)]


def _with_strangers(
    chosen: Edges, tried: Edges, active: Tensor, count: int, circle: Circle
) -> Edges:
    """Fill the free places of each client with those it meets next, untried ones first."""
    k = len(active)
    room = torch.where(active, count - chosen.degrees, 0)
    found = [chosen.keys]
    for again in (False, True):
        for begin in range(0, k, MEETINGS):
            open_rows = (room > 0).nonzero()[:, 0]
            if not len(open_rows):
                break
            others = circle.next(open_rows, begin, min(begin + MEETINGS, k))
            keys = open_rows[:, None] * k + others
            fits = active[others] & (others != open_rows[:, None])
            fits &= (tried.find_keys(keys)[1] == again) & ~chosen.find_keys(keys)[1]
            fits &= fits.cumsum(dim=1) <= room[open_rows, None]
            found.append(keys[fits])
            room[open_rows] -= fits.sum(dim=1)
    keys = torch.cat(found).sort().values
    return Edges(k, keys // k, keys % k, torch.ones(len(keys), dtype=torch.bool), False)
