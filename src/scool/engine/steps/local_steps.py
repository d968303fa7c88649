"""The hot loop: local SGD of many clients, in formulations that give the same result."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from scool.engine.steps.samples import Samples
from scool.engine.steps.stacked import Layer
from scool.learning.local_sgd import LocalSGD, Rule
from scool.learning.losses import Loss
from scool.models import Functional, unstack
from scool.randomness import advance
from scool.types import Params, Tree


class Batch(NamedTuple):
    """One local step of c clients."""

    x: Tensor  # (c, b, ...)
    y: Tensor  # (c, b, ...)
    weight: Tensor  # (c, b): 1 for a sample, 0 for padding
    stream: Tensor | None = None  # (c,) of what the models draw in this step


class Phase(NamedTuple):
    """The samples of one local phase of c clients, S steps of b samples."""

    ids: Tensor  # (c,) the clients
    position: Tensor  # (c, S, b) entries of each client's own list
    weight: Tensor  # (c, S, b): 1 for a sample, 0 for padding
    active: Tensor  # (c, S): 1 where a client takes the step
    draws: Tensor | None  # (c, S, b, d) random numbers of the augmentation
    stream: Tensor | None = None  # (c,) of what the models draw in this round
    start: Tensor | None = None  # (c,) whose model each begins with; None: one row each

    def begin(self, theta: Tree) -> Tree:
        """The models (c, ...) to begin with."""
        return theta if self.start is None else {n: t[self.start] for n, t in theta.items()}

    def of(self, client: int) -> "Phase":
        """The phase of one client alone."""
        return Phase(*(None if part is None else part[client : client + 1] for part in self))  # type: ignore


def batch_at(samples: Samples, phase: Phase, step: Tensor) -> Batch:
    """The batch of a step, whose number (1,) stays on the device: reading it would wait."""
    position = phase.position.index_select(1, step)[:, 0]
    draws = None if phase.draws is None else phase.draws.index_select(1, step)[:, 0]
    x, y = samples.fetch(phase.ids, position, draws)
    stream = None if phase.stream is None else advance(phase.stream, step)
    return Batch(x, y, phase.weight.index_select(1, step)[:, 0], stream)


Gradient: TypeAlias = Callable[[Tree, Batch], tuple[Tree, Tensor]]
"""(models (c, ...), batch) -> gradients (c, ...) and the mean loss of each client (c,)."""


def vmap_gradient(model: Functional, loss: Loss) -> Gradient:
    """Any module: `vmap` of one client's gradient over the client axis."""

    def objective(params: Params, x: Tensor, y: Tensor, weight: Tensor, stream: Tensor) -> Tensor:
        with model.drawing(stream):
            values = loss(model(params, x), y)
        return (values * weight).sum() / weight.sum().clamp(min=1)

    every = vmap(grad_and_value(objective))

    def gradient(theta: Tree, batch: Batch) -> tuple[Tree, Tensor]:
        x, y, weight, stream = batch
        nothing = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return every(theta, x, y, weight, nothing if stream is None else stream)

    return gradient


def stacked_gradient(forward: Layer, loss: Loss) -> Gradient:
    """Modules with a stacked form: clients share no parameter, so the gradient of the sum of
    their losses holds each client's own."""

    def gradient(theta: Tree, batch: Batch) -> tuple[Tree, Tensor]:
        leaves = {name: stacked.detach().requires_grad_() for name, stacked in theta.items()}
        with torch.enable_grad():
            outputs = forward(leaves, batch.x)
            values = loss(outputs.flatten(0, 1), batch.y.flatten(0, 1)).view_as(batch.weight)
            means = (values * batch.weight).sum(1) / batch.weight.sum(1).clamp(min=1)
            grads = torch.autograd.grad(means.sum(), list(leaves.values()))
        return dict(zip(leaves, grads, strict=True)), means.detach()

    return gradient


class Stepper(Protocol):
    """A way to take local steps. Buffers hold the models and whatever the optimiser carries."""

    def begin(self, theta: Tree, anchor: Tree | None) -> Tree:
        """Fresh buffers; the caller's tensors are not changed. The anchor of a pull, if any."""
        ...

    def load(
        self, buffers: Tree, theta: Tree, anchor: Tree | None, start: Tensor | None = None
    ) -> None:
        """Start anew from other models, or from rows `start` of them, in the same buffers."""
        ...

    def step(self, buffers: Tree, batch: Batch, active: Tensor) -> Tensor:
        """One step of every client in place; its mean loss (c,). A client that has finished
        (active 0) does not move."""
        ...

    def end(self, buffers: Tree, lend: bool = False) -> Tree:
        """The models, in tensors that the buffers do not share, unless they may be lent."""
        ...


def fill(buffer: Tensor, stacked: Tensor, rows: Tensor | None) -> None:
    """Some rows, or all, into a buffer: a gather and a copy would write large models twice."""
    if rows is None:
        buffer.copy_(stacked)
    else:
        torch.index_select(stacked, 0, rows, out=buffer)


def stepwise(
    stepper: Stepper, samples: Samples, theta: Tree, phase: Phase, anchor: Tree | None = None
) -> tuple[Tree, Tensor]:
    """Step after step from Python.

    Returns:
        the models after the last step, and the losses (c, S) of each client's steps.
    """
    buffers = stepper.begin(theta, anchor)
    losses = torch.zeros(phase.active.shape, device=phase.ids.device, dtype=torch.float64)
    for step in torch.arange(phase.active.shape[1], device=phase.ids.device).split(1):
        active = phase.active.index_select(1, step)[:, 0]
        found = stepper.step(buffers, batch_at(samples, phase, step), active)
        losses.index_copy_(1, step, found.double()[:, None])
    return stepper.end(buffers), losses


def one_by_one(
    model: Functional,
    loss: Loss,
    samples: Samples,
    theta: Tree,
    phase: Phase,
    rule: Rule,
    anchor: Tree | None,
) -> tuple[Tree, Tensor]:
    """One client after another, for models that draw random numbers or that vmap refuses.

    Draws of torch's own begin with the client's stream: they belong to the client and the round.
    """
    device = phase.ids.device
    streams = [0] * len(phase.ids) if phase.stream is None else phase.stream.tolist()
    trained: list[Tree] = []
    losses: list[Tensor] = []
    for client, stream in enumerate(streams):
        one, own_anchor = unstack(theta, client), anchor and unstack(anchor, client)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(stream)
            mine, own = one_client(model, loss, samples, one, phase.of(client), rule, own_anchor)
        trained.append(mine)
        losses.append(own)
    stacked = {name: torch.stack([tree[name] for tree in trained]) for name in theta}
    return stacked, torch.stack(losses)


def _optimiser(values: list[Tensor], sgd: LocalSGD) -> torch.optim.Optimizer:
    if sgd.optimizer == "adam":
        return torch.optim.Adam(values, lr=sgd.lr, weight_decay=sgd.weight_decay)
    if sgd.optimizer == "adamw":
        return torch.optim.AdamW(values, lr=sgd.lr, weight_decay=sgd.weight_decay)
    return torch.optim.SGD(
        values,
        lr=sgd.lr,
        momentum=sgd.momentum,
        weight_decay=sgd.weight_decay,
        nesterov=sgd.nesterov,
    )


def one_client(
    model: Functional,
    loss: Loss,
    samples: Samples,
    theta: Params,
    phase: Phase,
    rule: Rule,
    anchor: Params | None = None,
) -> tuple[Params, Tensor]:
    """torch's own optimiser on one client's batches, which follow the layout of the weights.

    Returns:
        the model after the last step, and the loss (S,) of every step.
    """
    sgd = rule.sgd
    values = {name: v.clone().requires_grad_() for name, v in theta.items()}
    is_channels_last = any(
        v.dim() == 4
        and v.is_contiguous(memory_format=torch.channels_last)
        and not v.is_contiguous()
        for v in values.values()
    )
    learning = [v for name, v in values.items() if rule.only is None or name in rule.only]
    optimiser = _optimiser(learning, sgd)
    losses = torch.zeros(phase.active.shape[1], dtype=torch.float64, device=phase.ids.device)
    taken = int(phase.active.sum())
    counts = phase.weight[0].sum(dim=1).int().tolist()  # padding comes last
    numbers = torch.arange(taken, device=phase.ids.device).split(1)
    for step, count in zip(numbers, counts, strict=False):
        batch = batch_at(samples, phase, step)
        x, y = batch.x[0, :count], batch.y[0, :count]
        stream = step[0] if batch.stream is None else batch.stream[0]
        if is_channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with model.drawing(stream):
            value = loss(model.alone(values, x), y).mean()
        optimiser.zero_grad()
        value.backward()
        for name, goal in (anchor or {}).items():
            away = values[name].detach() - goal
            grad = values[name].grad
            values[name].grad = rule.strength * away + (0 if grad is None else grad)
        if sgd.clip_norm:
            torch.nn.utils.clip_grad_norm_(learning, sgd.clip_norm)
        optimiser.step()
        losses.index_copy_(0, step, value.detach().double()[None])
    return {name: v.detach() for name, v in values.items()}, losses
