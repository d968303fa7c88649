"""Local steps from gradients: by `vmap`, by stacked layers, or one client after another, which all
give the same result."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, final

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from scool.engine.steps.phases import Batch, Phase, Samples, batch_at, fill
from scool.engine.steps.stacked import Layer
from scool.learning.local_sgd import LocalSGD, Rule
from scool.learning.losses import Loss, sample_count
from scool.models import Functional, unstack
from scool.models.layers import is_statistic
from scool.models.stack import flat
from scool.types import Params, Tree

BETAS, EPS = (0.9, 0.999), 1e-8  # Adam's usual constants


class Gradients(NamedTuple):
    """The gradients of c models, each on its batch."""

    grads: Tree  # (c, ...)
    losses: Tensor  # (c,) the mean loss of each client
    statistics: Tree = {}  # (c, ...) running statistics after the batch; none in evaluation


Gradient: TypeAlias = Callable[[Tree, Batch], Gradients]
"""(models (c, ...), batch) -> their gradients on it."""


def split_statistics(theta: Tree) -> tuple[Tree, Tree]:
    """The tensors that gradients move, and the running statistics, which batches move."""
    moved = {name: t for name, t in theta.items() if not is_statistic(name)}
    return moved, {name: t for name, t in theta.items() if name not in moved}


def vmap_gradient(model: Functional, loss: Loss) -> Gradient:
    """Any module: `vmap` of one client's gradient over the client axis."""

    def objective(
        params: Params, statistics: Params, x: Tensor, y: Tensor, weight: Tensor, stream: Tensor
    ) -> tuple[Tensor, Params]:
        with model.on_batch(stream, weight):
            values = loss(model(params | statistics, x), y)
            fresh = model.fresh_statistics() if model.module.training else {}
        return (values * weight).sum() / sample_count(weight), fresh

    every = vmap(grad_and_value(objective, has_aux=True))

    def gradient(theta: Tree, batch: Batch) -> Gradients:
        x, y, weight, stream = batch
        nothing = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        stream = nothing if stream is None else stream
        grads, (losses, fresh) = every(*split_statistics(theta), x, y, weight, stream)
        return Gradients(grads, losses, fresh)

    return gradient


def stacked_gradient(forward: Layer, loss: Loss) -> Gradient:
    """Modules with a stacked form: clients share no parameter, so the gradient of the sum of
    their losses holds each client's own."""

    def gradient(theta: Tree, batch: Batch) -> Gradients:
        leaves = {name: stacked.detach().requires_grad_() for name, stacked in theta.items()}
        with torch.enable_grad():
            outputs = forward(leaves, batch.x)
            values = loss(outputs.flatten(0, 1), batch.y.flatten(0, 1)).view_as(batch.weight)
            means = (values * batch.weight).sum(1) / sample_count(batch.weight)
            grads = torch.autograd.grad(means.sum(), list(leaves.values()))
        return Gradients(dict(zip(leaves, grads, strict=True)), means.detach())

    return gradient


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

    Random numbers that torch draws begin with the client's stream, and so depend on client and
    round only.
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
    values = {name: v.clone().requires_grad_(not is_statistic(name)) for name, v in theta.items()}
    is_channels_last = any(
        v.dim() == 4
        and v.is_contiguous(memory_format=torch.channels_last)
        and not v.is_contiguous()
        for v in values.values()
    )
    chosen = [name for name in values if rule.only is None or name in rule.only]
    learning = [values[name] for name in chosen if not is_statistic(name)]
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
        with model.on_batch(stream):
            found = loss(model.alone(values, x), y)
            if samples.class_weights is not None:
                found = found * batch.weight[0, :count]
            value = found.mean()
            fresh = model.fresh_statistics()
        optimiser.zero_grad()
        value.backward()
        for name, goal in split_statistics(anchor or {})[0].items():
            away = goal if rule.pushes else rule.strength * (values[name].detach() - goal)
            grad = values[name].grad
            values[name].grad = away + (0 if grad is None else grad)
        if sgd.clip_norm:
            torch.nn.utils.clip_grad_norm_(learning, sgd.clip_norm)
        optimiser.step()
        values |= {name: new for name, new in fresh.items() if name in chosen}
        losses.index_copy_(0, step, value.detach().double()[None])
    return {name: v.detach() for name, v in values.items()}, losses


@final
class GradientStepper:
    """Any optimiser of `LocalSGD` on gradients of any formulation.

    Agrees with `torch.optim` on each client alone. The optimiser's state is reset in every round,
    because mixing replaces the model it belongs to.
    """

    def __init__(self, gradient: Gradient, rule: Rule) -> None:
        self.gradient, self.rule, self.sgd = gradient, rule, rule.sgd

    def begin(self, theta: Tree, anchor: Tree | None) -> Tree:
        buffers = {name: stacked.clone() for name, stacked in theta.items()}
        buffers |= {f"anchor/{name}": stacked.clone() for name, stacked in (anchor or {}).items()}
        for slot in self._slots:
            buffers |= {f"{slot}/{name}": torch.zeros_like(t) for name, t in theta.items()}
        first = next(iter(theta.values()))
        buffers["/steps"] = torch.zeros(len(first), dtype=torch.float64, device=first.device)
        return buffers

    def load(
        self, buffers: Tree, theta: Tree, anchor: Tree | None, start: Tensor | None = None
    ) -> None:
        given = theta | {f"anchor/{name}": stacked for name, stacked in (anchor or {}).items()}
        for name, buffer in buffers.items():
            if name in given:
                fill(buffer, given[name], start if name in theta else None)
            else:
                buffer.zero_()

    def end(self, buffers: Tree, lend: bool = False) -> Tree:
        own = {name: t for name, t in buffers.items() if not self._is_state(name)}
        return own if lend else {name: t.clone() for name, t in own.items()}

    @property
    def _slots(self) -> tuple[str, ...]:
        if self.sgd.optimizer == "sgd":
            return ("velocity",) if self.sgd.momentum else ()
        return ("first", "second")

    def _is_state(self, name: str) -> bool:
        return name == "/steps" or name.split("/", 1)[0] in ("anchor", *self._slots)

    def step(self, buffers: Tree, batch: Batch, active: Tensor) -> Tensor:
        theta = {name: t for name, t in buffers.items() if not self._is_state(name)}
        grads, losses, fresh = self.gradient(theta, batch)
        if self.rule.only is not None:
            grads = {name: g for name, g in grads.items() if name in self.rule.only}
            fresh = {name: t for name, t in fresh.items() if name in self.rule.only}
        for name in [n for n in grads if f"anchor/{n}" in buffers]:
            goal = buffers[f"anchor/{name}"]
            if self.rule.pushes:
                grads[name] = grads[name] + goal
            else:
                grads[name] = grads[name].add(theta[name] - goal, alpha=self.rule.strength)
        if self.sgd.clip_norm:
            grads = self._clipped(grads)
        buffers["/steps"] += active
        moves = active.to(next(iter(theta.values())).dtype)
        for name in grads:
            value = theta[name]
            per_client = (-1, *[1] * (value.dim() - 1))
            move = self._move(buffers, name, grads[name], per_client)
            value.sub_(move * moves.view(per_client), alpha=self.sgd.lr)
        for name, new in fresh.items():
            old = theta[name]
            old.copy_(torch.where(moves.view(-1, *[1] * (old.dim() - 1)) > 0, new, old))
        return losses

    def _move(self, buffers: Tree, name: str, g: Tensor, per_client: tuple[int, ...]) -> Tensor:
        """The direction of a step, to be scaled by the learning rate."""
        sgd, value = self.sgd, buffers[name]
        if sgd.weight_decay and sgd.optimizer != "adamw":
            g = g.add(value, alpha=sgd.weight_decay)
        if sgd.optimizer == "sgd":
            if not sgd.momentum:
                return g
            velocity = buffers[f"velocity/{name}"].mul_(sgd.momentum).add_(g)
            return g.add(velocity, alpha=sgd.momentum) if sgd.nesterov else velocity
        first = buffers[f"first/{name}"].mul_(BETAS[0]).add_(g, alpha=1 - BETAS[0])
        second = buffers[f"second/{name}"].mul_(BETAS[1]).addcmul_(g, g, value=1 - BETAS[1])
        steps = buffers["/steps"].clamp(min=1)
        bias = [(1 - beta**steps).to(g.dtype).view(per_client) for beta in BETAS]
        move = (first / bias[0]) / ((second / bias[1]).sqrt() + EPS)
        if sgd.weight_decay and sgd.optimizer == "adamw":
            move = move.add(value, alpha=sgd.weight_decay)
        return move

    def _clipped(self, grads: Tree) -> Tree:
        """Each client's whole gradient cut to the longest length allowed."""
        norms = torch.stack([flat(g).square().sum(1) for g in grads.values()]).sum(0).sqrt()
        scale = (self.sgd.clip_norm / (norms + 1e-6)).clamp(max=1)
        return {n: g * scale.view(-1, *[1] * (g.dim() - 1)) for n, g in grads.items()}
