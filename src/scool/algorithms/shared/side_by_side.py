"""What several kinds of cooperation come to together, by the weights that owners give them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from scool.graph.edges import Edges, Matrix

BROKEN = 3.0  # times the loss of who knows nothing: a model that loses more on its own samples


def average_loss(losses: list[tuple[int, Tensor]], weights: Tensor) -> Tensor:
    """(K,) mean over the kinds that have a loss; NaN where none has."""
    loss = torch.stack([found for _, found in losses], dim=1)
    weights = weights[:, [a for a, _ in losses]]
    there = ~loss.isnan()
    total = (weights * there).sum(dim=1)
    return (weights * loss.nan_to_num(0.0)).sum(dim=1) / total.masked_fill(total == 0, torch.nan)


def combined_graph(graphs: list[tuple[int, Matrix]], weights: Tensor, active: Tensor) -> Edges:
    r"""$\sum_a \omega_{ia} w^a_{ij}$; a client that does not take part mixes with itself only."""
    lists = [(a, Edges.of(graph).nonzero_pairs().among(active)) for a, graph in graphs]
    values = [e.values.double() * weights[e.i, a] for a, e in lists]
    i, j = torch.cat([e.i for _, e in lists]), torch.cat([e.j for _, e in lists])
    mixed = Edges.gathered(len(active), i, j, torch.cat(values))
    sums = mixed.row_sums()
    mixed = mixed.on(mixed.values / sums[mixed.i])
    alone = Edges.loops(len(active), sums == 0)
    return mixed.updated(alone.on(torch.ones(alone.count, dtype=torch.float64)))


def without_broken(
    weights: Tensor, lost: Tensor, losses: Mapping[int, Tensor], uninformed: float
) -> Tensor:
    """(K, A) weights without the kinds in which an owner's model is lost (A, K), or loses far more
    on the samples it trains on than who knows nothing: its judge may not have broken. As they are
    where no other kind has weight.

    >>> weights = torch.tensor([[0.9, 0.1], [0.0, 1.0]])
    >>> whole = torch.zeros(2, 2, dtype=torch.bool)
    >>> without_broken(weights, whole, {1: torch.tensor([1e20, 1e20])}, 0.7).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    kept = weights.where(~lost.T, 0.0)
    for kind, loss in losses.items():
        kept[loss.to(kept) > BROKEN * uninformed, kind] = 0
    total = kept.sum(dim=1, keepdim=True)
    is_whole = (kept == weights).all(dim=1, keepdim=True)
    return torch.where(is_whole | (total <= 0), weights, kept / total.clamp_min(1e-300))
