"""Stacked layers: one forward pass for c clients, each with its own parameters.

`vmap` turns a convolution with a weight per client into a grouped convolution, which GPUs run far
below their rate when the groups are small. Here the patches are laid out once and all clients'
products are one batched matrix product; activations stay channels-last, so that nothing is
transposed on the way. On one H200, K = 100, the paper's CIFAR network, both captured: 5.2 ms a
step by `vmap`, 3.5 ms so (benchmarks/2026-11-15-engine). Modules with a layer that has no stacked
form go through `vmap` as before.
"""

import copy
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scool.models.layers import is_plain
from scool.types import Tree

Layer: TypeAlias = Callable[[Tree, Tensor], Tensor]
"""(parameters of c clients, activations (c, b, ...)) -> activations (c, b, ...).

Images are channels-last inside: (c, b, height, width, channels).
"""


def stack_module(module: nn.Module) -> Layer | None:
    """A function of (stacked parameters, inputs (c, b, ...)) with the module's outputs (c, b, C).

    None where the module is not a plain sequence of layers that have a stacked form.
    """
    if type(module) is not nn.Sequential or not is_plain(module):
        return None
    layers: list[Layer] = []
    is_image = starts_as_image = isinstance(module[0], nn.Conv2d)
    for name, layer in module.named_children():
        form = (_IMAGE_FORMS if is_image else FLAT_FORMS).get(type(layer))
        stacked = form(name, layer) if form else None
        if stacked is None:
            return None
        layers.append(stacked)
        is_image = is_image and not isinstance(layer, nn.Flatten)
    if is_image:  # the outputs would be channels-last
        return None

    def forward(params: Tree, x: Tensor) -> Tensor:
        if starts_as_image:
            x = x.movedim(2, -1)
        for layer in layers:
            x = layer(params, x)
        return x

    return forward


def _linear(name: str, layer: nn.Module) -> Layer:
    assert isinstance(layer, nn.Linear)
    has_bias = layer.bias is not None

    def forward(params: Tree, x: Tensor) -> Tensor:
        weight = params[f"{name}.weight"].transpose(1, 2)  # (c, in, out)
        rows = x.flatten(1, -2)
        if has_bias:
            out = torch.baddbmm(params[f"{name}.bias"][:, None], rows, weight)
        else:
            out = torch.bmm(rows, weight)
        return out.view(*x.shape[:-1], -1)

    return forward


def _conv(name: str, layer: nn.Module) -> Layer | None:
    """Patches times weights; stride, padding and dilation 1 or plain, one group."""
    assert isinstance(layer, nn.Conv2d)
    is_simple = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    if not is_simple or isinstance(layer.padding, str):
        return None
    (kh, kw), (sh, sw), (ph, pw) = layer.kernel_size, layer.stride, layer.padding
    has_bias = layer.bias is not None

    def forward(params: Tree, x: Tensor) -> Tensor:
        if ph or pw:
            x = F.pad(x, (0, 0, pw, pw, ph, ph))
        patches = x.unfold(2, kh, sh).unfold(3, kw, sw)  # (c, b, oh, ow, channels, kh, kw) a view
        c, b, oh, ow = patches.shape[:4]
        weight = params[f"{name}.weight"].flatten(2).transpose(1, 2)  # (c, channels kh kw, out)
        rows = patches.reshape(c, b * oh * ow, -1)
        if has_bias:
            out = torch.baddbmm(params[f"{name}.bias"][:, None], rows, weight)
        else:
            out = torch.bmm(rows, weight)
        return out.view(c, b, oh, ow, -1)

    return forward


def _max_pool(name: str, layer: nn.Module) -> Layer | None:
    """The largest of each window."""
    assert isinstance(layer, nn.MaxPool2d)
    size, stride = _pair(layer.kernel_size), _pair(layer.stride)
    if _pair(layer.padding) != (0, 0) or _pair(layer.dilation) != (1, 1) or layer.ceil_mode:
        return None
    return None if layer.return_indices else _images(lambda x: F.max_pool2d(x, size, stride))


def _average_pool(name: str, layer: nn.Module) -> Layer:
    assert isinstance(layer, (nn.AvgPool2d, nn.AdaptiveAvgPool2d))
    return _images(layer)


def _images(pool: Callable[[Tensor], Tensor]) -> Layer:
    """A function of images (n, channels, height, width) on those of all clients at once."""

    def forward(params: Tree, x: Tensor) -> Tensor:
        folded = x.flatten(0, 1).permute(0, 3, 1, 2)  # channels_last
        return pool(folded).permute(0, 2, 3, 1).unflatten(0, x.shape[:2])

    return forward


def _group_norm(name: str, layer: nn.Module) -> Layer:
    assert isinstance(layer, nn.GroupNorm)
    groups, eps, affine = layer.num_groups, layer.eps, layer.affine

    def forward(params: Tree, x: Tensor) -> Tensor:
        c, b, height, width, channels = x.shape
        parts = x.reshape(c, b, height * width, groups, channels // groups)
        var, mean = torch.var_mean(parts, dim=(2, 4), keepdim=True, correction=0)
        x = ((parts - mean) * torch.rsqrt(var + eps)).view(c, b, height, width, channels)
        if not affine:
            return x
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return x * weight[:, None, None, None] + bias[:, None, None, None]

    return forward


def _layer_norm(name: str, layer: nn.Module) -> Layer | None:
    """Over the last axis, of vectors."""
    assert isinstance(layer, nn.LayerNorm)
    shape, eps = layer.normalized_shape, layer.eps
    if len(shape) != 1 or not layer.elementwise_affine or layer.bias is None:
        return None

    def forward(params: Tree, x: Tensor) -> Tensor:
        per_client = (len(x), *[1] * (x.dim() - 2), -1)
        weight, bias = (params[f"{name}.{part}"].view(per_client) for part in ("weight", "bias"))
        return F.layer_norm(x, shape, eps=eps) * weight + bias

    return forward


def _flatten(name: str, layer: nn.Module) -> Layer | None:
    assert isinstance(layer, nn.Flatten)
    is_whole = (layer.start_dim, layer.end_dim) == (1, -1)
    return (lambda params, x: x.flatten(2)) if is_whole else None


def _flatten_image(name: str, layer: nn.Module) -> Layer | None:
    """To the order that the weights of the next linear layer expect: channels first."""
    flat = _flatten(name, layer)
    return (lambda params, x: x.movedim(-1, 2).flatten(2)) if flat else None


def _elementwise(name: str, layer: nn.Module) -> Layer:
    """Number by number: the layer itself, never in place."""
    layer = copy.deepcopy(layer)
    if hasattr(layer, "inplace"):
        layer.inplace = False  # type: ignore
    return lambda params, x: layer(x)


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value, value)


Form: TypeAlias = Callable[[str, nn.Module], Layer | None]
ELEMENTWISE: dict[type[nn.Module], Form] = {
    kind: _elementwise
    for kind in (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Identity)
}
FLAT_FORMS: dict[type[nn.Module], Form] = ELEMENTWISE | {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.Flatten: _flatten,
}
_IMAGE_FORMS: dict[type[nn.Module], Form] = ELEMENTWISE | {
    nn.Conv2d: _conv,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool2d: _average_pool,
    nn.GroupNorm: _group_norm,
    nn.Flatten: _flatten_image,
}
