"""Linear layers of stacked clients: the backward pass and the SGD step in one reading of W.

With ten samples per client a linear layer is bound by reading its weights. The gradient of the
inputs and the update both need W; done apart, 328 MB of the paper's CIFAR network are read twice in
every step.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scool.engine.kernels.launch import launch


@triton.jit(do_not_specialize=["B"])
def _linear_backward(
    x_ptr, g_ptr, w_ptr, bias_ptr, dx_ptr, B, lr, keep,
    NI: tl.constexpr, NO: tl.constexpr, HAS_DX: tl.constexpr,
    BB: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """dx[b, i] = sum_o g[b, o] w[o, i];  w[o, i] <- keep w[o, i] - lr sum_b g[b, o] x[b, i]."""
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BI + tl.arange(0, BI)
    b = tl.arange(0, BB)
    at = (client * B + b[:, None]) * NI + i[None, :]
    here = (b[:, None] < B) & (i[None, :] < NI)
    x = tl.load(x_ptr + at, mask=here, other=0.0)
    dx = tl.zeros((BB, BI), dtype=tl.float32)
    for start in range(0, NO, BO):
        o = start + tl.arange(0, BO)
        g = tl.load(
            g_ptr + (client * B + b[:, None]) * NO + o[None, :],
            mask=(b[:, None] < B) & (o[None, :] < NO),
            other=0.0,
        )
        w_at = w_ptr + (client * NO + o[:, None]) * NI + i[None, :]
        w_here = (o[:, None] < NO) & (i[None, :] < NI)
        w = tl.load(w_at, mask=w_here, other=0.0)
        if HAS_DX:
            dx = tl.dot(g, w.to(g.dtype), dx, input_precision="tf32")
        dw = tl.dot(tl.trans(g), x, input_precision="tf32")
        tl.store(w_at, keep * w - lr * dw, mask=w_here)
        if tl.program_id(0) == 0:
            bias_at = bias_ptr + client * NO + o
            bias = tl.load(bias_at, mask=o < NO, other=0.0)
            step = tl.sum(g.to(tl.float32), axis=0)
            tl.store(bias_at, keep * bias - lr * step, mask=o < NO)
    if HAS_DX:
        tl.store(dx_ptr + at, dx, mask=here)


TILE = {"BI": 64, "BO": 32, "warps": 2, "stages": 3}  # measured: benchmarks/2026-11-15-engine


def linear_backward(
    x: Tensor, g: Tensor, weight: Tensor, bias: Tensor, lr: float, keep: float, needs_dx: bool
) -> Tensor | None:
    """The gradient of the inputs (C, B, I), and one SGD step on weights and bias in place."""
    clients, batch, inputs = x.shape
    outputs = weight.shape[1]
    dx = torch.empty_like(x) if needs_dx else None
    launch(
        _linear_backward, (triton.cdiv(inputs, TILE["BI"]), clients),
        x, g, weight, bias, x if dx is None else dx, batch, lr, keep,
        NI=inputs, NO=outputs, HAS_DX=needs_dx,
        BB=max(16, triton.next_power_of_2(batch)), BI=TILE["BI"],
        BO=min(TILE["BO"], max(16, triton.next_power_of_2(outputs))),
        num_warps=TILE["warps"], num_stages=TILE["stages"],
    )  # fmt: skip
    return dx
