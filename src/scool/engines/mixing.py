"""Weighted sums of many models: a product with a matrix of weights that is mostly zeros, or not."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from scool.engines.edges import Edges

LARGE = 500 * 500  # weights from which on it pays to look for zeros
BLOCK = 2**22  # numbers that are mixed at a time where the result takes their place
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
    return lambda rows: F.embedding_bag(
        sources, rows.contiguous(), first, mode="sum", per_sample_weights=shares
    )


def mix_tensor(mix: Callable[[Tensor], Tensor], stacked: Tensor, overwrite: bool) -> Tensor:
    """The sums for one tensor of all models; in its own memory, some columns at a time, if asked
    to: beside a large stack there may be no room for another."""
    rows = stacked.flatten(1)
    if not overwrite:
        return mix(rows).view_as(stacked)
    for columns in rows.split(max(1, BLOCK // len(rows)), dim=1):
        columns.copy_(mix(columns))
    return rows.view_as(stacked)
