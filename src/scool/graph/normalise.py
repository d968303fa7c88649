"""From posterior weights w to the weights that mix updates."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from scool.graph.edges import Edges

Weighting = Literal["row", "paper"]


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
        own: `gated` weighs the own update by w_ii, `full` by 1.
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
    """Weight 1 on oneself, for the clients in (K,) bool."""
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
    """Give the share of inactive sources to the rest of each row; the inactive keep to themselves,
    even if their row is not finite. `receivers` (K,) bool: who mixes, where that is not `active`.

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
