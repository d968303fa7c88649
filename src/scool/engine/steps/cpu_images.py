"""Convolutional networks on a CPU: small ones as grouped convolutions, large ones in threads.

Small ones: the clients of a chunk are groups of one convolution, (b, c * channels, height, width).
Channels last makes the maxima cheap (ten times on a CPU), and a chunk of some clients stays in the
caches, which all K at once do not. On two cores, 100 clients of a small 28x28 network: about four
times the loop over clients, where `vmap` over all of them is twice (benchmarks/2026-11-15-cpu).

Large ones: a convolution of the paper's CIFAR network already keeps a core busy, so stacking
clients only makes the temporaries larger. What pays is to give every core clients of its own
(torch releases the interpreter's lock while it computes) and channels-last images.
"""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scool.engine.steps.local_steps import one_client
from scool.engine.steps.phases import Phase, Samples, Stepper, stepwise
from scool.engine.steps.stacked import ELEMENTWISE, FLAT_FORMS, Form, Layer
from scool.learning.local_sgd import Rule
from scool.learning.losses import Loss
from scool.models import Functional, unstack
from scool.models.layers import is_plain
from scool.types import Params, Tree

CHUNK = 16  # clients at a time
LARGE = 50_000  # parameters of a convolutional network from which on stacking no longer pays


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
    """The result of `phases.stepwise`, one chunk of clients after another."""

    def rows(ids: Tensor) -> Callable[[Tree], Tree]:
        return lambda tree: {name: stacked[ids] for name, stacked in tree.items()}

    done: list[tuple[Tree, Tensor]] = []
    for ids in torch.arange(len(phase.ids)).split(CHUNK):
        part = Phase(*(None if value is None else value[ids] for value in phase))  # type: ignore
        mine = rows(ids)
        done.append(stepwise(stepper, samples, mine(theta), part, anchor and mine(anchor)))
    trained = {name: torch.cat([tree[name] for tree, _ in done]) for name in theta}
    return trained, torch.cat([losses for _, losses in done])


def suits_workers(module: nn.Module) -> bool:
    """Whether a module is a large convolutional network."""
    has_images = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    return has_images and sum(p.numel() for p in module.parameters()) >= LARGE


def by_workers(
    module: nn.Module,
    loss: Loss,
    samples: Samples,
    theta: Tree,
    phase: Phase,
    rule: Rule,
    anchor: Tree | None,
) -> tuple[Tree, Tensor]:
    """The result of `local_steps.one_by_one` for models that draw no random numbers."""
    workers = max(1, torch.get_num_threads())
    clients = list(range(len(phase.ids)))
    models = [_own_copy(module) for _ in range(workers)]

    def work(worker: int) -> list[tuple[Params, Tensor]]:
        torch.set_num_threads(1)  # of this thread
        done: list[tuple[Params, Tensor]] = []
        for client in clients[worker::workers]:
            mine = {name: _channels_last(stacked[client]) for name, stacked in theta.items()}
            own_anchor = anchor and unstack(anchor, client)
            one = phase.of(client)
            done.append(one_client(models[worker], loss, samples, mine, one, rule, own_anchor))
        return done

    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(work, range(workers)))
    torch.set_num_threads(workers)
    results = [parts[client % workers][client // workers] for client in clients]
    trained = {
        name: torch.stack([tree[name].contiguous() for tree, _ in results]) for name in theta
    }
    return trained, torch.stack([losses for _, losses in results])


def _own_copy(module: nn.Module) -> Functional:
    """Calls put parameters into the module, so each thread needs its own."""
    return Functional(copy.deepcopy(module).to(memory_format=torch.channels_last))  # type: ignore


def _channels_last(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value
