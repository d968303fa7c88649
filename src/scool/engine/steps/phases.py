"""One local phase of many models: whose samples, in which steps, and what came of it."""

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.func import grad, vmap

from scool.engine.steps.formulation import Formulation
from scool.engine.steps.local_steps import Batch, Phase
from scool.engine.steps.samples import Samples
from scool.learning.local_sgd import LocalSGD, Rule, plan_batches
from scool.learning.losses import Loss
from scool.models import Functional
from scool.randomness import derive
from scool.types import Params, Tree


class Outcome(NamedTuple):
    """What came of c models."""

    theta: Tree  # (c, ...); lent, where `start` was given
    loss: Tensor  # (c,) mean over the steps; on the CPU, as the next
    stop: Tensor  # (c,) the step at which a number was found not to be finite, -1 for none


@final
class LocalPhases:
    """Samples, order and random numbers of a phase are a function of (seed, round, client)."""

    def __init__(self, formulation: Formulation, train: Samples, ids: Tensor, seed: int) -> None:
        """`ids` (K,) says what randomness calls the clients."""
        self._formulation, self._train, self._ids, self._seed = formulation, train, ids, seed

    def run(
        self,
        theta: Tree,
        hosts: Tensor,
        rule: Rule,
        anchor: Tree | None,
        round: int,
        start: Tensor | None = None,
    ) -> Outcome:
        """The steps of c models, or of rows `start` (c,) of some, each on the data of its host
        (c,). What is not finite is found after the phase, without waiting at any step."""
        phase = self._plan(rule.sgd, hosts, round)._replace(start=start)
        if self._formulation.may_draw:
            names = self._ids[hosts].tolist()
            streams = [derive(self._seed, "dropout", round, name) for name in names]
            phase = phase._replace(stream=torch.tensor(streams, device=hosts.device))
        trained, losses = self._formulation.train(self._train, theta, phase, rule, anchor)
        taken = phase.active > 0
        count = taken.sum(dim=1)
        mean = losses.where(taken, 0.0).sum(dim=1) / count.clamp(min=1)
        broken = taken & ~losses.isfinite()
        stop = torch.where(broken.any(dim=1), broken.to(torch.int8).argmax(dim=1), -1)
        is_bad = (stop < 0) & ~_finite(trained)  # the last step broke the model
        return Outcome(trained, mean.cpu(), torch.where(is_bad, count - 1, stop).cpu())

    def first_batch(self, sgd: LocalSGD, round: int) -> Batch:
        """The batch with which every client begins the round."""
        everyone = torch.arange(len(self._ids), device=self._ids.device)
        phase = self._plan(sgd, everyone, round)
        draws = None if phase.draws is None else phase.draws[:, 0]
        x, y = self._train.fetch(everyone, phase.position[:, 0], draws)
        return Batch(x, y, phase.weight[:, 0])

    def _plan(self, sgd: LocalSGD, hosts: Tensor, round: int) -> Phase:
        names = self._ids[hosts]
        plan = plan_batches(sgd, self._train.split.mask[hosts], names, round, self._seed)
        shape = plan.position.shape[1:]
        draws = self._train.augmentation(derive(self._seed, "augment", round), names, shape)
        return Phase(hosts, plan.position, plan.weight.to(self._train.dtype), plan.active, draws)


def mixed_gradients(
    model: Functional, loss: Loss, theta: Tree, batch: Batch, weights: Tensor, models: int
) -> Tree:
    r"""$\sum_j w_{ij} \nabla L(b_j; \theta_i)$ of m models, weights (m, K), for the batches of K
    clients; so many models at a time. A batch of weight 0 does not count, whatever it gives."""
    found = _weighted_gradients(model, loss, theta, batch, weights, models)
    for i in (~_finite(found)).nonzero()[:, 0].tolist():  # 0 times infinity is NaN
        used = weights[i] != 0
        own = {name: t[i : i + 1] for name, t in theta.items()}
        again = {name: torch.zeros_like(t) for name, t in own.items()}
        if bool(used.any()):
            few = Batch(batch.x[used], batch.y[used], batch.weight[used])
            row = weights[i : i + 1, used]
            again = _weighted_gradients(model, loss, own, few, row, models)
        for name, g in again.items():
            found[name][i] = g[0]
    return found


def _weighted_gradients(
    model: Functional, loss: Loss, theta: Tree, batch: Batch, weights: Tensor, models: int
) -> Tree:
    """The same as a plain sum."""
    x, y, here, _ = batch
    share = (here / here.sum(dim=1, keepdim=True).clamp(min=1)).flatten()
    x, y = x.flatten(0, 1), y.flatten(0, 1)

    def objective(params: Params, row: Tensor) -> Tensor:
        per_sample = row[:, None].expand(-1, here.shape[1]).flatten()
        return (loss(model(params, x), y) * share * per_sample).sum()

    gradient: Callable[..., Tree] = vmap(grad(objective), chunk_size=models)
    return gradient(theta, weights)


def _finite(tree: Tree) -> Tensor:
    """(c,) bool: all of the model are numbers. Extremes show it without a copy of the model."""
    parts: list[Tensor] = []
    for stacked in tree.values():
        low, high = stacked.flatten(1).aminmax(dim=1)
        parts.append(low.isfinite() & high.isfinite())
    return torch.stack(parts).all(dim=0)
