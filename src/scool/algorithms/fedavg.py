"""One common model through a server: federated averaging."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

from scool.algorithms.shared.sharing import check_participation, participants, server_average
from scool.contracts import Engine, Method
from scool.errors import check_fields
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params, Tree


class FedAvgState(NamedTuple):
    theta: Tree  # the common model, once per client


@final
@dataclass(frozen=True)
class FedAvg(Method[FedAvgState]):
    r"""$x \leftarrow \sum_{i \in A} \frac{n_i}{\sum_A n} \theta_i$ over a random set A of clients.

    Each participant trains from the common model x; every client is evaluated with x under its
    own class mask. Traffic: two models per participant and round. McMahan et al., AISTATS 2017.
    """

    meets = "server"
    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    participation: float = 1.0
    """Fraction of the clients that take part in a round (the paper: 0.1)."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> FedAvgState:
        return FedAvgState(engine.replicate(theta0))

    def step(self, engine: Engine, state: FedAvgState, round: int) -> tuple[FedAvgState, Info]:
        chosen = participants(engine, self.participation, round)
        trained, loss = engine.train(state.theta, self.sgd, round, among=chosen)
        theta, graph = server_average(engine, chosen, trained, state.theta)
        return FedAvgState(theta), {"train_loss": loss, "graph": graph}
