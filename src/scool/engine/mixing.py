"""Weighted sums of many models: a product with a matrix of weights that is mostly zeros, or not."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scool.engine.edges import PairList
from scool.errors import ConfigError, first_few
from scool.graph.edges import Edges
from scool.graph.normalise import edges_without, without

LARGE = 500 * 500  # weights from which on it pays to look for zeros
BLOCK = 2**22  # numbers that are mixed at a time where the result takes their place
THIN = 0.2  # share of nonzero weights up to which a sum over the edges is faster


def checked_weights(w: Any, active: Tensor) -> Edges:
    """The nonzero weights of a mix, the share of clients in quarantine given to others.

    Raises:
        ConfigError: w has another shape, or the row of an active client is not finite.
    """
    size = (len(active), len(active))
    found = tuple(w.shape) if isinstance(w, Tensor | Edges) else type(w).__name__
    if found != size:
        raise ConfigError(f"w = {found} is not possible: give a tensor of weights of shape {size}")
    if isinstance(w, Edges):
        graph = edges_without(w.on(w.values.double()), active).nonzero_pairs()
    else:
        graph = Edges.of(without(w.double().cpu(), active))
    odd = (~graph.row_sums().isfinite()).nonzero()[:, 0].tolist()
    if odd:
        raise ConfigError(
            f"w has weights that are not finite in {len(odd)} of {len(w)} rows ({first_few(odd)}): "
            "give finite weights, 0 for clients that are not mixed"
        )
    return graph


def mixer(
    edges: PairList, share: Tensor, shape: tuple[int, int], device: torch.device, dtype: torch.dtype
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
