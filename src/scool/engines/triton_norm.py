"""ReLU, group normalisation and a 2x2 maximum of stacked clients, in a few readings of the input.

One after another in torch they read and write the outputs of a convolution some twenty times; those
of the first layer of the paper's MiniImageNet network are 860 MB for a hundred clients. Here: once
for the statistics, once to normalise and pool, and once for the gradient, whose sums need only the
largest of each window.

Layouts: activations (C, B, H, W, channels), channels last; gamma and beta (C, channels).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from scool.engines.triton_launch import launch


@triton.jit
def _by_group(sums, G: tl.constexpr, CH: tl.constexpr):
    """(CH,) numbers a channel -> (CH,) the sum over each channel's group."""
    grouped = tl.sum(tl.reshape(sums, (G, CH // G)), axis=1)
    return tl.reshape(tl.broadcast_to(grouped[:, None], (G, CH // G)), (CH,))


@triton.jit
def _statistics(
    h_ptr, mean_ptr, rstd_ptr, eps,
    PIXELS: tl.constexpr, G: tl.constexpr, CH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / standard deviation of relu(h) over each group of one sample."""
    sample = tl.program_id(0).to(tl.int64)
    ch = tl.arange(0, CH)
    total = tl.zeros((CH,), dtype=tl.float32)
    square = tl.zeros((CH,), dtype=tl.float32)
    h_ptr += sample * (PIXELS * CH)
    for start in range(0, PIXELS, BLOCK):
        p = start + tl.arange(0, BLOCK)
        at = p[:, None] * CH + ch[None, :]
        h = tl.maximum(tl.load(h_ptr + at, mask=p[:, None] < PIXELS, other=0.0), 0.0)
        h = h.to(tl.float32)
        total += tl.sum(h, axis=0)
        square += tl.sum(h * h, axis=0)
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
    sample = tl.program_id(1).to(tl.int64)
    client = sample // B
    p, ch = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CH)
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


@triton.jit(do_not_specialize=["B"])
def _norm_gradient(
    g_ptr, which_ptr, h_ptr, mean_ptr, rstd_ptr, gamma_ptr, sum_ptr, product_ptr, dh_ptr, B,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    S: tl.constexpr, G: tl.constexpr, CH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dh = [h > 0] rstd (gamma dz - mean(gamma dz) - normal mean(gamma dz normal)), dz the gradient
    behind the pool, the means over the group."""
    sample = tl.program_id(1).to(tl.int64)
    client = sample // B
    p, ch = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CH)
    here = p[:, None] < H * W
    mean = tl.load(mean_ptr + sample * CH + ch)
    rstd = tl.load(rstd_ptr + sample * CH + ch)
    gamma = tl.load(gamma_ptr + client * CH + ch)
    count = H * W * (CH // G)
    average = _by_group(gamma * tl.load(sum_ptr + sample * CH + ch), G, CH) / count
    slope = _by_group(gamma * tl.load(product_ptr + sample * CH + ch), G, CH) / count
    y, x = p // W, p % W
    g_ptr += sample * (PH * PW * CH)
    which_ptr += sample * (PH * PW * CH)
    if S == 2:  # one window has this input, as the entry of its parities
        wy, wx, entry = y // 2, x // 2, y % 2 * 2 + x % 2
        exists = ((wy < PH) & (wx < PW) & (p < H * W))[:, None]
        at = (wy * PW + wx)[:, None] * CH + ch[None, :]
        which = tl.load(which_ptr + at, mask=exists, other=4).to(tl.int32)
        g = tl.load(g_ptr + at, mask=exists, other=0.0).to(tl.float32)
        dz = tl.where(which == entry[:, None], g, 0.0)
    else:
        dz = tl.zeros((BLOCK, CH), dtype=tl.float32)
        for j in tl.static_range(4):  # the window in which this input is entry j
            wy, wx = y - j // 2, x - j % 2
            exists = (wy >= 0) & (wx >= 0) & (wy < PH) & (wx < PW) & (p < H * W)
            at = (wy * PW + wx)[:, None] * CH + ch[None, :]
            is_largest = tl.load(which_ptr + at, mask=exists[:, None], other=4).to(tl.int32) == j
            dz += tl.load(g_ptr + at, mask=exists[:, None] & is_largest, other=0.0).to(tl.float32)
    first, at = sample * (H * W * CH), p[:, None] * CH + ch[None, :]
    h = tl.load(h_ptr + first + at, mask=here, other=0.0).to(tl.float32)
    normal = (tl.maximum(h, 0.0) - mean[None, :]) * rstd[None, :]
    dr = rstd[None, :] * (gamma[None, :] * dz - average[None, :] - normal * slope[None, :])
    tl.store(dh_ptr + first + at, tl.where(h > 0, dr, 0.0), mask=here)


class Saved(NamedTuple):
    """What the backward pass needs."""

    h: Tensor
    which: Tensor  # of the four inputs of a window was the largest
    normal: Tensor  # its normalised value
    mean: Tensor  # (C, B, channels) of the sample's group, repeated for its channels
    rstd: Tensor  # 1 / deviation


# Positions of a program (all channels of each), measured on an H200.
STATISTICS, NORM, SUMS, GRADIENT = 256, 32, 128, 32


def norm_pool_forward(
    h: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float, stride: int
) -> tuple[Tensor, Saved]:
    """max over 2x2 windows of GroupNorm(ReLU(h)), and what the backward pass needs."""
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
        h, mean, rstd, eps,
        PIXELS=height * width, G=groups, CH=channels, BLOCK=STATISTICS, num_warps=4,
    )  # fmt: skip
    launch(
        _norm_pool, (triton.cdiv(ph * pw, NORM), samples),
        h, mean, rstd, gamma, beta, out, which, normal, batch,
        H=height, W=width, PH=ph, PW=pw, S=stride, CH=channels, BLOCK=NORM,
    )  # fmt: skip
    return out, Saved(h, which, normal, mean, rstd)


def norm_pool_backward(
    g: Tensor, saved: Saved, gamma: Tensor, groups: int, stride: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of h, gamma and beta."""
    h, which, normal, mean, rstd = saved
    clients, batch, height, width, channels = h.shape
    ph, pw = g.shape[2:4]
    total, product = torch.empty_like(mean), torch.empty_like(mean)
    dh = torch.empty_like(h)
    samples = clients * batch
    launch(
        _norm_sums, (samples,),
        g, normal, total, product,
        PIXELS=ph * pw, CH=channels, BLOCK=SUMS, num_warps=4,
    )  # fmt: skip
    launch(
        _norm_gradient, (triton.cdiv(height * width, GRADIENT), samples),
        g, which, h, mean, rstd, gamma, total, product, dh, batch,
        H=height, W=width, PH=ph, PW=pw, S=stride, G=groups, CH=channels, BLOCK=GRADIENT,
    )  # fmt: skip
    return dh, product.sum(dim=1), total.sum(dim=1)
