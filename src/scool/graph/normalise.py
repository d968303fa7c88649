"""From posterior weights w to the weights that mix updates."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Weighting = Literal["row", "paper"]


class Mixing(NamedTuple):
    """Weights to mix with, and which rows had to fall back on themselves."""

    weights: Tensor  # (K, K)
    fallback: Tensor  # (K,) bool: every weight of the row had underflowed to 0


def mixing_weights(
    w: Tensor, neighbours: Tensor, own: Literal["gated", "full"], weighting: Weighting = "row"
) -> Mixing:
    r"""Weights of the aggregation step.

    row:    $\hat w_{ij} = w_{ij} / \sum_{m \in N_i} w_{im}$;
    paper:  $w_{ij}$ as they are, so that the step grows with the number of good peers.

    Args:
        w: (K, K) posterior edge probabilities.
        neighbours: (K, K) bool, N_i; weights outside are 0.
        own: `gated` weighs the own update by w_ii, `full` by 1.
    """
    eye = torch.eye(len(w), dtype=torch.bool, device=w.device)
    w = w.masked_fill(~neighbours, 0.0)
    if own == "full":
        w = w.masked_fill(eye, 1.0)
    total = w.sum(dim=1, keepdim=True)
    fallback = ~(total[:, 0] > 0)
    scaled = w / total.clamp(min=torch.finfo(w.dtype).tiny) if weighting == "row" else w
    return Mixing(torch.where(fallback[:, None], eye.to(w.dtype), scaled), fallback)


def normalise_rows(w: Tensor) -> Tensor:
    """Rows that sum to one; an empty row becomes the client alone.

    >>> normalise_rows(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    tensor([[0.7500, 0.2500],
            [0.0000, 1.0000]])
    """
    total = w.sum(dim=1, keepdim=True)
    eye = torch.eye(len(w), dtype=w.dtype, device=w.device)
    return torch.where(total > 0, w / total.clamp(min=torch.finfo(w.dtype).tiny), eye)


def without(w: Tensor, active: Tensor) -> Tensor:
    """Give the share of inactive sources to the rest of each row; the inactive keep to themselves,
    even if their row is not finite.

    >>> without(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([True, False]))
    tensor([[1., 0.],
            [0., 1.]])
    """
    if bool(active.all()):
        return w
    eye = torch.eye(len(w), dtype=w.dtype, device=w.device)
    total = w.sum(dim=1, keepdim=True)
    kept = w * active.to(w.dtype)
    rest = kept.sum(dim=1, keepdim=True)
    usable = (rest != 0) & active[:, None]
    alone = eye * torch.where(active[:, None] | total.isfinite(), total, 1.0)
    return torch.where(usable, kept * (total / torch.where(usable, rest, 1.0)), alone)
