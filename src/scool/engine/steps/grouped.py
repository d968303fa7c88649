"""Small convolutional networks on a CPU: grouped convolutions, channels last, in chunks of clients.

The clients of a chunk are groups of one convolution, (b, c * channels, height, width). Channels
last makes the maxima cheap (ten times on a CPU), and a chunk of some clients stays in the caches,
which all K at once do not. On two cores, 100 clients of a small 28x28 network: about four times
the loop over clients, where `vmap` over all of them is twice (benchmarks/2026-11-15-cpu).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scool.engine.steps.local_steps import Phase, Stepper, stepwise
from scool.engine.steps.samples import Samples
from scool.engine.steps.stacked import ELEMENTWISE, FLAT_FORMS, Form, Layer, is_plain
from scool.types import Tree

CHUNK = 16  # clients at a time


def group_module(module: nn.Module) -> Layer | None:
    """A function of (stacked parameters, inputs (c, b, ...)) with the module's outputs (c, b, C).

    None where the module is not a sequence of image layers, a flattening, and flat layers.
    """
    if type(module) is not nn.Sequential or not is_plain(module):
        return None
    if not isinstance(module[0], nn.Conv2d):
        return None
    layers: list[Layer] = []
    is_image = True
    for name, layer in module.named_children():
        if is_image and isinstance(layer, nn.Flatten):
            is_image = False
            if (layer.start_dim, layer.end_dim) != (1, -1):
                return None
            layers.append(_flatten)
            continue
        form = (_IMAGE_FORMS if is_image else FLAT_FORMS).get(type(layer))
        stacked = form(name, layer) if form else None
        if stacked is None:
            return None
        layers.append(stacked)
    if is_image:
        return None

    def forward(params: Tree, x: Tensor) -> Tensor:
        x = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
        for layer in layers:
            x = layer(params, x)
        return x

    return forward


def _flatten(params: Tree, x: Tensor) -> Tensor:
    """(b, c * channels, h, w) -> (c, b, channels * h * w)."""
    clients = len(next(iter(params.values())))
    return x.reshape(len(x), clients, -1).transpose(0, 1)


def _conv(name: str, layer: nn.Module) -> Layer | None:
    assert isinstance(layer, nn.Conv2d)
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    stride, padding, dilation = layer.stride, layer.padding, layer.dilation
    has_bias = layer.bias is not None

    def forward(params: Tree, x: Tensor) -> Tensor:
        weight = params[f"{name}.weight"]
        bias = params[f"{name}.bias"].flatten() if has_bias else None
        groups = len(weight) * layer.groups
        return F.conv2d(x, weight.flatten(0, 1), bias, stride, padding, dilation, groups)

    return forward


def _pool(name: str, layer: nn.Module) -> Layer | None:
    if isinstance(layer, nn.MaxPool2d) and layer.return_indices:
        return None
    return lambda params, x: layer(x)


def _group_norm(name: str, layer: nn.Module) -> Layer:
    assert isinstance(layer, nn.GroupNorm)

    def forward(params: Tree, x: Tensor) -> Tensor:
        groups = x.shape[1] // layer.num_channels * layer.num_groups
        weight, bias = (
            params[f"{name}.{part}"].flatten() if layer.affine else None
            for part in ("weight", "bias")
        )
        return F.group_norm(x, groups, weight, bias, layer.eps)

    return forward


_IMAGE_FORMS: dict[type[nn.Module], Form] = ELEMENTWISE | {
    nn.Conv2d: _conv,
    nn.MaxPool2d: _pool,
    nn.AvgPool2d: _pool,
    nn.AdaptiveAvgPool2d: _pool,
    nn.GroupNorm: _group_norm,
}


def by_chunks(
    stepper: Stepper, samples: Samples, theta: Tree, phase: Phase, anchor: Tree | None
) -> tuple[Tree, Tensor]:
    """The result of `steps.stepwise`, a chunk of clients after the other."""

    def rows(ids: Tensor) -> Callable[[Tree], Tree]:
        return lambda tree: {name: stacked[ids] for name, stacked in tree.items()}

    done: list[tuple[Tree, Tensor]] = []
    for ids in torch.arange(len(phase.ids)).split(CHUNK):
        part = Phase(*(None if value is None else value[ids] for value in phase))  # type: ignore
        mine = rows(ids)
        done.append(stepwise(stepper, samples, mine(theta), part, anchor and mine(anchor)))
    trained = {name: torch.cat([tree[name] for tree, _ in done]) for name in theta}
    return trained, torch.cat([losses for _, losses in done])
