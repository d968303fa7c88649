"""A batch of images in one kernel: look up, crop, flip, jitter, normalise, channels last.

As single torch operations this is some fifteen kernels over a batch of 12 MB; here each pixel is
read once and written once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scool.data.transform import ImageTransform, constants
from scool.engine.kernels.launch import launch


@triton.jit(do_not_specialize=["H", "W", "PAD", "FILL"])
def _images(
    pool_ptr, row_ptr, draws_ptr, scale_ptr, shift_ptr, out_ptr, H, W, PAD, FILL, low, span,
    CH: tl.constexpr, AUGMENT: tl.constexpr, FLIP: tl.constexpr, JITTER: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out[n, y, x, c] = scale[c] * jitter(pool[row[n], c, source(y, x)]) + shift[c]."""
    n = tl.program_id(0).to(tl.int64)  # there may be more than the 65,535 of another axis
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = at < H * W
    y, x = at // W, at % W
    image = tl.load(row_ptr + n)
    inside = exists
    if AUGMENT:
        if FLIP:
            x = tl.where(tl.load(draws_ptr + 4 * n + 2) < 0.5, W - 1 - x, x)
        y += (tl.load(draws_ptr + 4 * n) * (2 * PAD + 1)).to(tl.int32) - PAD
        x += (tl.load(draws_ptr + 4 * n + 1) * (2 * PAD + 1)).to(tl.int32) - PAD
        inside = exists & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    source = pool_ptr + image * CH * H * W + y * W + x
    to = out_ptr + (n * H * W + at) * CH
    if CH == 3:
        red = tl.load(source, mask=inside, other=FILL).to(tl.float32)
        green = tl.load(source + H * W, mask=inside, other=FILL).to(tl.float32)
        blue = tl.load(source + 2 * H * W, mask=inside, other=FILL).to(tl.float32)
        if AUGMENT and JITTER:
            factor = (low + tl.load(draws_ptr + 4 * n + 3) * span).to(tl.float32)
            grey = 0.299 * red + 0.587 * green + 0.114 * blue
            red = tl.minimum(tl.maximum(grey + factor * (red - grey), 0.0), 255.0)
            green = tl.minimum(tl.maximum(grey + factor * (green - grey), 0.0), 255.0)
            blue = tl.minimum(tl.maximum(grey + factor * (blue - grey), 0.0), 255.0)
        tl.store(to, red * tl.load(scale_ptr) + tl.load(shift_ptr), mask=exists)
        tl.store(to + 1, green * tl.load(scale_ptr + 1) + tl.load(shift_ptr + 1), mask=exists)
        tl.store(to + 2, blue * tl.load(scale_ptr + 2) + tl.load(shift_ptr + 2), mask=exists)
    else:
        grey = tl.load(source, mask=inside, other=FILL).to(tl.float32)
        tl.store(to, grey * tl.load(scale_ptr) + tl.load(shift_ptr), mask=exists)


def fetch_images(
    pool: Tensor, rows: Tensor, draws: Tensor | None, transform: ImageTransform, dtype: torch.dtype
) -> Tensor:
    """Images `rows` (...,) of a uint8 pool (N, C, H, W), prepared by `transform`.

    Returns:
        (..., C, H, W), channels last in memory; what `transform.augment` gives, up to rounding.
    """
    _, channels, height, width = pool.shape
    out = torch.empty(*rows.shape, height, width, channels, device=pool.device, dtype=dtype)
    scale, shift, _ = constants(transform, pool.device)
    low = max(0.0, 1 - transform.saturation)
    block = min(1024, triton.next_power_of_2(height * width))
    launch(
        _images, (rows.numel(), triton.cdiv(height * width, block)),
        pool, rows.contiguous(), pool if draws is None else draws.contiguous(), scale, shift, out,
        height, width, transform.padding, transform.fill, low, 1 + transform.saturation - low,
        CH=channels, AUGMENT=draws is not None, FLIP=transform.flip,
        JITTER=transform.saturation > 0, BLOCK=block,
    )  # fmt: skip
    return out.movedim(-1, -3)
