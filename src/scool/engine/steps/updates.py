"""Inner products and weighted sums of the updates that visits made, without storing the updates."""

from collections.abc import Iterator

import torch
from torch import Tensor

from scool.contracts import Products, Updates
from scool.engine.machine import HAS_TRITON
from scool.models.layers import is_statistic
from scool.models.stack import flat
from scool.types import Tree

COLUMNS = 1 << 24  # numbers that are processed at once
MOST_ROWS = 64  # updates of a client that a program of a GPU holds
LARGE = 64  # numbers per update: below, products are singular and float32 is not enough
ROUGH = 1e-5  # above the errors of products in float32, beside the diagonal


def products(updates: Updates) -> Products:
    """In float64; on a GPU those of large tensors in float32, added up in float64."""
    values = torch.stack([_products(updates, name) for name in updates.theta])
    errors = [ROUGH if _has_kernel(updates, name) else 0.0 for name in updates.theta]
    return Products(values.cpu(), errors)


def weighted_sums(updates: Updates, weights: Tensor) -> Tree:
    """(c, ...) by weights (T, c, m), one tensor after the other."""
    out: Tree = {}
    weights = weights.to(updates.rows.device)
    for (name, t), weight in zip(updates.theta.items(), weights, strict=True):
        rows = updates.rows.where(weight != 0, -1)  # 0 times infinity is NaN
        flat = _weighted_sum(updates._replace(rows=rows), name, weight.to(t.dtype))
        out[name] = flat.view(-1, *t.shape[1:])
    return out


def _products(updates: Updates, name: str) -> Tensor:
    """(c, m, m) of one tensor. Running statistics, which no gradient moves, count as 0."""
    count, most = updates.rows.shape
    total = torch.zeros(count, most, most, dtype=torch.float64, device=updates.rows.device)
    if is_statistic(name):
        return total
    if _has_kernel(updates, name):
        from scool.engine.kernels.updates import products

        return products(*_flat(updates, name), updates.clients, updates.rows)
    for block in _blocks(updates, name):
        block = block.double()
        total += block @ block.mT
    return total


def _weighted_sum(updates: Updates, name: str, weight: Tensor) -> Tensor:
    """(c, D) of one tensor."""
    if _has_kernel(updates, name):
        from scool.engine.kernels.updates import weighted_sum

        return weighted_sum(*_flat(updates, name), updates.clients, updates.rows, weight)
    parts = [(weight[:, None, :] @ block)[:, 0] for block in _blocks(updates, name)]
    return torch.cat(parts, dim=1)


def _has_kernel(updates: Updates, name: str) -> bool:
    t, most = updates.theta[name], updates.rows.shape[1]
    is_float32 = t.is_cuda and t.dtype == torch.float32
    return HAS_TRITON and is_float32 and most <= MOST_ROWS and t[0].numel() >= LARGE * most


def _flat(updates: Updates, name: str) -> tuple[Tensor, Tensor]:
    """The clients' own models (n, D), and the visited ones (E, D)."""
    mine, theirs = flat(updates.theta[name]), flat(updates.visited[name])
    return mine.contiguous(), theirs.contiguous()


def _blocks(updates: Updates, name: str) -> Iterator[Tensor]:
    """The updates of one tensor by clients (c, m, columns), some columns at a time, so that they
    take little memory beside the models."""
    mine, theirs = _flat(updates, name)
    missing = (updates.rows < 0)[:, :, None]
    width = max(1, COLUMNS // updates.rows.numel())
    for own, visited in zip(mine.split(width, dim=1), theirs.split(width, dim=1), strict=True):
        block = own[updates.clients][:, None] - visited[updates.rows]
        yield block.masked_fill_(missing, 0.0)
