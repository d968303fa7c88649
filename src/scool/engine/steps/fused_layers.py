"""Layers of stacked clients whose backward pass is also the step of plain SGD.

The gradient of a weight is the product of two matrices that the backward pass has at hand; adding
it to the weight inside that product (`W.baddbmm_(dY^T, X, alpha=-lr)`) saves writing 351 MB of
gradients and reading them again, each step of the paper's CIFAR run. Convolutions, norms and 2x2
pools go through the Triton kernels of `triton_layers` and `triton_norm`, on a GPU only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from scool.engine.machine import HAS_TRITON
from scool.types import Tree


class Rate(NamedTuple):
    """What the update in the backward pass needs to know."""

    touched: Tensor  # a scalar that requires a gradient, so that every layer is visited
    lr: float
    decay: float = 0.0
    strength: float = 0.0  # of the pull, which is a decay and something added afterwards
    pulled: frozenset[str] = frozenset()  # tensors with an anchor
    only: frozenset[str] | None = None  # tensors that learn

    def of(self, weight: str) -> tuple[Tensor, float, float]:
        """What a layer with that weight does; one that does not learn takes steps of length 0."""
        learns = self.only is None or weight in self.only
        pull = self.strength if weight in self.pulled else 0.0
        return self.touched, self.lr * learns, (self.decay + pull) * learns


Layer: TypeAlias = Callable[[Tree, Tensor, Rate], Tensor]


def _suits_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel takes inputs (C, B, I): its block holds the whole batch."""
    is_float32 = weight.is_cuda and weight.dtype == torch.float32 and x.is_contiguous()
    return HAS_TRITON and is_float32 and x.shape[1] <= 64


class _Linear(torch.autograd.Function):
    """y = x W^T + b for every client; the backward pass takes the step on W and b."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, touched: Tensor, lr: float, decay: float
    ) -> Tensor:
        rows = x.flatten(1, -2)
        ctx.save_for_backward(rows)
        ctx.weight, ctx.bias, ctx.lr, ctx.keep = weight, bias, lr, 1 - lr * decay
        ctx.shape = x.shape
        out = torch.baddbmm(bias[:, None], rows, weight.transpose(1, 2))
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,), g = ctx.saved_tensors, grads[0].flatten(1, -2).contiguous()
        if _suits_kernel(x, ctx.weight):
            from scool.engine.kernels.linear import linear_backward

            needs_dx = ctx.needs_input_grad[0]
            dx = linear_backward(x, g, ctx.weight, ctx.bias, ctx.lr, ctx.keep, needs_dx)
            return None if dx is None else dx.view(ctx.shape), None, None, None, None, None
        dx = torch.bmm(g, ctx.weight).view(ctx.shape) if ctx.needs_input_grad[0] else None
        ctx.weight.baddbmm_(g.transpose(1, 2), x, beta=ctx.keep, alpha=-ctx.lr)
        ctx.bias.mul_(ctx.keep).sub_(g.sum(dim=1), alpha=ctx.lr)
        return dx, None, None, None, None, None


class _Conv(torch.autograd.Function):
    """A convolution for every client, with a 2x2 maximum and a ReLU behind it where `pooled`.

    The backward pass takes the step on the weights. The maximum and the ReLU commute, gradients
    included, so the order in which a module has them does not matter.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        pooled: bool,
        touched: Tensor,
        lr: float,
        decay: float,
    ) -> Tensor:
        from scool.engine.kernels.layers import conv_forward, conv_pool_forward

        ctx.weight, ctx.bias, ctx.lr, ctx.decay = weight, bias, lr, decay
        out, which = (
            conv_pool_forward(x, weight, bias) if pooled else (conv_forward(x, weight, bias), None)
        )
        ctx.save_for_backward(x, which)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from scool.engine.kernels.layers import conv_input_gradient, conv_update, pool_backward

        (x, which), g = ctx.saved_tensors, grads[0].contiguous()
        if which is not None:
            height, width = (x.shape[n] - ctx.weight.shape[n - 1] + 1 for n in (2, 3))
            g = pool_backward(g, which, height, width)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = conv_input_gradient(g, ctx.weight, x.shape[2], x.shape[3])
        conv_update(x, g, ctx.weight, ctx.bias, ctx.lr, ctx.decay)
        return dx, None, None, None, None, None, None


class Norm(NamedTuple):
    """A GroupNorm between a ReLU and a 2x2 maximum."""

    groups: int
    eps: float
    stride: int  # of the maximum


class _ConvNormPool(torch.autograd.Function):
    """A convolution, ReLU, GroupNorm and a 2x2 maximum for every client; the backward pass takes
    the steps."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        gamma: Tensor,
        beta: Tensor,
        norm: Norm,
        touched: Tensor,
        conv_rate: tuple[float, float],
        norm_rate: tuple[float, float],
    ) -> Tensor:
        from scool.engine.kernels.layers import conv_sums_forward
        from scool.engine.kernels.norm import norm_pool_forward

        h, sums = conv_sums_forward(x, weight, bias)
        out, saved = norm_pool_forward(h, sums, gamma, beta, norm.groups, norm.eps, norm.stride)
        ctx.save_for_backward(x, *saved)
        ctx.conv, ctx.norm = (weight, bias, *conv_rate), (gamma, beta, *norm_rate)
        ctx.groups, ctx.stride = norm.groups, norm.stride
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from scool.engine.kernels.layers import conv_input_gradient, conv_update, descend
        from scool.engine.kernels.norm import Saved, norm_conv_update, norm_gradient, norm_sums

        x, *rest = ctx.saved_tensors
        g, saved = grads[0].contiguous(), Saved(*rest)
        (weight, *_), (gamma, beta, *rate) = ctx.conv, ctx.norm
        sums, dx = norm_sums(g, saved), None
        is_small = ctx.stride == 2 and weight[0, ..., 0].numel() <= MOST_ENTRIES
        if is_small and not ctx.needs_input_grad[0]:
            norm_conv_update(x, g, saved, sums, gamma, ctx.groups, *ctx.conv)
        else:
            dh = norm_gradient(g, saved, sums, gamma, ctx.groups, ctx.stride)
            if ctx.needs_input_grad[0]:
                dx = conv_input_gradient(dh, weight, x.shape[2], x.shape[3])
            conv_update(x, dh, *ctx.conv)
        descend(gamma, sums.product.transpose(0, 1), *rate)
        descend(beta, sums.total.transpose(0, 1), *rate)
        return dx, *[None] * 8


MOST_ENTRIES = 64  # of a filter that a program holds as a whole


def conv_norm(conv: str, name: str, norm: Norm) -> Layer:
    def forward(params: Tree, x: Tensor, rate: Rate) -> Tensor:
        weight, bias = params[f"{conv}.weight"], params[f"{conv}.bias"]
        gamma, beta = params[f"{name}.weight"], params[f"{name}.bias"]
        rates = [rate.of(f"{layer}.weight")[1:] for layer in (conv, name)]
        return _ConvNormPool.apply(x, weight, bias, gamma, beta, norm, rate.touched, *rates)  # type: ignore

    return forward


def linear(name: str) -> Layer:
    def forward(params: Tree, x: Tensor, rate: Rate) -> Tensor:
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return _Linear.apply(x.to(weight.dtype), weight, bias, *rate.of(f"{name}.weight"))  # type: ignore

    return forward


def conv(name: str, pooled: bool) -> Layer:
    def forward(params: Tree, x: Tensor, rate: Rate) -> Tensor:
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return _Conv.apply(x, weight, bias, pooled, *rate.of(f"{name}.weight"))  # type: ignore

    return forward


def flatten(channels_last: bool) -> Layer:
    """Channels first, the order that the weights of the next layer expect."""

    def forward(params: Tree, x: Tensor, rate: Rate) -> Tensor:
        return (x.movedim(-1, 2) if channels_last else x).flatten(2)

    return forward


def relu(params: Tree, x: Tensor, rate: Rate) -> Tensor:
    return F.relu(x)
