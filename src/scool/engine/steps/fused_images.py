"""Convolutions of stacked clients whose backward pass is also the step of plain SGD.

Together with the ReLU, GroupNorm and 2x2 pool behind them they go through the Triton kernels, on a
GPU only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from scool.engine.steps.phases import Rate
from scool.types import Tree

Layer: TypeAlias = Callable[[Tree, Tensor, Rate], Tensor]


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


def conv(name: str, pooled: bool) -> Layer:
    def forward(params: Tree, x: Tensor, rate: Rate) -> Tensor:
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return _Conv.apply(x, weight, bias, pooled, *rate.of(f"{name}.weight"))  # type: ignore

    return forward


# ---------------------------------------------------------------------- which layers suit them


class Convolution(NamedTuple):
    """A convolution together with the layers behind it that it can take in."""

    layer: Layer
    taken: int  # layers behind it
    is_pooled: bool


def conv_layers(
    name: str, layer: nn.Module, behind: list[tuple[str, nn.Module]]
) -> Convolution | None:
    """None if the kernels cannot take the layer."""
    if type(layer) is not nn.Conv2d or not _is_plain_conv(layer):
        return None
    if norm := _relu_norm_pool(layer, behind[:3]):
        return Convolution(conv_norm(name, behind[0][0], norm), 3, False)
    is_pooled = _relu_and_pool([child for _, child in behind[:2]])
    return Convolution(conv(name, is_pooled), 2 if is_pooled else 0, is_pooled)


def _is_plain_conv(layer: nn.Conv2d) -> bool:
    return (
        layer.bias is not None
        and layer.groups == 1
        and layer.stride == (1, 1)
        and layer.dilation == (1, 1)
        and layer.padding in (0, (0, 0))
        and layer.out_channels <= 128  # one block of the kernels holds all outputs
    )


def _relu_and_pool(layers: list[nn.Module]) -> bool:
    """A ReLU and a plain 2x2 maximum, in either order."""
    pools = [layer for layer in layers if type(layer) is nn.MaxPool2d]
    has_relu = any(type(layer) is nn.ReLU for layer in layers)
    return len(pools) == 1 and has_relu and _stride(pools[0]) == 2


def _stride(pool: nn.MaxPool2d) -> int | None:
    """The stride of a 2x2 maximum without padding; None for any other pool."""
    size, stride, padding, dilation = (
        (value, value) if isinstance(value, int) else tuple(value)
        for value in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    )
    is_plain = (size, padding, dilation) == ((2, 2), (0, 0), (1, 1)) and stride[0] == stride[1]
    return stride[0] if is_plain and not pool.ceil_mode and not pool.return_indices else None


def _relu_norm_pool(conv: nn.Conv2d, layers: list[tuple[str, nn.Module]]) -> Norm | None:
    """ReLU, GroupNorm, 2x2 maximum with stride 1 or 2, in this order; None where it is another."""
    if [type(layer) for _, layer in layers] != [nn.ReLU, nn.GroupNorm, nn.MaxPool2d]:
        return None
    (_, _), (_, norm), (_, pool) = layers
    assert isinstance(norm, nn.GroupNorm) and isinstance(pool, nn.MaxPool2d)
    stride, sizes = _stride(pool), (conv.out_channels, norm.num_groups)
    is_power = all(size & (size - 1) == 0 for size in sizes)  # the kernels' blocks
    if stride not in (1, 2) or not norm.affine or not is_power:
        return None
    return Norm(norm.num_groups, norm.eps, stride)


def channels_last(x: Tensor) -> Tensor:
    """(C, B, H, W, channels) of images (C, B, channels, H, W); those that all clients share are
    not copied for each."""
    x = x.movedim(2, -1)
    if len(x) > 1 and x.stride(0) == 0:
        return x[:1].contiguous().expand(x.shape)
    return x.contiguous()
