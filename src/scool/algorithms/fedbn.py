"""A common model with normalisation that stays with each client."""

import warnings
from dataclasses import dataclass, field
from typing import NamedTuple, final

from scool.algorithms.shared.sharing import check_participation, only, participants, server_average
from scool.contracts import Engine, Method
from scool.errors import Note, check_fields
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params, Tree


class FedBNState(NamedTuple):
    theta: Tree  # the common model, once per client, with each client's own normalisation


@final
@dataclass(frozen=True)
class FedBN(Method[FedBNState]):
    r"""FedAvg of all tensors but those of normalisation layers, which never leave their client.

    With $\theta_i = (x, \nu_i)$ a participant trains both parts to $(x_i, \nu_i)$, running
    statistics included, and $x \leftarrow \sum_{i \in A} \frac{n_i}{\sum_A n} x_i$. For clients
    whose inputs differ (other scanners, other sensors) rather than their labels.

    A model without layers that normalise makes it FedAvg. Traffic: two models less their
    normalisation per participant and round. Li et al., ICLR 2021.
    """

    meets = "server"
    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> FedBNState:
        if not engine.norms:
            warnings.warn("the model has no normalisation: FedBN is FedAvg", Note, stacklevel=2)
        return FedBNState(engine.replicate(theta0))

    def step(self, engine: Engine, state: FedBNState, round: int) -> tuple[FedBNState, Info]:
        chosen = participants(engine, self.participation, round)
        half, loss = engine.train(state.theta, self.sgd, round, among=chosen)
        shared = half.keys() - engine.norms
        body, graph = server_average(engine, chosen, only(half, shared), only(state.theta, shared))
        return FedBNState(half | body), {"train_loss": loss, "graph": graph}
