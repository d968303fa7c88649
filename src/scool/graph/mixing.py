"""From posterior weights w to the peers that a client keeps, and the weights that mix updates."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from scool.graph.edges import Edges
from scool.randomness import uniform_of_pairs

Weighting = Literal["row", "paper"]
ALL_PAIRS = 500  # clients up to which all pairs are tried
CANDIDATES = 64  # peers that a client tries in a round if there are more clients


class Mixing(NamedTuple):
    """Weights to mix with, and which rows had to fall back on themselves."""

    weights: Edges
    fallback: Tensor  # (K,) bool: every weight of the row had underflowed to 0


def mixing_weights(w: Edges, own: Literal["gated", "full"], weighting: Weighting = "row") -> Mixing:
    r"""Weights of the aggregation step.

    row:    $\hat w_{ij} = w_{ij} / \sum_{m \in N_i} w_{im}$;
    paper:  $w_{ij}$ as they are, so that the step grows with the number of good peers.

    Args:
        w: posterior edge probabilities of the neighbours N_i; all others weigh 0.
        own: `gated` weights a client's own update by w_ii, `full` by 1.
    """
    if own == "full":
        w = w.updated(_loops(w, torch.ones(len(w), dtype=torch.bool)))
    total = w.row_sums()
    fallback = ~(total > 0)
    if weighting == "row":
        w = w.on(w.values / total.clamp(min=torch.finfo(w.dtype).tiny)[w.i])
    if bool(fallback.any()):
        w = w.take(~fallback[w.i]).updated(_loops(w, fallback))
    return Mixing(w.nonzero_pairs(), fallback)


def _loops(like: Edges, clients: Tensor) -> Edges:
    """Weight 1 at (i, i), for the clients in (K,) bool."""
    loops = Edges.loops(len(like), clients)
    return loops.on(loops.values.to(like.dtype))


def normalise_rows(w: Tensor) -> Tensor:
    """Rows that sum to one; an empty row becomes the client alone.

    >>> normalise_rows(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    tensor([[0.7500, 0.2500],
            [0.0000, 1.0000]])
    """
    total = w.sum(dim=1, keepdim=True)
    eye = torch.eye(len(w), dtype=w.dtype, device=w.device)
    return torch.where(total > 0, w / total.clamp(min=torch.finfo(w.dtype).tiny), eye)


def without(w: Tensor, active: Tensor, receivers: Tensor | None = None) -> Tensor:
    """Give the share of inactive sources to the rest of each row; inactive clients get weight 1 on
    themselves, even if their row is not finite. `receivers` (K,) bool: the clients that mix, if not
    `active`.

    >>> without(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([True, False]))
    tensor([[1., 0.],
            [0., 1.]])
    """
    if bool(active.all()):
        return w
    receivers = active if receivers is None else receivers
    eye = torch.eye(len(w), dtype=w.dtype, device=w.device)
    total = w.sum(dim=1, keepdim=True)
    kept = w * active.to(w.dtype)
    rest = kept.sum(dim=1, keepdim=True)
    usable = (rest != 0) & receivers[:, None]
    alone = eye * torch.where(receivers[:, None], total, 1.0)
    return torch.where(usable, kept * (total / torch.where(usable, rest, 1.0)), alone)


def edges_without(w: Edges, active: Tensor, receivers: Tensor | None = None) -> Edges:
    """`without` for listed pairs."""
    if bool(active.all()):
        return w
    receivers = active if receivers is None else receivers
    total = w.row_sums()
    kept = w.take(active[w.j])
    rest = kept.row_sums()
    usable = (rest != 0) & receivers
    kept = kept.take(usable[kept.i])
    kept = kept.on(kept.values * (total / torch.where(usable, rest, 1.0))[kept.i])
    alone = torch.where(receivers, total, 1.0)
    loops = Edges.loops(len(w), ~usable & (alone != 0))
    return kept.updated(loops.on(alone[loops.i]))


# ---------------------------------------------------------------------- the peers that are kept


def num_kept(num_clients: int, fraction: float) -> int:
    """floor(K * fraction), safe against round-off, at least one.

    >>> num_kept(100, 0.29)
    29
    """
    return max(1, int(num_clients * fraction + 1e-9))


def best_columns(rank: Tensor, count: int, allowed: Tensor) -> Tensor:
    """(K, K) bool: for every row the `count` allowed columns with the largest rank.

    Ties go to the smaller index. A partial sort: at K = 2,000 six times faster than a full one.

    >>> best_columns(torch.tensor([[2, 3, 2]]), 2, torch.ones(1, 3, dtype=torch.bool)).tolist()
    [[True, True, False]]
    """
    if count == 0:
        return torch.zeros_like(allowed)
    score = rank.double().masked_fill(~allowed, -torch.inf)
    least = score.topk(min(count, score.shape[1]), dim=1).values[:, -1:]
    sure = allowed & (score > least)
    tied = allowed & (score == least)
    room = count - sure.sum(dim=1, keepdim=True)
    return sure | (tied & (tied.cumsum(dim=1) <= room))


def keep_top(rank: Tensor, count: int, allowed: Tensor, keep_self: bool = True) -> Tensor:
    """(K, K) bool: the neighbours of each client, its `count` best allowed columns.

    With `keep_self` the diagonal stays and is not counted.

    >>> rank = torch.tensor([[0.9, 0.1, 0.5]]).expand(3, 3)
    >>> keep_top(rank, 1, torch.ones(3, 3, dtype=torch.bool)).int()
    tensor([[1, 0, 1],
            [1, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """
    own = torch.eye(len(rank), dtype=torch.bool, device=rank.device)
    if not keep_self:
        return best_columns(rank, count, allowed)
    return best_columns(rank, count, allowed & ~own) | own


def keep_best(ranked: Edges, count: int, keep_self: bool = True) -> Edges:
    """The same of listed pairs: for each client the `count` sources with the largest value."""
    if not keep_self:
        return _as_set(ranked.take(ranked.top(count)))
    others = ranked.take(~ranked.is_loop)
    everyone = torch.ones(ranked.num_clients, dtype=torch.bool)
    own = Edges.loops(ranked.num_clients, everyone)
    return _as_set(others.take(others.top(count))).updated(own)


def likely(w: Edges) -> Edges:
    """The pairs of different clients whose weight is at least half of the receiver's largest one.

    >>> w = torch.tensor([[1.0, 0.9, 0.5, 0.1], [0.2, 0.0, 0.1, 0.0]])
    >>> graph = Edges.of(torch.cat([w, torch.zeros(2, 4)]))
    >>> likely(graph).dense().int()[:2]
    tensor([[0, 1, 1, 0],
            [1, 0, 1, 0]], dtype=torch.int32)
    """
    others = w.take(~w.is_loop & (w.values > 0))
    most = others.values.new_zeros(len(w)).scatter_reduce(0, others.i, others.values, "amax")
    return _as_set(others.take(others.values >= most[others.i] / 2))


def draw_peers(w: Edges, count: int, key: int, keep_self: bool = True) -> Edges:
    r"""`count` peers of each client, drawn with probabilities proportional to w, without
    replacement.

    The largest $\log w_{ij} + G_{ij}$ with Gumbel noise $G_{ij} = -\log(-\log U_{ij})$. A client's
    draw depends on `key` and its own row alone.
    """
    w = w.take(w.values > 0)
    chance = uniform_of_pairs(key, w.i, w.j)
    gumbel = -torch.log(-torch.log(chance.clamp(min=1e-300)))
    return keep_best(w.on(w.values.double().log() + gumbel), count, keep_self)


def num_candidates(num_clients: int, candidates: int) -> int:
    """Peers that a client tries in a round; 0: all of them.

    Args:
        num_clients: K.
        candidates: -1 chooses by K, 0 is all, otherwise this many.

    >>> num_candidates(100, -1), num_candidates(2000, -1), num_candidates(100, 8)
    (0, 64, 8)
    """
    if candidates < 0:
        candidates = 0 if num_clients <= ALL_PAIRS else CANDIDATES
    return candidates if candidates < num_clients - 1 else 0


def _as_set(graph: Edges) -> Edges:
    return graph.on(torch.ones(graph.count, dtype=torch.bool), False)
