"""Plain SGD fused into the backward pass, for sequences of stacked layers.

The gradient of a weight is the product of two matrices that the backward pass has at hand; adding
it to the weight inside that product (`W.baddbmm_(dY^T, X, alpha=-lr)`) saves writing 351 MB of
gradients and reading them again, each step of the paper's CIFAR run. Stacks of linear layers need
no kernels: on a CPU, a step of 100 digit MLPs is several times faster than by `vmap`, because it is
few calls. Weights of convolutions (`fused_images`) are kept in the kernels' layout during a phase.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scool.engine.machine import HAS_TRITON
from scool.engine.steps.explicit import Explicit, mean_cross_entropy
from scool.engine.steps.fused_images import channels_last, conv_layers
from scool.engine.steps.phases import Batch, Rate, fill
from scool.learning.local_sgd import Rule
from scool.learning.losses import Loss, cross_entropy, sample_count
from scool.models.layers import is_plain
from scool.types import Tree


def takes_whole_layers(names: frozenset[str] | None, theta: Tree) -> bool:
    """Whether weights and biases are named together, as the layers update them."""
    layers = {name.rpartition(".")[0] for name in names or ()}
    return names is None or all(
        name in names for name in theta if name.rpartition(".")[0] in layers
    )


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


def linear(name: str) -> Layer:
    def forward(params: Tree, x: Tensor, rate: Rate) -> Tensor:
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return _Linear.apply(x.to(weight.dtype), weight, bias, *rate.of(f"{name}.weight"))  # type: ignore

    return forward


def flatten(channels_last: bool) -> Layer:
    """Channels first, the order that the weights of the next layer expect."""

    def forward(params: Tree, x: Tensor, rate: Rate) -> Tensor:
        return (x.movedim(-1, 2) if channels_last else x).flatten(2)

    return forward


def relu(params: Tree, x: Tensor, rate: Rate) -> Tensor:
    return F.relu(x)


@final
class FusedStack:
    """A module as fused layers. `of` says whether a module has such a form."""

    def __init__(
        self,
        layers: list[Layer],
        convolutions: list[str],
        is_image: bool,
        is_pooled: bool,
        plain: list[tuple[str, str]],
    ) -> None:
        self.layers = layers
        self.explicit = None if convolutions else Explicit(plain)  # for a CPU
        self.convolutions = convolutions  # names of weights kept in the kernels' layout
        self.is_image = is_image
        self.is_pooled = is_pooled  # every convolution together with its pool

    @classmethod
    def of(cls, module: nn.Module) -> "FusedStack | None":
        """None if some layer has no fused form; then the general path is taken."""
        if type(module) is not nn.Sequential or not is_plain(module):
            return None
        children = list(module.named_children())
        is_image = in_images = type(children[0][1]) is nn.Conv2d
        layers: list[Layer] = []
        convolutions: list[str] = []
        plain: list[tuple[str, str]] = []  # where there are no convolutions
        is_pooled = is_image
        while children:
            name, layer = children.pop(0)
            if type(layer) is nn.Linear and layer.bias is not None and not in_images:
                layers.append(linear(name))
                plain.append(("linear", name))
            elif type(layer) is nn.ReLU:
                layers.append(relu)
                plain.append(("relu", name))
            elif type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
                layers.append(flatten(channels_last=in_images))
                plain.append(("flatten", name))
                in_images = False
            elif in_images and (found := conv_layers(name, layer, children)):
                layers.append(found.layer)
                convolutions.append(f"{name}.weight")
                is_pooled &= found.is_pooled
                children = children[found.taken :]
            else:
                return None
        return None if in_images else cls(layers, convolutions, is_image, is_pooled, plain)

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
        if self.explicit is not None and not x.is_cuda:
            with torch.no_grad():
                return self.explicit.forward(theta, x)[-1]
        packed = {name: self._packed(name, stacked) for name, stacked in theta.items()}
        with torch.no_grad():
            return self.forward(packed, x, Rate(torch.zeros((), device=x.device), 0.0))

    def forward(self, buffers: Tree, x: Tensor, rate: Rate) -> Tensor:
        if self.is_image:
            x = channels_last(x)
        for layer in self.layers:
            x = layer(buffers, x, rate)
        return x


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
        if self.stack.explicit is not None and not batch.x.is_cuda:
            means = self._explicit_step(self.stack.explicit, buffers, batch, rate)
        else:
            means = self._fused_step(buffers, batch, rate)
        for name in pulled:
            if only is None or name in only:
                share = -lr if self.rule.pushes else lr * strength
                buffers[name].add_(buffers[f"anchor/{name}"], alpha=share)
        return means

    def _fused_step(self, buffers: Tree, batch: Batch, rate: Rate) -> Tensor:
        with torch.enable_grad():
            x = batch.x.bfloat16() if self.is_bf16 and self.stack.is_image else batch.x
            outputs = self.stack.forward(buffers, x, rate)
            means, gradient = self._means(outputs, batch)
            torch.autograd.grad(outputs, [rate.touched], gradient, allow_unused=True)
        return means

    def _explicit_step(self, stack: Explicit, buffers: Tree, batch: Batch, rate: Rate) -> Tensor:
        """The same numbers with fewer calls."""
        with torch.no_grad():
            seen = stack.forward(buffers, batch.x)
            if self.loss is cross_entropy and seen[-1].dim() == 3:
                means, gradient = mean_cross_entropy(seen[-1], batch.y, batch.weight)
            else:
                with torch.enable_grad():
                    means, gradient = self._means(seen[-1], batch)
            stack.step(buffers, seen, gradient, rate)
        return means

    def _means(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean loss of each client (c,), and the gradient of their sum by the outputs."""
        outputs = outputs.detach()
        if self.has_kernel and _suits_loss_kernel(outputs):
            from scool.engine.kernels.loss import mean_cross_entropy as kernel

            return kernel(outputs.contiguous(), batch.y.contiguous(), batch.weight)
        outputs.requires_grad_()
        values = self.loss(outputs.flatten(0, 1), batch.y.flatten(0, 1)).view_as(batch.weight)
        means = (values * batch.weight).sum(1) / sample_count(batch.weight)
        return means.detach(), torch.autograd.grad(means.sum(), outputs)[0]


def _suits_loss_kernel(outputs: Tensor) -> bool:
    """Whether a program holds the outputs (b, classes) of a client."""
    is_float32 = outputs.is_cuda and outputs.dtype == torch.float32
    return HAS_TRITON and is_float32 and outputs[0].numel() <= 2**13
