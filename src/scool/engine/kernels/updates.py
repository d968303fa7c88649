"""Updates of the same model by several clients, on a GPU: their inner products and weighted sums in
one reading each. As a difference and a batched product they take several times as long, since a
product of eleven rows of a million numbers keeps a hundred programs busy, and not the GPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scool.engine.kernels.launch import launch

_SUM_COLUMNS = 1024
_PROGRAMS = 12_800  # that share the inner products
_NUMBERS = 1 << 23  # which they leave, to be summed


@triton.jit
def _products(
    mine_ptr, theirs_ptr, client_ptr, row_ptr, out_ptr, D, STEPS,
    M: tl.constexpr, MM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[c, part, a, b] = sum_d u[a, d] u[b, d] over the columns d of a part, with the updates
    u[a] = mine[client[c]] - theirs[row[c, a]], 0 where there is no row; added up in float64."""
    c, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    a = tl.arange(0, MM)
    row = tl.load(row_ptr + c * M + a, mask=a < M, other=-1)[:, None]
    client = tl.load(client_ptr + c)
    total = tl.zeros((MM, MM), dtype=tl.float64)
    for step in range(STEPS):
        d = (part * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        here = tl.load(mine_ptr + client * D + d, mask=d < D, other=0.0)
        exists = (row >= 0) & (d < D)[None, :]
        there = tl.load(theirs_ptr + row * D + d[None, :], mask=exists, other=0.0)
        u = tl.where(exists, here[None, :] - there, 0.0)
        total += tl.dot(u, tl.trans(u), input_precision="tf32x3").to(tl.float64)
    at = (c * tl.num_programs(0) + part) * MM * MM + a[:, None] * MM + a[None, :]
    tl.store(out_ptr + at, total)


@triton.jit
def _weighted_sum(
    mine_ptr, theirs_ptr, client_ptr, row_ptr, weight_ptr, out_ptr, D,
    M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[c, d] = sum_a weight[c, a] (mine[client[c], d] - theirs[row[c, a], d])."""
    c = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    client = tl.load(client_ptr + c)
    here = tl.load(mine_ptr + client * D + d, mask=d < D, other=0.0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for a in range(M):
        row = tl.load(row_ptr + c * M + a)
        weight = tl.load(weight_ptr + c * M + a)
        there = tl.load(theirs_ptr + row * D + d, mask=(d < D) & (row >= 0), other=0.0)
        total += tl.where(row >= 0, weight, 0.0) * (here - there)
    tl.store(out_ptr + c * D + d, total, mask=d < D)


def products(mine: Tensor, theirs: Tensor, clients: Tensor, rows: Tensor) -> Tensor:
    """(c, m, m) float64: inner products of the updates mine[clients] - theirs[rows].

    Args:
        mine: (n, D) float32.
        theirs: (E, D) float32.
        clients: (c,) rows of `mine`.
        rows: (c, m) rows of `theirs`, -1 for an update of 0.
    """
    (count, most), width = rows.shape, mine.shape[1]
    size = max(16, triton.next_power_of_2(most))
    block, warps = (64, 1) if size <= 16 else (32, 4)
    parts = max(1, min(_PROGRAMS // count, _NUMBERS // (count * size * size)))
    steps = triton.cdiv(width, block * parts)
    parts = triton.cdiv(width, block * steps)
    out = torch.empty(count, parts, size, size, device=mine.device, dtype=torch.float64)
    launch(
        _products, (parts, count),
        mine, theirs, clients, rows, out, width, steps,
        M=most, MM=size, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return out.sum(dim=1)[:, :most, :most]


def weighted_sum(
    mine: Tensor, theirs: Tensor, clients: Tensor, rows: Tensor, weight: Tensor
) -> Tensor:
    """(c, D) sum_a weight[:, a] (mine[clients] - theirs[rows[:, a]]), weight (c, m)."""
    (count, most), width = rows.shape, mine.shape[1]
    out = torch.empty(count, width, device=mine.device, dtype=mine.dtype)
    launch(
        _weighted_sum, (triton.cdiv(width, _SUM_COLUMNS), count),
        mine, theirs, clients, rows, weight.contiguous(), out, width,
        M=most, BLOCK=_SUM_COLUMNS,
    )  # fmt: skip
    return out
