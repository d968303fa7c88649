"""The mean cross entropy of stacked clients and its gradient, in one kernel.

For ten samples of ten classes a client there is nothing to compute; as single operations of torch,
forward and backward, it is some fifteen kernels, each of which costs a step its launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scool.engine.kernels.launch import launch


@triton.jit(do_not_specialize=["B"])
def _mean_cross_entropy(
    z_ptr, y_ptr, weight_ptr, mean_ptr, g_ptr, B,
    NC: tl.constexpr, BB: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """mean = sum_b share[b] (log sum_c exp z[b, c] - z[b, y[b]]), share = weight / sum weight;
    g[b, c] = share[b] (softmax(z[b])[c] - [c = y[b]])."""
    client = tl.program_id(0).to(tl.int64)
    b, c = tl.arange(0, BB), tl.arange(0, BC)
    at = (client * B + b[:, None]) * NC + c[None, :]
    here = (b[:, None] < B) & (c[None, :] < NC)
    z = tl.load(z_ptr + at, mask=here, other=float("-inf"))
    z = tl.where(b[:, None] < B, z, 0.0)  # rows beyond the batch: any finite numbers
    is_right = c[None, :] == tl.load(y_ptr + client * B + b, mask=b < B, other=0)[:, None]
    weight = tl.load(weight_ptr + client * B + b, mask=b < B, other=0.0)
    share = weight / tl.maximum(tl.sum(weight, axis=0), 1.0)
    top = tl.max(z, axis=1)
    powers = tl.exp(z - top[:, None])
    total = tl.sum(powers, axis=1)
    loss = tl.log(total) + top - tl.sum(tl.where(is_right, z, 0.0), axis=1)
    tl.store(mean_ptr + client, tl.sum(share * loss, axis=0))
    g = share[:, None] * (powers / total[:, None] - is_right.to(tl.float32))
    tl.store(g_ptr + at, g, mask=here)


def mean_cross_entropy(outputs: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The mean losses (C,) of outputs (C, B, classes), and the gradient of their sum.

    Args:
        targets: (C, B) right classes.
        weight: (C, B), 1 for a sample and 0 for padding.
    """
    clients, batch, classes = outputs.shape
    means = torch.empty(clients, device=outputs.device, dtype=outputs.dtype)
    gradient = torch.empty_like(outputs)
    launch(
        _mean_cross_entropy, (clients,),
        outputs, targets, weight, means, gradient, batch,
        NC=classes, BB=triton.next_power_of_2(batch), BC=triton.next_power_of_2(classes),
    )  # fmt: skip
    return means, gradient
