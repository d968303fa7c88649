"""Whom to try where trying everyone costs too much: a few candidates a client and round."""

import torch
from torch import Tensor

from scool.graph.sparsify import best_columns
from scool.randomness import generator

ALL_PAIRS = 500  # clients up to which everyone is tried by everyone
CANDIDATES = 64  # peers that a client tries in a round where there are more


def num_candidates(num_clients: int, candidates: int) -> int:
    """Peers that a client tries in a round; 0: all of them.

    Args:
        num_clients: K.
        candidates: -1 chooses by K, 0 is everyone, otherwise that many.

    >>> num_candidates(100, -1), num_candidates(2000, -1), num_candidates(100, 8)
    (0, 64, 8)
    """
    if candidates < 0:
        candidates = 0 if num_clients <= ALL_PAIRS else CANDIDATES
    return candidates if candidates < num_clients - 1 else 0


def choose_candidates(
    w: Tensor,
    tried: Tensor,
    active: Tensor,
    count: int,
    *,
    seed: int,
    round: int,
    is_last: bool = False,
) -> Tensor:
    """(K, K) bool: the `count` peers that each client tries in a round, oneself not counted.

    A quarter are the best so far, once more; a half are peers of these that were never tried, and
    whoever counts oneself among the best; the rest are strangers. Places that one kind does not
    fill, as in the first round, go to strangers.

    Args:
        w: weights of the round before; 0 where nothing is known.
        tried: (K, K) bool, pairs measured in some earlier round.
        active: (K,) bool, clients that may try and be tried.
        is_last: all places for the best so far: the choice that follows wants fresh losses.
    """
    k = len(w)
    num_best, num_heard = (count, 0) if is_last else (count // 4, count // 2)
    possible = active[:, None] & active & ~torch.eye(k, dtype=torch.bool)
    told = min(max(num_best, num_heard), k)
    trust, peer = w.masked_fill(~possible, 0.0).topk(told, dim=1)
    best = torch.zeros_like(tried).scatter_(1, peer[:, :num_best], trust[:, :num_best] > 0)
    hints = hearsay(trust, peer, num_best)
    heard = best_columns(hints, num_heard, (hints > 0) & possible & ~tried & ~best)
    waiting = turns(k, seed, round * (count - num_best - num_heard))
    tier = 4 * best.long() + 2 * heard.long() + (~tried).long()
    return best_columns(tier * k - waiting, count, possible)


def hearsay(trust: Tensor, peer: Tensor, num_best: int) -> Tensor:
    r"""(K, K) what the best peers say of others, $\sum_l w_{il} w_{lj}$, plus $w_{ji}$ where i is
    among the best of j.

    Args:
        trust: (K, b) the largest weights of each row, in order.
        peer: (K, b) whose they are.
        num_best: so many of them are listened to; each tells all b of its own.
    """
    near, who = trust[:, :num_best], peer[:, :num_best]
    hints = trust.new_zeros(len(trust), len(trust))
    back = hints.scatter(1, who, near).T
    path = near[:, :, None] * trust[who]
    return hints.scatter_add_(1, peer[who].flatten(1), path.flatten(1)) + back


def turns(num_clients: int, seed: int, passed: int) -> Tensor:
    """(K, K) how many others come before j when i meets strangers, after `passed` meetings.

    A tournament: clients sit in a random circle, and in every meeting each looks the same number
    of seats further, in random order of these numbers. So nobody is met twice before everyone
    was, and in a meeting everyone is also met once.
    """
    rng = generator(seed, "candidates")
    seat = torch.randperm(num_clients, generator=rng)
    meeting = torch.randperm(num_clients, generator=rng)
    return (meeting[(seat - seat[:, None]) % num_clients] - passed) % num_clients
