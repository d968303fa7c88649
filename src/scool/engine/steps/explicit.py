"""Forward and backward pass of stacked linear layers written out, for steps on a CPU: those of few
clients on small layers are mostly calls, and autograd doubles them. Same operations, same bits."""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from scool.engine.steps.phases import Rate
from scool.learning.losses import sample_count
from scool.types import Tree


class Means(NamedTuple):
    """Of a batch of c clients."""

    loss: Tensor  # (c,)
    gradient: Tensor  # (c, b, C) of their sum by the outputs


@final
class Explicit:
    """A sequence of `linear`, `relu` and `flatten`, each with the name of its parameters."""

    def __init__(self, layers: Sequence[tuple[str, str]]) -> None:
        self._layers = layers
        self._first = next(
            (n for n, (kind, _) in enumerate(layers) if kind == "linear"), len(layers)
        )

    def forward(self, params: Tree, x: Tensor) -> list[Tensor]:
        """What goes into each layer, and what comes out of the last."""
        seen = [x]
        for kind, name in self._layers:
            x = seen[-1]
            if kind == "linear":
                weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
                rows = x.to(weight.dtype).flatten(1, -2)
                out = torch.baddbmm(bias[:, None], rows, weight.transpose(1, 2))
                seen.append(out.view(*x.shape[:-1], -1))
            else:
                seen.append(F.relu(x) if kind == "relu" else x.flatten(2))
        return seen

    def step(self, params: Tree, seen: Sequence[Tensor], gradient: Tensor, rate: Rate) -> None:
        """Move the parameters in place, by the gradient (c, b, C) of the outputs."""
        g = gradient
        for n in range(len(self._layers) - 1, self._first - 1, -1):
            (kind, name), x = self._layers[n], seen[n]
            if kind == "relu":
                g = torch.ops.aten.threshold_backward(g, seen[n + 1], 0)
            elif kind == "flatten":
                g = g.reshape(x.shape)
            else:
                g = self._linear(params, name, x, g, rate, n > self._first)

    @staticmethod
    def _linear(
        params: Tree, name: str, x: Tensor, gradient: Tensor, rate: Rate, goes_on: bool
    ) -> Tensor:
        """The gradient of the inputs, where a layer before needs it."""
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        _, lr, decay = rate.of(f"{name}.weight")
        g, rows = gradient.flatten(1, -2).contiguous(), x.to(weight.dtype).flatten(1, -2)
        before = torch.bmm(g, weight).view(x.shape) if goes_on else g
        weight.baddbmm_(g.transpose(1, 2), rows, beta=1 - lr * decay, alpha=-lr)
        bias.mul_(1 - lr * decay).sub_(g.sum(dim=1), alpha=lr)
        return before


def mean_cross_entropy(outputs: Tensor, targets: Tensor, weight: Tensor) -> Means:
    """The mean losses of outputs (c, b, C), and their gradient; weight (c, b)."""
    rows, right = outputs.flatten(0, -2), targets.reshape(-1, 1)
    logs = F.log_softmax(rows, dim=1)
    values = logs.gather(1, right).neg_().view_as(weight)
    count = sample_count(weight)
    share = (weight * -(1 / count.to(weight.dtype))[:, None]).reshape(-1, 1)
    gradient = torch.zeros_like(logs).scatter_(1, right, share)
    gradient = torch.ops.aten._log_softmax_backward_data(gradient, logs, 1, rows.dtype)
    return Means((values * weight).sum(1) / count, gradient.view_as(outputs))
