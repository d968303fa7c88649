"""Optimisers of the local phase, for all clients at once."""

from typing import final

import torch
from torch import Tensor

from scool.engine.steps.local_steps import Batch, Gradient, fill
from scool.learning.local_sgd import Rule
from scool.types import Tree

BETAS, EPS = (0.9, 0.999), 1e-8  # Adam's usual constants


@final
class GradientStepper:
    """Any optimiser of `LocalSGD` on gradients of any formulation.

    Agrees with `torch.optim` on each client alone. State starts anew every round, because the
    model it belongs to is replaced by the mixture.
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
        grads, losses = self.gradient(theta, batch)
        if self.rule.only is not None:
            grads = {name: g for name, g in grads.items() if name in self.rule.only}
        if self.rule.strength:
            for name in [n for n in grads if f"anchor/{n}" in buffers]:
                away = theta[name] - buffers[f"anchor/{name}"]
                grads[name] = grads[name].add(away, alpha=self.rule.strength)
        if self.sgd.clip_norm:
            grads = self._clipped(grads)
        buffers["/steps"] += active
        moves = active.to(next(iter(theta.values())).dtype)
        for name in grads:
            value = theta[name]
            per_client = (-1, *[1] * (value.dim() - 1))
            move = self._move(buffers, name, grads[name], per_client)
            value.sub_(move * moves.view(per_client), alpha=self.sgd.lr)
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
        norms = torch.stack([g.flatten(1).square().sum(1) for g in grads.values()]).sum(0).sqrt()
        scale = (self.sgd.clip_norm / (norms + 1e-6)).clamp(max=1)
        return {n: g * scale.view(-1, *[1] * (g.dim() - 1)) for n, g in grads.items()}
