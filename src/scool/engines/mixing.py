"""Weighted sums of many models: a product with a matrix of weights that is mostly zeros, or not."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from scool.engines.edges import Edges

LARGE = 500 * 500  # weights from which on it pays to look for zeros
THIN = 0.2  # share of nonzero weights up to which a sum over the edges is faster


def mixer(
    edges: Edges, share: Tensor, shape: tuple[int, int], device: torch.device, dtype: torch.dtype
) -> Callable[[Tensor], Tensor]:
    """rows (k, D) -> (m, D) sums, for a matrix of shape (m, k) with these weights (E,).

    Of many clients with few neighbours only the nonzero weights are looked at, so that the work
    grows with K and not with its square.
    """
    size = shape[0] * shape[1]
    if size < LARGE or len(share) > THIN * size:
        matrix = share.new_zeros(shape)
        matrix[edges.i, edges.j] = share
        weights = matrix.to(device, dtype)
        return lambda rows: weights @ rows
    first = torch.searchsorted(edges.i, torch.arange(shape[0])).to(device)
    sources, shares = edges.j.to(device), share.to(device, dtype)
    return lambda rows: F.embedding_bag(sources, rows, first, mode="sum", per_sample_weights=shares)
