"""A personal model beside the common one, held near it."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

from scool.algorithms.shared.checks import check_pull
from scool.algorithms.shared.sharing import check_participation, participants, server_average
from scool.contracts import Engine, Method
from scool.errors import check_fields
from scool.learning.local_sgd import LocalSGD, Pull
from scool.types import Info, Params, Tree


class DittoState(NamedTuple):
    theta: Tree  # v, the personal models
    common: Tree  # x, the common model, once per client


@final
@dataclass(frozen=True)
class Ditto(Method[DittoState]):
    r"""The common model x as in FedAvg, and personal models v that are pulled towards it.

    Each participant of a round trains both, on the same batches:

    $v_i \leftarrow v_i - \eta (\nabla L(v_i) + \lambda (v_i - x^t))$, going on where it stopped;
    $y_i \leftarrow y_i - \eta \nabla L(y_i)$ from $y_i = x^t$, and $x^{t+1}$ is the mean of the
    $y_i$ weighted by samples.

    A client that does not take part keeps its v. The personal models are evaluated, so `train_loss`
    is theirs; `graph` holds the weights of the common model. Traffic: two models per participant
    and round. Li, Hu, Beirami, Smith, ICML 2021.
    """

    meets = "server"
    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    lam: float = 1.0
    """Pull of the personal models towards the common one; 0 is local SGD."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round (the paper: 0.1)."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_pull("lam", self.lam, self.sgd)
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> DittoState:
        return DittoState(engine.replicate(theta0), engine.replicate(theta0))

    def step(self, engine: Engine, state: DittoState, round: int) -> tuple[DittoState, Info]:
        chosen = participants(engine, self.participation, round)
        pull = Pull(state.common, self.lam)
        theta, loss = engine.train(state.theta, self.sgd, round, among=chosen, pull=pull)
        copies = engine.train(state.common, self.sgd, round, among=chosen).theta
        common, graph = server_average(engine, chosen, copies, state.common)
        return DittoState(theta, common), {"train_loss": loss, "graph": graph}
