"""One common model through a server: federated averaging."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.contracts import Engine
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD
from scool.randomness import generator
from scool.types import Info, Params, Tree


class FedAvgState(NamedTuple):
    theta: Tree  # the common model, once per client


@final
@dataclass(frozen=True)
class FedAvg:
    r"""$x \leftarrow \sum_{i \in A} \frac{n_i}{\sum_A n} \theta_i$ over a random set A of clients.

    Each participant trains from the common model x; every client is evaluated with x under its
    own class mask. Traffic: two models a participant and round. McMahan et al., AISTATS 2017.
    """

    sgd: LocalSGD = field(default_factory=LocalSGD)
    participation: float = 1.0
    """Fraction of the clients that take part in a round (the paper: 0.1)."""

    def __post_init__(self) -> None:
        check_fields(self)
        good = 0 < self.participation <= 1
        require(good, "participation", self.participation, "give a fraction in (0, 1]")

    def init(self, engine: Engine, theta0: Params) -> FedAvgState:
        return FedAvgState(engine.replicate(theta0))

    def step(self, engine: Engine, state: FedAvgState, round: int) -> tuple[FedAvgState, Info]:
        chosen = self.participants(engine, round)
        theta, loss = engine.train(state.theta, self.sgd, round, among=chosen)
        share = engine.sizes.double() * (chosen & engine.active)
        if not bool(share.any()):  # every participant went into quarantine
            return state, {"train_loss": loss, "graph": torch.eye(engine.num_clients).double()}
        graph = (share / share.sum()).expand(engine.num_clients, -1)
        return FedAvgState(engine.mix(graph, theta, via="server")), {
            "train_loss": loss,
            "graph": graph,
        }

    def participants(self, engine: Engine, round: int) -> Tensor:
        """(K,) bool: a random set, a function of the seed and the round."""
        count = max(1, int(engine.num_clients * self.participation + 1e-9))
        order = torch.randperm(
            engine.num_clients, generator=generator(engine.seed, "participants", round)
        )
        chosen = torch.zeros(engine.num_clients, dtype=torch.bool)
        chosen[order[:count]] = True
        return chosen
