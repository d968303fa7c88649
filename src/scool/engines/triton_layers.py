"""Convolution and pooling of stacked clients in Triton, without ever writing the patches out.

Every client has its own weights and a small batch, a shape that no library kernel is made for. As
batched matrix products the patches (im2col) must be written and read again, some 500 MB a step of
the paper's CIFAR network, and their gradients summed back. These kernels read the activations in
place: for a row `ky` of the filter, the inputs of one output are `KW * CI` contiguous numbers.

Layouts: activations (C, B, H, W, CI), channels last; weights (C, KH, KW, CI, O). Stride 1, no
padding. Products in TF32, sums in float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _conv_forward(
    x_ptr, w_ptr, bias_ptr, out_ptr, B, H, W, OH, OW, P,
    CI: tl.constexpr, NO: tl.constexpr, KH: tl.constexpr, RUN: tl.constexpr,
    BP: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """out[p, o] = bias[o] + sum_{ky, k} x[row(p) + ky, k] w[ky, k, o], k over KW * CI = RUN."""
    client = tl.program_id(1).to(tl.int64)
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    o = tl.arange(0, BO)
    b, y, x = p // (OH * OW), p // OW % OH, p % OW
    at = ((client * B + b) * H + y) * W * CI + x * CI  # where the first filter row begins
    acc = tl.zeros((BP, BO), dtype=tl.float32)
    pieces: tl.constexpr = (RUN + BK - 1) // BK
    for step in range(KH * pieces):  # one loop, so that its loads are pipelined
        ky, k = step // pieces, step % pieces * BK + tl.arange(0, BK)
        inputs = tl.load(
            x_ptr + at[:, None] + ky * W * CI + k[None, :],
            mask=(p[:, None] < P) & (k[None, :] < RUN),
            other=0.0,
        )
        weights = tl.load(
            w_ptr + ((client * KH + ky) * RUN + k[:, None]) * NO + o[None, :],
            mask=(k[:, None] < RUN) & (o[None, :] < NO),
            other=0.0,
        )
        acc = tl.dot(inputs, weights, acc, input_precision="tf32")
    acc += tl.load(bias_ptr + client * NO + o, mask=o < NO, other=0.0)[None, :]
    to = out_ptr + (client * P + p[:, None]) * NO + o[None, :]
    tl.store(to, acc, mask=(p[:, None] < P) & (o[None, :] < NO))


@triton.jit
def _conv_input_gradient(
    g_ptr, w_ptr, dx_ptr, B, H, W, OH, OW, Q,
    CI: tl.constexpr, NO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BQ: tl.constexpr, BC: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """dx[q, ci] = sum_{ky, kx, o} g[q - (ky, kx), o] w[ky, kx, ci, o] over the inputs q."""
    client = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BQ + tl.arange(0, BQ)
    ci = tl.arange(0, BC)
    o = tl.arange(0, BO)
    b, yi, xi = q // (H * W), q // W % H, q % W
    acc = tl.zeros((BQ, BC), dtype=tl.float32)
    for step in range(KH * KW):
        ky, kx = step // KW, step % KW
        y, x = yi - ky, xi - kx
        valid = (q < Q) & (y >= 0) & (y < OH) & (x >= 0) & (x < OW)
        at = (((client * B + b) * OH + y) * OW + x) * NO
        g = tl.load(
            g_ptr + at[:, None] + o[None, :],
            mask=valid[:, None] & (o[None, :] < NO),
            other=0.0,
        )
        weights = tl.load(
            w_ptr + ((client * KH * KW + step) * CI + ci[None, :]) * NO + o[:, None],
            mask=(ci[None, :] < CI) & (o[:, None] < NO),
            other=0.0,
        )
        acc = tl.dot(g, weights, acc, input_precision="tf32")
    to = dx_ptr + (client * Q + q[:, None]) * CI + ci[None, :]
    tl.store(to, acc, mask=(q[:, None] < Q) & (ci[None, :] < CI))


@triton.jit
def _conv_weight_gradient(
    x_ptr, g_ptr, dw_ptr, db_ptr, B, H, W, OH, OW, clients,
    P: tl.constexpr, CI: tl.constexpr, NO: tl.constexpr, KH: tl.constexpr, RUN: tl.constexpr,
    SHARE: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """dw[ky, k, o] = sum_p x[row(p) + ky, k] g[p, o] over a share of the positions p.

    The shares of a client are summed afterwards, always in the same order. Reading the gradient
    behind the pool instead (a quarter of the numbers, and which of four each went to) was slower,
    presumably because the choice keeps the loads from being pipelined.
    """
    client = tl.program_id(1).to(tl.int64)
    share = tl.program_id(2)
    pieces: tl.constexpr = (RUN + BK - 1) // BK
    ky, k = tl.program_id(0) // pieces, tl.program_id(0) % pieces * BK + tl.arange(0, BK)
    o = tl.arange(0, BO)
    acc = tl.zeros((BK, BO), dtype=tl.float32)
    db = tl.zeros((BO,), dtype=tl.float32)
    for p0 in range(0, SHARE, BP):
        p = share * SHARE + p0 + tl.arange(0, BP)
        inside = (p < P) & (p < (share + 1) * SHARE)
        b, y, x = p // (OH * OW), p // OW % OH, p % OW
        at = ((client * B + b) * H + y + ky) * W * CI + x * CI
        inputs = tl.load(
            x_ptr + at[None, :] + k[:, None],
            mask=inside[None, :] & (k[:, None] < RUN),
            other=0.0,
        )
        g = tl.load(
            g_ptr + (client * P + p[:, None]) * NO + o[None, :],
            mask=inside[:, None] & (o[None, :] < NO),
            other=0.0,
        )
        acc = tl.dot(inputs, g, acc, input_precision="tf32")
        db += tl.sum(g, axis=0)
    to = dw_ptr + (((share * clients + client) * KH + ky) * RUN + k[:, None]) * NO + o[None, :]
    tl.store(to, acc, mask=(k[:, None] < RUN) & (o[None, :] < NO))
    if tl.program_id(0) == 0:
        tl.store(db_ptr + (share * clients + client) * NO + o, db, mask=o < NO)


@triton.jit
def _pool_forward(
    x_ptr, out_ptr, which_ptr, total, W, OW, OH, H,
    CH: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest of each 2x2 window and which it was (4: none, the ReLU cut it off)."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ch, xo, yo, n = i % CH, i // CH % OW, i // (CH * OW) % OH, i // (CH * OW * OH)
    at = x_ptr + ((n * H + 2 * yo) * W + 2 * xo) * CH + ch
    best = tl.load(at, mask=i < total, other=0.0)
    which = tl.zeros((BLOCK,), dtype=tl.int32)
    for j in tl.static_range(1, 4):
        other = tl.load(at + (j // 2 * W + j % 2) * CH, mask=i < total, other=0.0)
        is_more = other > best
        best, which = tl.where(is_more, other, best), tl.where(is_more, j, which)
    if RELU:
        which = tl.where(best > 0, which, 4)
        best = tl.where(best > 0, best, 0.0)
    tl.store(out_ptr + i, best, mask=i < total)
    tl.store(which_ptr + i, which.to(tl.uint8), mask=i < total)


@triton.jit
def _pool_backward(
    g_ptr, which_ptr, dx_ptr, total, W, OW, OH, H,
    CH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient goes to the input that was the largest of its window."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ch, xo, yo, n = i % CH, i // CH % OW, i // (CH * OW) % OH, i // (CH * OW * OH)
    to = dx_ptr + ((n * H + 2 * yo) * W + 2 * xo) * CH + ch
    g = tl.load(g_ptr + i, mask=i < total, other=0.0)
    which = tl.load(which_ptr + i, mask=i < total, other=4).to(tl.int32)
    for j in tl.static_range(4):
        tl.store(to + (j // 2 * W + j % 2) * CH, tl.where(which == j, g, 0.0), mask=i < total)


# Tiles of the weight gradient, measured on an H200 (benchmarks/2026-11-15-engine): filters whose
# rows are short (the first layer: five pixels of three colours) and all others.
NARROW = {"BP": 32, "BK": 16, "warps": 1, "shares": 4}
WIDE = {"BP": 32, "BK": 64, "warps": 2, "shares": 1}


def _power(size: int) -> int:
    """A block side that `tl.dot` takes: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(size))


def conv_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(C, B, OH, OW, O) of inputs (C, B, H, W, CI) and weights (C, KH, KW, CI, O)."""
    clients, batch, height, width, channels = x.shape
    _, kh, kw, _, outputs = weight.shape
    oh, ow = height - kh + 1, width - kw + 1
    out = torch.empty(clients, batch, oh, ow, outputs, device=x.device, dtype=x.dtype)
    positions, run, block = batch * oh * ow, kw * channels, 128
    _conv_forward[(triton.cdiv(positions, block), clients)](
        x, weight, bias, out, batch, height, width, oh, ow, positions,
        CI=channels, NO=outputs, KH=kh, RUN=run,
        BP=block, BK=16 if run <= 16 else 32, BO=_power(outputs), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


def conv_input_gradient(g: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """(C, B, H, W, CI) from the gradient of the outputs (C, B, OH, OW, O)."""
    clients, batch, oh, ow, outputs = g.shape
    _, kh, kw, channels, _ = weight.shape
    dx = torch.empty(clients, batch, height, width, channels, device=g.device, dtype=g.dtype)
    inputs, block = batch * height * width, 64
    _conv_input_gradient[(triton.cdiv(inputs, block), clients)](
        g, weight, dx, batch, height, width, oh, ow, inputs,
        CI=channels, NO=outputs, KH=kh, KW=kw,
        BQ=block, BC=_power(channels), BO=_power(outputs), num_warps=4, num_stages=3,
    )  # fmt: skip
    return dx


def conv_update(
    x: Tensor, g: Tensor, weight: Tensor, bias: Tensor, lr: float, decay: float
) -> None:
    """One SGD step on weights and bias, in place."""
    clients, batch, height, width, channels = x.shape
    _, kh, kw, _, outputs = weight.shape
    oh, ow = height - kh + 1, width - kw + 1
    positions, run = batch * oh * ow, kw * channels
    tile = NARROW if run <= 16 else WIDE
    shares = max(1, min(tile["shares"], positions // 512))
    dw = torch.empty(shares, *weight.shape, device=x.device, dtype=x.dtype)
    db = torch.empty(shares, *bias.shape, device=x.device, dtype=x.dtype)
    _conv_weight_gradient[(kh * triton.cdiv(run, tile["BK"]), clients, shares)](
        x, g, dw, db, batch, height, width, oh, ow, clients,
        P=positions, CI=channels, NO=outputs, KH=kh, RUN=run,
        SHARE=triton.cdiv(positions, shares), BP=tile["BP"], BK=tile["BK"], BO=_power(outputs),
        num_warps=tile["warps"], num_stages=2,
    )  # fmt: skip
    if decay:
        weight.mul_(1 - lr * decay)
        bias.mul_(1 - lr * decay)
    weight.sub_(dw[0] if shares == 1 else dw.sum(0), alpha=lr)
    bias.sub_(db[0] if shares == 1 else db.sum(0), alpha=lr)


def pool_forward(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """2x2 maximum with stride 2 of (C, B, H, W, channels), then ReLU; and which entry it was."""
    clients, batch, height, width, channels = x.shape
    oh, ow = height // 2, width // 2
    out = torch.empty(clients, batch, oh, ow, channels, device=x.device, dtype=x.dtype)
    which = torch.empty(out.shape, device=x.device, dtype=torch.uint8)
    total, block = out.numel(), 1024
    _pool_forward[(triton.cdiv(total, block),)](
        x, out, which, total, width, ow, oh, height, CH=channels, RELU=relu, BLOCK=block
    )
    return out, which


def pool_backward(g: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    """The gradient before the pool, (C, B, H, W, channels)."""
    clients, batch, oh, ow, channels = which.shape
    make = torch.empty if height % 2 == 0 and width % 2 == 0 else torch.zeros
    dx = make(clients, batch, height, width, channels, device=g.device, dtype=g.dtype)
    total, block = which.numel(), 1024
    _pool_backward[(triton.cdiv(total, block),)](
        g, which, dx, total, width, ow, oh, height, CH=channels, BLOCK=block
    )
    return dx
