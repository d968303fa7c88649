"""ReLU, group normalisation and a 2x2 maximum of stacked clients, in a few readings of the input.

One after another in torch they read and write the outputs of a convolution some twenty times; those
of the first layer of the paper's MiniImageNet network are 860 MB for a hundred clients. Here: once
to normalise and pool, and once for the gradient, whose sums need only the largest of each window.
The statistics come from sums that the convolution leaves behind.

Layouts: activations (C, B, H, W, channels), channels last; gamma and beta (C, channels).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from scool.engine.kernels.launch import launch
from scool.engine.kernels.layers import descend


@triton.jit
def _by_group(sums, G: tl.constexpr, CH: tl.constexpr):
    """(CH,) numbers a channel -> (CH,) the sum over each channel's group."""
    grouped = tl.sum(tl.reshape(sums, (G, CH // G)), axis=1)
    return tl.reshape(tl.broadcast_to(grouped[:, None], (G, CH // G)), (CH,))


@triton.jit
def _statistics(
    sums_ptr, mean_ptr, rstd_ptr, eps, PIXELS: tl.constexpr, BLOCKS: tl.constexpr,
    G: tl.constexpr, CH: tl.constexpr, NB: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / standard deviation of relu(h) over each group of one sample, from the sums of
    its blocks."""
    sample = tl.program_id(0).to(tl.int64)
    n, ch = tl.arange(0, NB), tl.arange(0, CH)
    at = sums_ptr + sample * (BLOCKS * 2 * CH) + (n[:, None] * (2 * CH) + ch[None, :])
    here = n[:, None] < BLOCKS
    total = tl.sum(tl.load(at, mask=here, other=0.0), axis=0)
    square = tl.sum(tl.load(at + CH, mask=here, other=0.0), axis=0)
    count = PIXELS * (CH // G)
    mean = _by_group(total, G, CH) / count
    variance = tl.maximum(_by_group(square, G, CH) / count - mean * mean, 0.0)
    tl.store(mean_ptr + sample * CH + ch, mean)
    tl.store(rstd_ptr + sample * CH + ch, 1 / tl.sqrt(variance + eps))


@triton.jit(do_not_specialize=["B"])
def _norm_pool(
    h_ptr, mean_ptr, rstd_ptr, gamma_ptr, beta_ptr, out_ptr, which_ptr, normal_ptr, B,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    S: tl.constexpr, CH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest of gamma * normalised + beta in each 2x2 window, which of the four it was, and
    its normalised value, without which the backward pass would have to look at all four."""
    sample = tl.program_id(0).to(tl.int64)
    client = sample // B
    p, ch = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CH)
    here = p[:, None] < PH * PW
    y, x = p // PW * S, p % PW * S
    mean = tl.load(mean_ptr + sample * CH + ch)
    rstd = tl.load(rstd_ptr + sample * CH + ch)
    gamma = tl.load(gamma_ptr + client * CH + ch)
    beta = tl.load(beta_ptr + client * CH + ch)
    at = h_ptr + sample * (H * W * CH) + ((y * W + x)[:, None] * CH + ch[None, :])
    h = tl.maximum(tl.load(at, mask=here, other=0.0), 0.0).to(tl.float32)
    normal, which = (h - mean) * rstd, tl.zeros((BLOCK, CH), dtype=tl.int32)
    for j in tl.static_range(1, 4):
        h = tl.load(at + (j // 2 * W + j % 2) * CH, mask=here, other=0.0)
        value = (tl.maximum(h, 0.0).to(tl.float32) - mean) * rstd
        is_more = gamma * value > gamma * normal
        normal, which = tl.where(is_more, value, normal), tl.where(is_more, j, which)
    first, to = sample * (PH * PW * CH), p[:, None] * CH + ch[None, :]
    tl.store(out_ptr + first + to, gamma * normal + beta, mask=here)
    tl.store(which_ptr + first + to, which.to(tl.uint8), mask=here)
    tl.store(normal_ptr + first + to, normal, mask=here)


@triton.jit
def _norm_sums(
    g_ptr, normal_ptr, sum_ptr, product_ptr,
    PIXELS: tl.constexpr, CH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one sample, per channel: the sum of the gradient and of its product with the normalised
    input. Only the largest of each window has a gradient."""
    sample = tl.program_id(0).to(tl.int64)
    ch = tl.arange(0, CH)
    total = tl.zeros((CH,), dtype=tl.float32)
    product = tl.zeros((CH,), dtype=tl.float32)
    g_ptr += sample * (PIXELS * CH)
    normal_ptr += sample * (PIXELS * CH)
    for start in range(0, PIXELS, BLOCK):
        p = start + tl.arange(0, BLOCK)
        at = p[:, None] * CH + ch[None, :]
        g = tl.load(g_ptr + at, mask=p[:, None] < PIXELS, other=0.0).to(tl.float32)
        normal = tl.load(normal_ptr + at, mask=p[:, None] < PIXELS, other=0.0).to(tl.float32)
        total += tl.sum(g, axis=0)
        product += tl.sum(g * normal, axis=0)
    tl.store(sum_ptr + sample * CH + ch, total)
    tl.store(product_ptr + sample * CH + ch, product)


@triton.jit
def _of_sample(
    mean_ptr, rstd_ptr, gamma_ptr, sum_ptr, product_ptr, sample, client,
    COUNT: tl.constexpr, G: tl.constexpr, CH: tl.constexpr,
):  # fmt: skip
    """(CH,) mean, rstd, gamma, and over the COUNT numbers of a group the means of gamma dz and of
    gamma dz normal, dz the gradient behind the pool."""
    ch = tl.arange(0, CH)
    gamma = tl.load(gamma_ptr + client * CH + ch)
    average = _by_group(gamma * tl.load(sum_ptr + sample * CH + ch), G, CH) / COUNT
    slope = _by_group(gamma * tl.load(product_ptr + sample * CH + ch), G, CH) / COUNT
    mean, rstd = tl.load(mean_ptr + sample * CH + ch), tl.load(rstd_ptr + sample * CH + ch)
    return mean, rstd, gamma, average, slope


@triton.jit
def _norm_slope(h, dz, mean, rstd, gamma, average, slope):
    """dh = [h > 0] rstd (gamma dz - average - normal slope)."""
    normal = (h - mean[None, :]) * rstd[None, :]
    dr = rstd[None, :] * (gamma[None, :] * dz - average[None, :] - normal * slope[None, :])
    return tl.where(h > 0, dr, 0.0)


@triton.jit(do_not_specialize=["B"])
def _norm_gradient(
    g_ptr, which_ptr, h_ptr, mean_ptr, rstd_ptr, gamma_ptr, sum_ptr, product_ptr, dh_ptr, B,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    G: tl.constexpr, CH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of h where windows overlap: every input looks at the four that it is part of."""
    sample = tl.program_id(0).to(tl.int64)
    p, ch = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CH)
    mean, rstd, gamma, average, slope = _of_sample(
        mean_ptr, rstd_ptr, gamma_ptr, sum_ptr, product_ptr, sample, sample // B,
        H * W * (CH // G), G, CH,
    )  # fmt: skip
    g_ptr += sample * (PH * PW * CH)
    which_ptr += sample * (PH * PW * CH)
    y, x = p // W, p % W
    dz = tl.zeros((BLOCK, CH), dtype=tl.float32)
    for j in tl.static_range(4):  # the window in which this input is entry j
        wy, wx = y - j // 2, x - j % 2
        exists = (wy >= 0) & (wx >= 0) & (wy < PH) & (wx < PW) & (p < H * W)
        at = (wy * PW + wx)[:, None] * CH + ch[None, :]
        is_largest = tl.load(which_ptr + at, mask=exists[:, None], other=4).to(tl.int32) == j
        dz += tl.load(g_ptr + at, mask=exists[:, None] & is_largest, other=0.0).to(tl.float32)
    at, here = sample * (H * W * CH) + (p[:, None] * CH + ch[None, :]), p[:, None] < H * W
    h = tl.load(h_ptr + at, mask=here, other=0.0).to(tl.float32)
    tl.store(dh_ptr + at, _norm_slope(h, dz, mean, rstd, gamma, average, slope), mask=here)


@triton.jit(do_not_specialize=["B", "clients"])
def _window_gradient(
    x_ptr, g_ptr, which_ptr, h_ptr, mean_ptr, rstd_ptr, gamma_ptr, sum_ptr, product_ptr,
    dh_ptr, db_ptr, B, clients, UPDATE: tl.constexpr,
    XH: tl.constexpr, XW: tl.constexpr, CI: tl.constexpr, KH: tl.constexpr, RUN: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    G: tl.constexpr, CH: tl.constexpr, SHARE: tl.constexpr, BLOCK: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of h where windows do not overlap, four inputs at a time, over SHARE windows of
    a sample; the last ones may lie beyond the pool, or have a row or a column only.

    UPDATE: it is not written, but dw[k, o] = sum_p x[p + entry(k)] dh[p, o] of the convolution
    before (to dh_ptr), and the sum over p (to db_ptr).
    """
    sample, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    client, ch, k = sample // B, tl.arange(0, CH), tl.arange(0, BK)
    mean, rstd, gamma, average, slope = _of_sample(
        mean_ptr, rstd_ptr, gamma_ptr, sum_ptr, product_ptr, sample, client,
        H * W * (CH // G), G, CH,
    )  # fmt: skip
    wide: tl.constexpr = (W + 1) // 2
    g_ptr += sample * (PH * PW * CH)
    which_ptr += sample * (PH * PW * CH)
    h_ptr += sample * (H * W * CH)
    entry = k // RUN * (XW * CI) + k % RUN
    x_ptr += sample * (XH * XW * CI)
    acc = tl.zeros((BK, CH), dtype=tl.float32)
    db = tl.zeros((BLOCK, CH), dtype=tl.float32)
    for start in range(0, SHARE, BLOCK):
        window = part * SHARE + start + tl.arange(0, BLOCK)
        wy, wx = window // wide, window % wide
        exists = ((wy < PH) & (wx < PW))[:, None]
        behind = (wy * PW + wx)[:, None] * CH + ch[None, :]
        which = tl.load(which_ptr + behind, mask=exists, other=4).to(tl.int32)
        g = tl.load(g_ptr + behind, mask=exists, other=0.0).to(tl.float32)
        for j in tl.static_range(4):
            y, x = 2 * wy + j // 2, 2 * wx + j % 2
            inside = (y < H) & (x < W)
            at = (y * W + x)[:, None] * CH + ch[None, :]
            h = tl.load(h_ptr + at, mask=inside[:, None], other=0.0).to(tl.float32)
            dz = tl.where(which == j, g, 0.0)
            dh = _norm_slope(h, dz, mean, rstd, gamma, average, slope)
            if UPDATE:
                inputs = tl.load(
                    x_ptr + (((y * XW + x) * CI)[:, None] + entry[None, :]),
                    mask=inside[:, None] & (k[None, :] < KH * RUN),
                    other=0.0,
                )
                gradient = dh.to(x_ptr.dtype.element_ty)
                acc = tl.dot(tl.trans(inputs), gradient, acc, input_precision="tf32")
                db += dh
            else:
                tl.store(dh_ptr + sample * (H * W * CH) + at, dh, mask=inside[:, None])
    if UPDATE:
        row = (sample % B * tl.num_programs(1) + part) * clients + client
        to = dh_ptr + row * (KH * RUN * CH) + (k[:, None] * CH + ch[None, :])
        tl.store(to, acc, mask=k[:, None] < KH * RUN)
        tl.store(db_ptr + row * CH + ch, tl.sum(db, axis=0))


class Saved(NamedTuple):
    """What the backward pass needs."""

    h: Tensor
    which: Tensor  # of the four inputs of a window was the largest
    normal: Tensor  # its normalised value
    mean: Tensor  # (C, B, channels) of the sample's group, repeated for its channels
    rstd: Tensor  # 1 / deviation


class Sums(NamedTuple):
    """Of a sample's gradient: (C, B, channels)."""

    total: Tensor
    product: Tensor  # with the normalised inputs


# Positions of a program (all channels of each), measured on an H200; `WINDOWS` by its instructions.
NORM, SUMS, GRADIENT = 32, 128, 32
WINDOWS = 16
FIRST = {"parts": 4, "BP": 16, "warps": 2, "stages": 3}


def norm_pool_forward(
    h: Tensor, sums: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float, stride: int
) -> tuple[Tensor, Saved]:
    """max over 2x2 windows of GroupNorm(ReLU(h)), and what the backward pass needs; h and sums as
    `conv_sums_forward` gives them."""
    clients, batch, height, width, channels = h.shape
    ph, pw = (height - 2) // stride + 1, (width - 2) // stride + 1
    mean = torch.empty(clients, batch, channels, device=h.device, dtype=torch.float32)
    rstd = torch.empty_like(mean)
    out = torch.empty(clients, batch, ph, pw, channels, device=h.device, dtype=h.dtype)
    which = torch.empty(out.shape, device=h.device, dtype=torch.uint8)
    normal = torch.empty_like(out)
    samples = clients * batch
    launch(
        _statistics, (samples,),
        sums, mean, rstd, eps,
        PIXELS=height * width, BLOCKS=sums.shape[2], G=groups, CH=channels,
        NB=triton.next_power_of_2(sums.shape[2]), num_warps=1,
    )  # fmt: skip
    launch(
        _norm_pool, (samples, triton.cdiv(ph * pw, NORM)),
        h, mean, rstd, gamma, beta, out, which, normal, batch,
        H=height, W=width, PH=ph, PW=pw, S=stride, CH=channels, BLOCK=NORM,
    )  # fmt: skip
    return out, Saved(h, which, normal, mean, rstd)


def norm_sums(g: Tensor, saved: Saved) -> Sums:
    """What the gradient through the norm needs of a whole sample."""
    sums = Sums(torch.empty_like(saved.mean), torch.empty_like(saved.mean))
    clients, batch, ph, pw, channels = g.shape
    launch(
        _norm_sums, (clients * batch,),
        g, saved.normal, *sums, PIXELS=ph * pw, CH=channels, BLOCK=SUMS, num_warps=4,
    )  # fmt: skip
    return sums


def norm_gradient(
    g: Tensor, saved: Saved, sums: Sums, gamma: Tensor, groups: int, stride: int
) -> Tensor:
    """The gradient of h."""
    h, which, _, mean, rstd = saved
    clients, batch, height, width, channels = h.shape
    ph, pw = g.shape[2:4]
    dh = torch.empty_like(h)
    if stride == 2:
        windows = ((height + 1) // 2) * ((width + 1) // 2)
        launch(
            _window_gradient, (clients * batch, triton.cdiv(windows, WINDOWS)),
            h, g, which, h, mean, rstd, gamma, *sums, dh, dh, batch, clients, UPDATE=False,
            XH=1, XW=1, CI=1, KH=1, RUN=1, H=height, W=width, PH=ph, PW=pw,
            G=groups, CH=channels, SHARE=WINDOWS, BLOCK=WINDOWS, BK=16,
        )  # fmt: skip
    else:
        launch(
            _norm_gradient, (clients * batch, triton.cdiv(height * width, GRADIENT)),
            g, which, h, mean, rstd, gamma, *sums, dh, batch,
            H=height, W=width, PH=ph, PW=pw, G=groups, CH=channels, BLOCK=GRADIENT,
        )  # fmt: skip
    return dh


def norm_conv_update(
    x: Tensor,
    g: Tensor,
    saved: Saved,
    sums: Sums,
    gamma: Tensor,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    lr: float,
    decay: float,
) -> None:
    """One SGD step on the convolution before a norm and a pool of stride 2, where nobody needs the
    gradient of its inputs: that of h, the largest tensor of the network, is not written."""
    h, which, _, mean, rstd = saved
    clients, batch, height, width, channels = h.shape
    _, kh, kw, inputs, _ = weight.shape
    windows, block = ((height + 1) // 2) * ((width + 1) // 2), FIRST["BP"]
    share = triton.cdiv(windows, FIRST["parts"] * block) * block
    parts = triton.cdiv(windows, share)
    dw = torch.empty(batch * parts, *weight.shape, device=x.device, dtype=weight.dtype)
    db = torch.empty(batch * parts, *bias.shape, device=x.device, dtype=weight.dtype)
    launch(
        _window_gradient, (clients * batch, parts),
        x, g, which, h, mean, rstd, gamma, *sums, dw, db, batch, clients, UPDATE=True,
        XH=x.shape[2], XW=x.shape[3], CI=inputs, KH=kh, RUN=kw * inputs,
        H=height, W=width, PH=g.shape[2], PW=g.shape[3],
        G=groups, CH=channels, SHARE=share, BLOCK=block,
        BK=max(16, triton.next_power_of_2(kh * kw * inputs)),
        num_warps=FIRST["warps"], num_stages=FIRST["stages"],
    )  # fmt: skip
    descend(weight, dw, lr, decay)
    descend(bias, db, lr, decay)
