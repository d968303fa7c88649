"""Plain SGD fused into the backward pass, for sequences of stacked layers.

Which modules have such a form, and their steps; the layers are in `fused_layers`. Weights of
convolutions are kept in the kernels' layout during a phase. Stacks of linear layers need no
kernels: on a CPU, a step of 100 digit MLPs is so several times faster than by `vmap`, because it is
few calls.
"""

from typing import final

import torch
from torch import Tensor, nn

from scool.engine.machine import HAS_TRITON
from scool.engine.steps.fused_layers import (
    Layer,
    Norm,
    Rate,
    conv,
    conv_norm,
    flatten,
    linear,
    relu,
)
from scool.engine.steps.local_steps import fill
from scool.engine.steps.phases import Batch
from scool.learning.local_sgd import Rule
from scool.learning.losses import Loss, cross_entropy, sample_count
from scool.types import Tree


def takes_whole_layers(names: frozenset[str] | None, theta: Tree) -> bool:
    """Whether weights and biases are named together, as the layers update them."""
    layers = {name.rpartition(".")[0] for name in names or ()}
    return names is None or all(
        name in names for name in theta if name.rpartition(".")[0] in layers
    )


@final
class FusedStack:
    """A module as fused layers. `of` says whether a module has such a form."""

    def __init__(
        self, layers: list[Layer], convolutions: list[str], is_image: bool, is_pooled: bool
    ) -> None:
        self.layers = layers
        self.convolutions = convolutions  # names of weights kept in the kernels' layout
        self.is_image = is_image
        self.is_pooled = is_pooled  # every convolution together with its pool

    @classmethod
    def of(cls, module: nn.Module) -> "FusedStack | None":
        """None where some layer has no fused form; then the general path serves."""
        if not isinstance(module, nn.Sequential):
            return None
        children = list(module.named_children())
        is_image = isinstance(children[0][1], nn.Conv2d)
        layers: list[Layer] = []
        convolutions: list[str] = []
        has_flattened, is_pooled = False, is_image
        while children:
            name, layer = children.pop(0)
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                layers.append(linear(name))
            elif isinstance(layer, nn.Conv2d) and is_image and _is_plain_conv(layer):
                convolutions.append(f"{name}.weight")
                pooled = _relu_and_pool([child for _, child in children[:2]])
                is_pooled &= pooled
                if norm := _relu_norm_pool(layer, children[:3]):
                    layers.append(conv_norm(name, children[1][0], norm))
                    children = children[3:]
                else:
                    layers.append(conv(name, pooled))
                    children = children[2:] if pooled else children
            elif isinstance(layer, nn.ReLU):
                layers.append(relu)
            elif isinstance(layer, nn.Flatten):
                layers.append(flatten(channels_last=is_image and not has_flattened))
                has_flattened = True
            else:
                return None
        return cls(layers, convolutions, is_image, is_pooled)

    def load(self, buffers: Tree, theta: Tree, start: Tensor | None = None) -> None:
        """Copy models, or rows `start` of them, into the buffers, in their layout."""
        for name, stacked in theta.items():
            fill(buffers[name], self._packed(name, stacked), start)

    def begin(self, theta: Tree) -> Tree:
        """Fresh buffers that hold the models."""
        return {name: self._packed(name, t).clone() for name, t in theta.items()}

    def end(self, buffers: Tree, lend: bool = False) -> Tree:
        """The models in the layout of the module; lent where that is the layout of the buffer."""

        def models(name: str, t: Tensor) -> Tensor:
            if name in self.convolutions:
                t = t.permute(0, 4, 3, 1, 2)
            elif lend:
                return t
            return t.clone(memory_format=torch.contiguous_format)

        return {name: models(name, t) for name, t in buffers.items()}

    def _packed(self, name: str, stacked: Tensor) -> Tensor:
        """(C, O, CI, KH, KW) -> (C, KH, KW, CI, O)."""
        if name not in self.convolutions:
            return stacked
        return stacked.permute(0, 3, 4, 2, 1).contiguous()

    def outputs(self, theta: Tree, x: Tensor) -> Tensor:
        """(c, s, C) of inputs (c, s, ...), for evaluation."""
        packed = {name: self._packed(name, stacked) for name, stacked in theta.items()}
        with torch.no_grad():
            return self.forward(packed, x, Rate(torch.zeros((), device=x.device), 0.0))

    def forward(self, buffers: Tree, x: Tensor, rate: Rate) -> Tensor:
        if self.is_image:
            x = _channels_last(x)
        for layer in self.layers:
            x = layer(buffers, x, rate)
        return x


def _channels_last(x: Tensor) -> Tensor:
    """(C, B, H, W, channels) of images (C, B, channels, H, W); those that all clients share are
    not copied for each."""
    x = x.movedim(2, -1)
    if len(x) > 1 and x.stride(0) == 0:
        return x[:1].contiguous().expand(x.shape)
    return x.contiguous()


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
    pools = [layer for layer in layers if isinstance(layer, nn.MaxPool2d)]
    has_relu = any(isinstance(layer, nn.ReLU) for layer in layers)
    return len(pools) == 1 and has_relu and _stride(pools[0]) == 2


def _stride(pool: nn.MaxPool2d) -> int | None:
    """The stride of a 2x2 maximum without padding; None of another."""
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


@final
class FusedStepper:
    """Local steps of plain SGD: forward, and a backward pass that is also the update."""

    def __init__(
        self,
        stack: FusedStack,
        loss: Loss,
        rule: Rule,
        is_bf16: bool = False,
        are_alike: bool = True,
    ) -> None:
        """`are_alike`: samples of all classes have weight 1, as the kernel of the loss supposes."""
        self.stack, self.loss, self.rule, self.sgd = stack, loss, rule, rule.sgd
        self.is_bf16, self.has_kernel = is_bf16, loss is cross_entropy and are_alike

    def begin(self, theta: Tree, anchor: Tree | None) -> Tree:
        return self.stack.begin(theta) | self._named(self.stack.begin(anchor or {}))

    def load(
        self, buffers: Tree, theta: Tree, anchor: Tree | None, start: Tensor | None = None
    ) -> None:
        self.stack.load(buffers, theta, start)
        self.stack.load({name: buffers[f"anchor/{name}"] for name in anchor or {}}, anchor or {})

    def end(self, buffers: Tree, lend: bool = False) -> Tree:
        own = {n: t for n, t in buffers.items() if not n.startswith("anchor/")}
        return self.stack.end(own, lend)

    @staticmethod
    def _named(anchor: Tree) -> Tree:
        return {f"anchor/{name}": stacked for name, stacked in anchor.items()}

    def step(self, buffers: Tree, batch: Batch, active: Tensor) -> Tensor:
        r"""A client without samples has a zero gradient; weight decay and pull need all to be
        active. The pull, $-\eta \lambda (\theta - a)$, is weight decay plus $\eta \lambda a$; a
        push is $-\eta g$."""
        touched = torch.zeros((), device=batch.x.device, requires_grad=True)
        pulled = [n.removeprefix("anchor/") for n in buffers if n.startswith("anchor/")]
        lr, strength, only = self.sgd.lr, self.rule.strength, self.rule.only
        rate = Rate(touched, lr, self.sgd.weight_decay, strength, frozenset(pulled), only)
        with torch.enable_grad():
            x = batch.x.bfloat16() if self.is_bf16 and self.stack.is_image else batch.x
            outputs = self.stack.forward(buffers, x, rate)
            means, gradient = self._means(outputs, batch)
            torch.autograd.grad(outputs, [touched], gradient, allow_unused=True)
        for name in pulled:
            if only is None or name in only:
                share = -lr if self.rule.pushes else lr * strength
                buffers[name].add_(buffers[f"anchor/{name}"], alpha=share)
        return means

    def _means(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean loss of each client (c,), and the gradient of their sum by the outputs."""
        outputs = outputs.detach()
        if self.has_kernel and _suits_loss_kernel(outputs):
            from scool.engine.kernels.loss import mean_cross_entropy

            return mean_cross_entropy(outputs.contiguous(), batch.y.contiguous(), batch.weight)
        outputs.requires_grad_()
        values = self.loss(outputs.flatten(0, 1), batch.y.flatten(0, 1)).view_as(batch.weight)
        means = (values * batch.weight).sum(1) / sample_count(batch.weight)
        return means.detach(), torch.autograd.grad(means.sum(), outputs)[0]


def _suits_loss_kernel(outputs: Tensor) -> bool:
    """Whether a program holds the outputs (b, classes) of a client."""
    is_float32 = outputs.is_cuda and outputs.dtype == torch.float32
    return HAS_TRITON and is_float32 and outputs[0].numel() <= 2**13
