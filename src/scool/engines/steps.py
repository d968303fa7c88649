"""The hot loop: local SGD of many clients. Two formulations with the same result."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import Loss
from scool.models import Functional
from scool.types import Params, Tree


class Batch(NamedTuple):
    """One local step of c clients."""

    x: Tensor  # (c, b, ...)
    y: Tensor  # (c, b, ...)
    weight: Tensor  # (c, b): 1 for a sample, 0 for padding


Feed: TypeAlias = Callable[[int], Batch]


def weighted_loss(model: Functional, loss: Loss) -> Callable[..., Tensor]:
    """(params, x, y, weight) -> mean loss over the samples of weight 1."""

    def objective(params: Params, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        values = loss(model(params, x), y)
        return (values * weight).sum() / weight.sum().clamp(min=1)

    return objective


def stacked_steps(
    model: Functional, loss: Loss, theta: Tree, feed: Feed, active: Tensor, sgd: LocalSGD
) -> tuple[Tree, Tensor]:
    """All clients advance together: `vmap` of the gradient over the client axis.

    Args:
        theta: (c, ...) trees; the caller's tensors are not changed.
        feed: the batch of step s.
        active: (c, S) 1 where a client takes the step.

    Returns:
        the models after the last step, and the mean loss of each client over its steps.
    """
    gradient = vmap(grad_and_value(weighted_loss(model, loss)))
    values = {name: stacked.clone() for name, stacked in theta.items()}
    velocity = {name: torch.zeros_like(v) for name, v in values.items() if sgd.momentum}
    total = torch.zeros(active.shape[0], device=active.device, dtype=torch.float64)
    idle = sgd.momentum > 0 or sgd.weight_decay > 0  # whether a step without samples would move
    for s in range(active.shape[1]):
        batch = feed(s)
        grads, losses = gradient(values, *batch)
        for name, value in values.items():
            g = grads[name]
            if sgd.weight_decay:
                g = g.add(value, alpha=sgd.weight_decay)
            if sgd.momentum:
                g = velocity[name].mul_(sgd.momentum).add_(g)
            if idle:
                g = g * active[:, s].view(-1, *[1] * (g.dim() - 1)).to(g.dtype)
            value.sub_(g, alpha=sgd.lr)
        total += losses.double() * active[:, s]
    return values, total / active.sum(dim=1).clamp(min=1)


def looped_steps(
    model: Functional,
    loss: Loss,
    theta: Tree,
    feed: Feed,
    active: Tensor,
    sgd: LocalSGD,
    streams: list[int],
) -> tuple[Tree, Tensor]:
    """One client after another, for models that draw random numbers (dropout).

    `streams` seeds the draws of each client, so that they belong to the client and the round.
    """
    steps = int(active.shape[1])
    devices = [active.device] if active.device.type == "cuda" else []
    done: list[Tree] = []
    means: list[Tensor] = []
    model.module.train()
    for client, stream in enumerate(streams):
        one = {name: stacked[client : client + 1] for name, stacked in theta.items()}
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(stream)
            trained, mean = _one_client(model, loss, one, feed, active, sgd, client, steps)
        done.append(trained)
        means.append(mean)
    model.module.eval()
    return {name: torch.cat([tree[name] for tree in done]) for name in theta}, torch.cat(means)


def _one_client(
    model: Functional,
    loss: Loss,
    theta: Tree,
    feed: Feed,
    active: Tensor,
    sgd: LocalSGD,
    client: int,
    steps: int,
) -> tuple[Tree, Tensor]:
    objective = weighted_loss(model, loss)
    values = {name: v[0].clone().requires_grad_() for name, v in theta.items()}
    optimiser = torch.optim.SGD(
        values.values(), lr=sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    total = torch.zeros((), dtype=torch.float64, device=active.device)
    taken = int(active[client].sum())
    for s in range(min(steps, taken)):
        batch = feed(s)
        value = objective(values, *(part[client] for part in batch))
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        total += value.detach().double()
    trained = {name: v.detach()[None] for name, v in values.items()}
    return trained, (total / max(taken, 1))[None]
