"""One common model, fine-tuned by each client before it is used."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

from scool.algorithms.shared.sharing import (
    check_participation,
    choose,
    participants,
    server_average,
)
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params, Tree


class FedAvgFTState(NamedTuple):
    theta: Tree  # the personal models: the common one after fine-tuning
    common: Tree  # x, the common model, once per client


@final
@dataclass(frozen=True)
class FedAvgFT(Method[FedAvgFTState]):
    r"""FedAvg; each client then fine-tunes the common model on its own data.

    $y_i \leftarrow y_i - \eta \nabla L(y_i)$ from $y_i = x^t$ for $i \in A$, and
    $x^{t+1} = \sum_{i \in A} \frac{n_i}{\sum_A n} y_i$;
    $\theta_i \leftarrow \theta_i - \eta \nabla L(\theta_i)$ from $\theta_i = x^{t+1}$, for
    `finetune_epochs`.

    The $\theta_i$ are evaluated; training does not continue from them. `train_loss` is that of the
    $y_i$, `graph` the weights of the common model. Traffic: two models per participant and round;
    all clients compute `finetune_epochs` more. Yu, Bagdasaryan, Shmatikov, 2020.
    """

    meets = "server"
    verbs = frozenset({"train", "mix"})
    trains_theta = False

    sgd: LocalSGD = field(default_factory=LocalSGD)
    finetune_epochs: int = 1
    """Passes over its own data by which each client fits the common model to itself."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        remedy = "give at least 1; without fine-tuning use the method fedavg"
        require(self.finetune_epochs >= 1, "finetune_epochs", self.finetune_epochs, remedy)
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> FedAvgFTState:
        return FedAvgFTState(engine.replicate(theta0), engine.replicate(theta0))

    def step(self, engine: Engine, state: FedAvgFTState, round: int) -> tuple[FedAvgFTState, Info]:
        chosen = participants(engine, self.participation, round)
        trained, loss = engine.train(state.common, self.sgd, round, among=chosen)
        common, graph = server_average(engine, chosen, trained, state.common)
        passes = replace(self.sgd, epochs=self.finetune_epochs, steps=0)
        tuned = engine.train(common, passes, round).theta
        theta = choose(engine, engine.active, tuned, state.theta)
        return FedAvgFTState(theta, common), {"train_loss": loss, "graph": graph}
