"""Weighted sums of many models: a product with a matrix of weights that is mostly zeros, or not."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LARGE = 500 * 500  # weights from which on it pays to look for zeros
THIN = 0.2  # share of nonzero weights up to which a sum over the edges is faster


def mixer(w: Tensor, device: torch.device, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """rows (k, D) -> (m, D) sums weighted by w (m, k).

    Of many clients with few neighbours only the nonzero weights are looked at, so that the work
    grows with K and not with its square.
    """
    weights, edges = w.to(device, dtype), w.nonzero()
    if w.numel() < LARGE or len(edges) > THIN * w.numel():
        return lambda rows: weights @ rows
    first = torch.searchsorted(edges[:, 0].contiguous(), torch.arange(len(w), device=w.device))
    shares = weights[edges[:, 0], edges[:, 1]]
    sources, first = edges[:, 1].to(device), first.to(device)
    return lambda rows: F.embedding_bag(sources, rows, first, mode="sum", per_sample_weights=shares)
