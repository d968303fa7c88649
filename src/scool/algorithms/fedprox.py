"""Federated averaging with local steps held near the common model."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

from scool.algorithms.shared.checks import check_pull
from scool.algorithms.shared.sharing import check_participation, participants, server_average
from scool.contracts import Engine, Method
from scool.errors import check_fields
from scool.learning.local_sgd import LocalSGD, Pull
from scool.types import Info, Params, Tree


class FedProxState(NamedTuple):
    theta: Tree  # the common model, once per client


@final
@dataclass(frozen=True)
class FedProx(Method[FedProxState]):
    r"""FedAvg where a participant minimises $L(\theta_i) + \frac{\mu}{2} \|\theta_i - x^t\|^2$.

    $\theta_i \leftarrow \theta_i - \eta (\nabla L(\theta_i) + \mu (\theta_i - x^t))$ from
    $\theta_i = x^t$; then $x^{t+1} = \sum_{i \in A} \frac{n_i}{\sum_A n} \theta_i$.

    Every client is evaluated with x. The paper also lets slow clients do less work; here all do
    the same. Traffic: two models per participant and round. Li et al., MLSys 2020.
    """

    meets = "server"
    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    mu: float = 0.1
    """Pull of the local steps towards the common model; 0 is FedAvg."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_pull("mu", self.mu, self.sgd)
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> FedProxState:
        return FedProxState(engine.replicate(theta0))

    def step(self, engine: Engine, state: FedProxState, round: int) -> tuple[FedProxState, Info]:
        chosen = participants(engine, self.participation, round)
        pull = Pull(state.theta, self.mu)
        half, loss = engine.train(state.theta, self.sgd, round, among=chosen, pull=pull)
        theta, graph = server_average(engine, chosen, half, state.theta)
        return FedProxState(theta), {"train_loss": loss, "graph": graph}
