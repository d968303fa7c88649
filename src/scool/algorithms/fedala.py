"""Adaptive local aggregation: each client decides for each parameter how much of the common model
it takes."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.sharing import (
    check_participation,
    choose,
    named_tensors,
    only,
    participants,
    server_average,
)
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD
from scool.models.layers import is_statistic
from scool.types import Info, Params, Tree


class FedALAState(NamedTuple):
    theta: Tree  # what each client begins its next local phase with
    weights: Tree  # W, of the layers whose weights are learned
    begun: Tensor  # (K,) bool: clients that have learned their weights before


@final
@dataclass(frozen=True)
class FedALA(Method[FedALAState]):
    r"""$\theta_i \leftarrow \theta_i^{t+1/2} + W_i \odot (x^{t+1} - \theta_i^{t+1/2})$, where W is
    1 but in the layers `learned`.

    $x^{t+1}$ is the mean of the $\theta_i^{t+1/2}$ weighted by samples. There $W_i \leftarrow [W_i
    - \eta_w \nabla L(b; \theta_i) \odot (x^{t+1} - \theta_i^{t+1/2})]_{[0, 1]}$ batch by batch,
    with $\theta_i$ recomputed after each: for `start_epochs` and from all 1 when a client does so
    for the first time, later for `weight_epochs`.

    A client that does not take part keeps its model and its weights. Traffic: two models per
    participant and round. Zhang, Hua, Wang, Song, Xue, Ma, Guan, AAAI 2023.
    """

    meets = "server"
    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    learned: str = "head"
    """Layers whose weights are learned, separated by commas: head (the last), norm, or names; empty
    for all. The others are taken from the common model."""
    weight_lr: float = 1.0
    """Learning rate of the weights."""
    weight_epochs: int = 1
    """Passes over its own data, in every round, in which a client learns the weights."""
    start_epochs: int = 10
    """The same in a client's first round."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.weight_lr > 0, "weight_lr", self.weight_lr, "give a positive learning rate")
        for name in ("weight_epochs", "start_epochs"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "give at least 1")
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> FedALAState:
        theta = engine.replicate(theta0)
        learned = only(theta, self._learned(engine, theta))
        weights = {n: torch.ones_like(t) for n, t in learned.items()}
        return FedALAState(theta, weights, torch.zeros(engine.num_clients, dtype=torch.bool))

    def _learned(self, engine: Engine, theta: Tree) -> frozenset[str]:
        """The tensors whose weights are learned; statistics are not numbers that gradients move."""
        names = [n for n in theta if not is_statistic(n)]
        found = named_tensors(names, self.learned, engine.norms, "learned")
        return found or frozenset(names)

    def step(self, engine: Engine, state: FedALAState, round: int) -> tuple[FedALAState, Info]:
        chosen = participants(engine, self.participation, round)
        half, loss = engine.train(state.theta, self.sgd, round, among=chosen)
        common, graph = server_average(engine, chosen, half, half)
        epochs = torch.where(state.begun, self.weight_epochs, self.start_epochs)
        mixed, weights = self._weigh(engine, half, common, state.weights, chosen, epochs, round)
        chosen = chosen & engine.active
        theta = choose(engine, chosen, mixed, half)
        after = FedALAState(theta, weights, state.begun | chosen)
        return after, {"train_loss": loss, "graph": graph}

    def _weigh(
        self,
        engine: Engine,
        own: Tree,
        common: Tree,
        weights: Tree,
        chosen: Tensor,
        epochs: Tensor,
        round: int,
    ) -> tuple[Tree, Tree]:
        """The mixtures of own and common models, and the weights that they learned.

        Args:
            epochs: (K,) passes of each client.
        """
        learned = frozenset(weights)
        # A step of length 1 on one batch is the gradient.
        once = LocalSGD(lr=1.0, steps=1, batch_size=self.sgd.batch_size)
        passes = replace(once, epochs=1, steps=0).steps_per_round(engine.sizes)
        counts = epochs * passes
        first = round * int(passes.max()) * max(self.weight_epochs, self.start_epochs)
        gap = {n: common[n] - own[n] for n in learned}
        mixed = common | {n: own[n] + w * gap[n] for n, w in weights.items()}
        for s in range(int((counts * chosen).max())):
            going = chosen & (counts > s)
            there = engine.train(mixed, once, first + s, among=going, only=learned).theta
            weights = {
                n: (w - self.weight_lr * (mixed[n] - there[n]) * gap[n]).clamp(0, 1)
                for n, w in weights.items()
            }
            mixed = common | {n: own[n] + w * gap[n] for n, w in weights.items()}
        return mixed, weights
