"""A common model that is good after one step by each client: meta-learning by averaging."""

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.checks import check_plain
from scool.algorithms.shared.sharing import (
    check_participation,
    choose,
    participants,
    server_average,
)
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD
from scool.models.layers import is_statistic
from scool.types import Info, Params, Tree

DELTA = 1e-2  # length of the difference that approximates the Hessian, times the gradient


class PerFedAvgState(NamedTuple):
    theta: Tree  # the common model after each client's own step
    common: Tree  # x, once per client


@final
@dataclass(frozen=True)
class PerFedAvg(Method[PerFedAvgState]):
    r"""$\min_x \sum_i n_i L_i(x - \alpha \nabla L_i(x))$: FedAvg of meta-gradients.

    Each local step of a participant, from $y_i = x^t$, takes batches b', b and b'':

    $g = \nabla L(b'; y_i - \alpha \nabla L(b; y_i))$, $y_i \leftarrow y_i - \eta (g - \alpha H g)$.

    `hessian = "none"` leaves out $H g$ (first order, FO); with `"difference"` it is
    $\frac{1}{2 \delta} (\nabla L(b''; y_i + \delta g) - \nabla L(b''; y_i - \delta g))$ (Hessian
    free, HF). Then $x^{t+1} = \sum_{i \in A} \frac{n_i}{\sum_A n} y_i$, and everyone is evaluated
    with $x^{t+1} - \alpha \nabla L_i(x^{t+1})$ of all its samples.

    `train_loss` is that of the models after the inner step. Traffic: two models per participant and
    round. Fallah, Mokhtari, Ozdaglar, NeurIPS 2020.
    """

    meets = "server"
    verbs = frozenset({"train", "mix", "gradient"})
    trains_theta = False

    sgd: LocalSGD = field(default_factory=LocalSGD)
    inner_lr: float = 0.01
    """alpha: length of the step by which each client makes the common model its own."""
    hessian: Literal["none", "difference"] = "none"
    """The second derivative in the meta-gradient: left out, or by a difference of gradients."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        remedy = "give a positive learning rate; without the inner step use the method fedavg"
        require(self.inner_lr > 0, "inner_lr", self.inner_lr, remedy)
        check_plain(self.sgd, "Per-FedAvg")
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> PerFedAvgState:
        return PerFedAvgState(engine.replicate(theta0), engine.replicate(theta0))

    def step(
        self, engine: Engine, state: PerFedAvgState, round: int
    ) -> tuple[PerFedAvgState, Info]:
        chosen = participants(engine, self.participation, round)
        counts = self.sgd.steps_per_round(engine.sizes)
        first, y = round * int(counts.max()), state.common
        total = torch.zeros(engine.num_clients, dtype=torch.float64)
        for s in range(int((counts * chosen).max())):
            y, loss = self._meta_step(engine, y, round, first + s, chosen & (counts > s))
            total += loss.nan_to_num(0.0)
        done = chosen & engine.active & (counts > 0)
        loss = torch.where(done, total / counts.clamp(min=1), torch.nan)
        common, graph = server_average(engine, chosen, y, state.common)
        slope = engine.gradient(common, "train").theta
        adapted = {n: t - self.inner_lr * slope[n] for n, t in common.items()}
        theta = choose(engine, engine.active, adapted, state.theta)
        return PerFedAvgState(theta, common), {"train_loss": loss, "graph": graph}

    def _meta_step(
        self, engine: Engine, y: Tree, round: int, batch: int, going: Tensor
    ) -> tuple[Tree, Tensor]:
        """The models after one step of the clients that still train, and their losses before it
        (K,)."""
        outer = replace(self.sgd.at_round(round), steps=1)
        plain = LocalSGD(lr=self.inner_lr, steps=1, batch_size=self.sgd.batch_size)
        inner = engine.train(y, plain, batch + 1, among=going).theta
        there, loss = engine.train(inner, outer, batch, among=going)
        move = {n: inner[n] - t for n, t in there.items() if not is_statistic(n)}  # eta g
        if self.hessian == "difference":
            once = replace(plain, lr=1.0)  # a step of length 1 on one batch is the gradient
            length = DELTA / outer.lr
            bent = {n: torch.zeros_like(t) for n, t in move.items()}
            for sign in (1, -1):
                aside = y | {n: y[n] + sign * length * t for n, t in move.items()}
                after = engine.train(aside, once, batch + 2, among=going).theta
                bent = {n: t + sign * (aside[n] - after[n]) for n, t in bent.items()}
            share = self.inner_lr / (2 * length)
            move = {n: t - share * bent[n] for n, t in move.items()}
        moved = there | {n: y[n] - t for n, t in move.items()}
        return choose(engine, going & engine.active, moved, y), loss
