"""A common body and a personal head, trained together."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

from scool.algorithms.shared.sharing import (
    check_participation,
    only,
    participants,
    server_average,
    split_names,
)
from scool.contracts import Engine, Method
from scool.errors import check_fields
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params, Tree


class FedPerState(NamedTuple):
    theta: Tree  # the common body, once per client, and each client's own head


@final
@dataclass(frozen=True)
class FedPer(Method[FedPerState]):
    r"""FedAvg of the shared tensors; the personal ones never leave their client.

    With $\theta_i = (x, h_i)$ a participant trains both parts at once to $(x_i, h_i)$, and
    $x \leftarrow \sum_{i \in A} \frac{n_i}{\sum_A n} x_i$.

    A client that does not take part keeps its head and is evaluated with it on the common body.
    Traffic: two bodies per participant and round. Arivazhagan et al., 2019.
    """

    meets = "server"
    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    personal: str = "head"
    """Tensors that stay: head (the last layer), norm (all normalisation), or names of layers,
    separated by commas."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> FedPerState:
        split_names(theta0, self.personal, engine.norms)  # refuse a layer that the model lacks
        return FedPerState(engine.replicate(theta0))

    def step(self, engine: Engine, state: FedPerState, round: int) -> tuple[FedPerState, Info]:
        shared = split_names(state.theta, self.personal, engine.norms).shared
        chosen = participants(engine, self.participation, round)
        half, loss = engine.train(state.theta, self.sgd, round, among=chosen)
        body, graph = server_average(engine, chosen, only(half, shared), only(state.theta, shared))
        return FedPerState(half | body), {"train_loss": loss, "graph": graph}
