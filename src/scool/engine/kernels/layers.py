"""Convolution and pooling of stacked clients in Triton, without ever writing the patches out.

Every client has its own weights and a small batch, a shape that no library kernel is made for. As
batched matrix products the patches (im2col) must be written and read again, some 500 MB a step of
the paper's CIFAR network, and their gradients summed back. These kernels read the activations in
place: for a row `ky` of the filter, the inputs of one output are `KW * CI` contiguous numbers.

Layouts: activations (C, B, H, W, CI), channels last; weights (C, KH, KW, CI, O). Stride 1, no
padding. Products in TF32, sums in float32.

Addresses would cost more than products. So: 64-bit pointers to a block (in the backward pass to a
client's batch), 32-bit offsets from there, and sizes that are constants of the compiled kernel, so
that no program divides by a variable.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scool.engine.kernels.launch import launch
from scool.errors import require


@triton.jit(do_not_specialize=["STEP", "P"])
def _conv_forward(
    x_ptr, w_ptr, bias_ptr, out_ptr, sums_ptr, STEP, P,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    CI: tl.constexpr, NO: tl.constexpr, KH: tl.constexpr, RUN: tl.constexpr,
    SUMS: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """out[p, o] = bias[o] + sum_k x[p + entry(k)] w[k, o], k over the KH * RUN entries of a filter.

    STEP images lie between the inputs of two clients: their batch, or 0 where all have the same.
    SUMS: a block stays within an image, and its sums over p of relu(out) and of its square are
    written, too, so that a norm need not read all outputs once more.
    """
    client = tl.program_id(1).to(tl.int64)
    blocks: tl.constexpr = (OH * OW + BP - 1) // BP
    if SUMS:
        first = tl.program_id(0) // blocks * (OH * OW) + tl.program_id(0) % blocks * BP
    else:
        first = tl.program_id(0) * BP
    p = first % (OH * OW) + tl.arange(0, BP)  # positions, seen from the block's first image
    o = tl.arange(0, BO)
    b, y, x = p // (OH * OW), p // OW % OH, p % OW
    at = ((b * H + y) * W + x) * CI  # where the first filter row begins
    inside = OH * OW if SUMS else first % (OH * OW) + P - first
    x_from = x_ptr + (client * STEP + first // (OH * OW)) * (H * W * CI)
    w_from = w_ptr + client * (KH * RUN * NO)
    acc = tl.zeros((BP, BO), dtype=tl.float32)
    for start in range(0, KH * RUN, BK):
        k = start + tl.arange(0, BK)  # entries of the filter, row after row
        entry = k // RUN * (W * CI) + k % RUN  # where its input lies, seen from the first
        inputs = tl.load(
            x_from + (at[:, None] + entry[None, :]),
            mask=(p[:, None] < inside) & (k[None, :] < KH * RUN),
            other=0.0,
        )
        weights = tl.load(
            w_from + (k[:, None] * NO + o[None, :]),
            mask=(k[:, None] < KH * RUN) & (o[None, :] < NO),
            other=0.0,
        ).to(x_ptr.dtype.element_ty)
        acc = tl.dot(inputs, weights, acc, input_precision="tf32")
    acc += tl.load(bias_ptr + client * NO + o, mask=o < NO, other=0.0)[None, :]
    to = out_ptr + (client * P + first) * NO + (tl.arange(0, BP)[:, None] * NO + o[None, :])
    tl.store(to, acc, mask=(p[:, None] < inside) & (o[None, :] < NO))
    if SUMS:
        kept = tl.maximum(acc, 0.0).to(out_ptr.dtype.element_ty).to(tl.float32)
        kept = tl.where(p[:, None] < inside, kept, 0.0)
        block = client * (P // (OH * OW) * blocks) + tl.program_id(0)
        sums = sums_ptr + block * (2 * NO) + o
        tl.store(sums, tl.sum(kept, axis=0), mask=o < NO)
        tl.store(sums + NO, tl.sum(kept * kept, axis=0), mask=o < NO)


@triton.jit(do_not_specialize=["STEP", "P"])
def _conv_pool_forward(
    x_ptr, w_ptr, bias_ptr, out_ptr, which_ptr, STEP, P,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    CI: tl.constexpr, NO: tl.constexpr, KH: tl.constexpr, RUN: tl.constexpr,
    BP: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """The same, and of each 2x2 window only the largest output above 0, and which of the four it
    was (4: none). The outputs themselves, four times as many numbers, are never written."""
    client = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0) * BP
    p = start % (PH * PW) + tl.arange(0, BP)  # positions, seen from the block's first image
    o = tl.arange(0, BO)
    b, y, x = p // (PH * PW), p // PW % PH, p % PW
    at = ((b * H + 2 * y) * W + 2 * x) * CI
    inside = start % (PH * PW) + P - start
    x_from = x_ptr + (client * STEP + start // (PH * PW)) * (H * W * CI)
    w_from = w_ptr + client * (KH * RUN * NO)
    first = tl.zeros((BP, BO), dtype=tl.float32)
    second, third, fourth = first, first, first
    pieces: tl.constexpr = (RUN + BK - 1) // BK
    for step in range(KH * pieces):  # one loop, so that its loads are pipelined
        ky, k = step // pieces, step % pieces * BK + tl.arange(0, BK)
        weights = tl.load(
            w_from + ky * (RUN * NO) + (k[:, None] * NO + o[None, :]),
            mask=(k[:, None] < RUN) & (o[None, :] < NO),
            other=0.0,
        ).to(x_ptr.dtype.element_ty)
        source = x_from + ky * (W * CI) + (at[:, None] + k[None, :])
        here = (p[:, None] < inside) & (k[None, :] < RUN)
        inputs = tl.load(source, mask=here, other=0.0)
        first = tl.dot(inputs, weights, first, input_precision="tf32")
        inputs = tl.load(source + CI, mask=here, other=0.0)
        second = tl.dot(inputs, weights, second, input_precision="tf32")
        inputs = tl.load(source + W * CI, mask=here, other=0.0)
        third = tl.dot(inputs, weights, third, input_precision="tf32")
        inputs = tl.load(source + W * CI + CI, mask=here, other=0.0)
        fourth = tl.dot(inputs, weights, fourth, input_precision="tf32")
    best, which = first, tl.zeros((BP, BO), dtype=tl.int32)
    best, which = tl.where(second > best, second, best), tl.where(second > best, 1, which)
    best, which = tl.where(third > best, third, best), tl.where(third > best, 2, which)
    best, which = tl.where(fourth > best, fourth, best), tl.where(fourth > best, 3, which)
    best += tl.load(bias_ptr + client * NO + o, mask=o < NO, other=0.0)[None, :]
    at = (client * P + start) * NO
    to = tl.arange(0, BP)[:, None] * NO + o[None, :]
    here = (p[:, None] < inside) & (o[None, :] < NO)
    tl.store(out_ptr + at + to, tl.maximum(best, 0.0), mask=here)
    tl.store(which_ptr + at + to, tl.where(best > 0, which, 4).to(tl.uint8), mask=here)


@triton.jit(do_not_specialize=["B", "Q"])
def _conv_input_gradient(
    g_ptr, w_ptr, dx_ptr, B, Q,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    CI: tl.constexpr, NO: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BQ: tl.constexpr, BC: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """dx[q, ci] = sum_{ky, kx, o} g[q - (ky, kx), o] w[ky, kx, ci, o] over the inputs q."""
    client = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BQ + tl.arange(0, BQ)
    ci = tl.arange(0, BC)
    o = tl.arange(0, BO)
    b, yi, xi = q // (H * W), q // W % H, q % W
    at = ((b * OH + yi) * OW + xi) * NO
    yi = tl.where(q < Q, yi, -KH)  # beyond the last input: never inside
    g_from = g_ptr + client * B * (OH * OW * NO) + (at[:, None] + o[None, :])
    w_off = ci[None, :] * NO + o[:, None]
    w_mask = (ci[None, :] < CI) & (o[:, None] < NO)
    w_ptr += client * (KH * KW * CI * NO)
    acc = tl.zeros((BQ, BC), dtype=tl.float32)
    for step in range(KH * KW):
        ky, kx = step // KW, step % KW
        y, x = (yi - ky).to(tl.uint32), (xi - kx).to(tl.uint32)  # negative: huge
        inside = (y < OH) & (x < OW)
        g = tl.load(
            g_from - (ky * OW + kx) * NO, mask=inside[:, None] & (o[None, :] < NO), other=0.0
        )
        weights = tl.load(w_ptr + step * (CI * NO) + w_off, mask=w_mask, other=0.0)
        acc = tl.dot(g, weights.to(g_ptr.dtype.element_ty), acc, input_precision="tf32")
    to = dx_ptr + client * Q * CI + (q[:, None] * CI + ci[None, :])
    tl.store(to, acc, mask=(q[:, None] < Q) & (ci[None, :] < CI))


@triton.jit(do_not_specialize=["B", "clients"])
def _conv_weight_gradient(
    x_ptr, g_ptr, dw_ptr, db_ptr, B, clients, lr, keep, UPDATE: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    P: tl.constexpr, CI: tl.constexpr, NO: tl.constexpr, KH: tl.constexpr, RUN: tl.constexpr,
    SHARE: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dw[k, o] = sum_p x[p + entry(k)] g[p, o] over a share of the positions p: SHARE of them, or
    SHARE rows of outputs, ROWS at a time, where so many fill a block.

    Where one share is all (UPDATE) the step is taken at once: dw and db are the weights and the
    bias. Else the shares of a client are summed afterwards, always in the same order. Reading the
    gradient behind the pool instead (a quarter of the numbers, and which of four each went to) was
    slower, presumably because the choice keeps the loads from being pipelined.
    """
    client = tl.program_id(1).to(tl.int64)
    share = tl.program_id(2)
    k = tl.program_id(0) * BK + tl.arange(0, BK)  # entries of the filter, row after row
    entry = k // RUN * (W * CI) + k % RUN  # where its input lies, seen from the first
    o = tl.arange(0, BO)
    acc = tl.zeros((BK, BO), dtype=tl.float32)
    db = tl.zeros((BO,), dtype=tl.float32)
    x_ptr += client * B * (H * W * CI)
    g_ptr += client * (P * NO)
    j = tl.arange(0, BP)
    for step in range(0, SHARE, ROWS or BP):
        first = share * SHARE + step
        if ROWS:  # a block lies in one image, and looks the same in all: addresses are a sum
            x_at = x_ptr + (first // OH * H + first % OH) * (W * CI)
            g_at = g_ptr + first * (OW * NO)
            at, inside = (j // OW * W + j % OW) * CI, j < ROWS * OW
        else:
            p = first + j
            x_at, g_at = x_ptr, g_ptr + first * NO
            at = ((p // (OH * OW) * H + p // OW % OH) * W + p % OW) * CI
            inside = (p < P) & (p < (share + 1) * SHARE)
        inputs = tl.load(
            x_at + (at[None, :] + entry[:, None]),
            mask=inside[None, :] & (k[:, None] < KH * RUN),
            other=0.0,
        )
        g = tl.load(
            g_at + (j[:, None] * NO + o[None, :]),
            mask=inside[:, None] & (o[None, :] < NO),
            other=0.0,
        )
        acc = tl.dot(inputs, g, acc, input_precision="tf32")
        db += tl.sum(g.to(tl.float32), axis=0)
    to = dw_ptr + ((share * clients + client) * KH * RUN + k[:, None]) * NO + o[None, :]
    here = (k[:, None] < KH * RUN) & (o[None, :] < NO)
    to_bias = db_ptr + (share * clients + client) * NO + o
    if UPDATE:
        acc = keep * tl.load(to, mask=here, other=0.0) - lr * acc
        db = keep * tl.load(to_bias, mask=o < NO, other=0.0) - lr * db
    tl.store(to, acc, mask=here)
    if tl.program_id(0) == 0:
        tl.store(to_bias, db, mask=o < NO)


@triton.jit(do_not_specialize=["total"])
def _pool_backward(
    g_ptr, which_ptr, dx_ptr, total,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    CH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient goes to the input that was the largest of its window."""
    size: tl.constexpr = OH * OW * CH
    start = tl.program_id(0).to(tl.int64) * BLOCK
    image, left = start // size, total - start
    i = tl.arange(0, BLOCK)
    at = (start - image * size).to(tl.int32) + i  # seen from the first image of the block
    ch, xo, yo, n = at % CH, at // CH % OW, at // (CH * OW) % OH, at // size
    to = dx_ptr + image * (H * W * CH) + (((n * H + 2 * yo) * W + 2 * xo) * CH + ch)
    g = tl.load(g_ptr + start + i, mask=i < left, other=0.0)
    which = tl.load(which_ptr + start + i, mask=i < left, other=4).to(tl.int32)
    for j in tl.static_range(4):
        tl.store(to + (j // 2 * W + j % 2) * CH, tl.where(which == j, g, 0.0), mask=i < left)


# Tiles, measured on an H200 (benchmarks/2026-11-15-kernels): for filters whose rows are short (the
# first layer: three or five pixels of three colours), and for all others.
FORWARD = (
    {"BP": 128, "BK": 32, "warps": 4, "stages": 2},
    {"BP": 128, "BK": 16, "warps": 1, "stages": 4},
)
POOLED = (
    {"BP": 64, "BK": 16, "warps": 4, "stages": 1},
    {"BP": 16, "BK": 32, "warps": 2, "stages": 3},
)
INPUT = (
    {"BQ": 128, "warps": 8, "stages": 3},  # up to 32 outputs
    {"BQ": 64, "warps": 4, "stages": 3},  # more
)
UPDATE = (  # a program sums up about so many positions ("share"), BP of them at once
    {"share": 2000, "BP": 32, "BK": 32, "warps": 1, "stages": 3},
    {"share": 2000, "BP": 32, "BK": 64, "warps": 1, "stages": 2},  # up to 32 outputs
    {"share": 2000, "BP": 32, "BK": 128, "warps": 2, "stages": 3},  # more
)


def _is_wide(run: int) -> int:
    """Which of two tiles: 0 for filter rows of at most 16 numbers, 1 for longer ones."""
    return int(run > 16)


def _power(size: int) -> int:
    """A block side that `tl.dot` takes: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(size))


def _step(x: Tensor) -> int:
    """Images between the inputs of two clients; 0: `x` is one batch, expanded."""
    return x.shape[1] if x.stride(0) else 0


def conv_forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(C, B, OH, OW, O) of inputs (C, B, H, W, CI) and weights (C, KH, KW, CI, O)."""
    return _conv(x, weight, bias, has_sums=False)[0]


def conv_sums_forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """`conv_forward`, and for the blocks of each image the sums of relu(out) and of its square:
    (C, B, blocks, 2, O)."""
    return _conv(x, weight, bias, has_sums=True)


def _conv(x: Tensor, weight: Tensor, bias: Tensor, has_sums: bool) -> tuple[Tensor, Tensor]:
    clients, batch, height, width, channels = x.shape
    _, kh, kw, _, outputs = weight.shape
    oh, ow = height - kh + 1, width - kw + 1
    out = torch.empty(clients, batch, oh, ow, outputs, device=x.device, dtype=x.dtype)
    positions, run = batch * oh * ow, kw * channels
    tile = FORWARD[_is_wide(run)]
    blocks = triton.cdiv(positions, tile["BP"])
    sums = out  # a pointer that nobody follows
    if has_sums:
        of_image = triton.cdiv(oh * ow, tile["BP"])
        blocks, shape = batch * of_image, (clients, batch, of_image, 2, outputs)
        sums = torch.empty(shape, device=x.device, dtype=torch.float32)
    launch(
        _conv_forward, (blocks, clients),
        x, weight, bias, out, sums, _step(x), positions,
        H=height, W=width, OH=oh, OW=ow, CI=channels, NO=outputs, KH=kh, RUN=run,
        SUMS=has_sums, BP=tile["BP"], BK=tile["BK"], BO=_power(outputs),
        num_warps=tile["warps"], num_stages=tile["stages"],
    )  # fmt: skip
    return out, sums


def conv_pool_forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """`conv_forward`, 2x2 maximum and ReLU: (C, B, OH // 2, OW // 2, O), and which entry it was."""
    clients, batch, height, width, channels = x.shape
    _, kh, kw, _, outputs = weight.shape
    ph, pw = (height - kh + 1) // 2, (width - kw + 1) // 2
    out = torch.empty(clients, batch, ph, pw, outputs, device=x.device, dtype=x.dtype)
    which = torch.empty(out.shape, device=x.device, dtype=torch.uint8)
    positions, run = batch * ph * pw, kw * channels
    tile = POOLED[_is_wide(run)]
    launch(
        _conv_pool_forward, (triton.cdiv(positions, tile["BP"]), clients),
        x, weight, bias, out, which, _step(x), positions,
        H=height, W=width, PH=ph, PW=pw, CI=channels, NO=outputs, KH=kh, RUN=run,
        BP=tile["BP"], BK=tile["BK"], BO=_power(outputs),
        num_warps=tile["warps"], num_stages=tile["stages"],
    )  # fmt: skip
    return out, which


def _check_offsets(*batches: Tensor) -> None:
    """The backward pass counts in 32 bit within a client's batch."""
    most = max(batch[0].numel() for batch in batches)
    require(most < 2**31, "batch_size", len(batches[0][0]), "choose a smaller one for these images")


def conv_input_gradient(g: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """(C, B, H, W, CI) from the gradient of the outputs (C, B, OH, OW, O)."""
    clients, batch, oh, ow, outputs = g.shape
    _, kh, kw, channels, _ = weight.shape
    dx = torch.empty(clients, batch, height, width, channels, device=g.device, dtype=g.dtype)
    _check_offsets(g, dx)
    inputs, tile = batch * height * width, INPUT[outputs > 32]
    launch(
        _conv_input_gradient, (triton.cdiv(inputs, tile["BQ"]), clients),
        g, weight, dx, batch, inputs,
        H=height, W=width, OH=oh, OW=ow, CI=channels, NO=outputs, KH=kh, KW=kw,
        BQ=tile["BQ"], BC=_power(channels), BO=_power(outputs),
        num_warps=tile["warps"], num_stages=tile["stages"],
    )  # fmt: skip
    return dx


def _rows_at_once(batch: int, oh: int, ow: int, shares: int, block: int) -> int:
    """How many rows of outputs nearly fill a block of positions and divide a share; 0: none do."""
    fitting = [r for r in range(1, oh + 1) if r * ow <= block and oh % r == 0]
    rows = fitting[-1] if fitting else 0
    is_full = rows * ow >= 0.8 * block
    return rows if is_full and batch * oh % (shares * rows) == 0 else 0


def conv_update(
    x: Tensor, g: Tensor, weight: Tensor, bias: Tensor, lr: float, decay: float
) -> None:
    """One SGD step on weights and bias, in place."""
    assert len(x) == 1 or x.stride(0), "every client has inputs of its own in training"
    _check_offsets(x, g)
    clients, batch, height, width, channels = x.shape
    _, kh, kw, _, outputs = weight.shape
    oh, ow = height - kh + 1, width - kw + 1
    positions, run = batch * oh * ow, kw * channels
    tile = UPDATE[_is_wide(run) * (1 if outputs <= 32 else 2)]
    shares = max(1, round(positions / tile["share"]))
    rows = _rows_at_once(batch, oh, ow, shares, tile["BP"])
    parts = batch * oh if rows else positions
    keep, dw, db = 1 - lr * decay, weight, bias
    if shares > 1:
        dw = torch.empty(shares, *weight.shape, device=x.device, dtype=weight.dtype)
        db = torch.empty(shares, *bias.shape, device=x.device, dtype=weight.dtype)
    launch(
        _conv_weight_gradient, (triton.cdiv(kh * run, tile["BK"]), clients, shares),
        x, g, dw, db, batch, clients, lr, keep, UPDATE=shares == 1,
        H=height, W=width, OH=oh, OW=ow, P=positions, CI=channels, NO=outputs, KH=kh, RUN=run,
        SHARE=triton.cdiv(parts, shares), ROWS=rows, BP=tile["BP"], BK=tile["BK"],
        BO=_power(outputs), num_warps=tile["warps"], num_stages=tile["stages"],
    )  # fmt: skip
    if shares > 1:
        descend(weight, dw, lr, decay)
        descend(bias, db, lr, decay)


def descend(values: Tensor, shares: Tensor, lr: float, decay: float) -> None:
    """One SGD step in place, from the shares of a gradient, always summed in the same order."""
    kept = values.mul_(1 - lr * decay) if decay else values
    kept.sub_(shares.sum(0), alpha=lr)


def pool_backward(g: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    """The gradient before the pool, (C, B, H, W, channels)."""
    clients, batch, oh, ow, channels = which.shape
    make = torch.empty if height % 2 == 0 and width % 2 == 0 else torch.zeros
    dx = make(clients, batch, height, width, channels, device=g.device, dtype=g.dtype)
    total, block = which.numel(), 1024
    launch(
        _pool_backward, (triton.cdiv(total, block),),
        g, which, dx, total, H=height, W=width, OH=oh, OW=ow, CH=channels, BLOCK=block,
    )  # fmt: skip
    return dx
