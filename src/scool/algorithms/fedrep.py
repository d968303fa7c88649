"""A common body and a personal head, trained one after the other."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

from scool.algorithms.shared.sharing import (
    check_participation,
    only,
    participants,
    server_average,
    split_names,
)
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params, Tree


class FedRepState(NamedTuple):
    theta: Tree  # the common body, once per client, and each client's own head


@final
@dataclass(frozen=True)
class FedRep(Method[FedRepState]):
    r"""First the head on the common body, then the body under that head, then FedAvg of bodies.

    $h_i \leftarrow h_i - \eta \nabla_h L(x^t, h_i)$ for `head_epochs`, going on where it stopped;
    $x_i \leftarrow x_i - \eta \nabla_x L(x_i, h_i)$ for `epochs` (or `steps`), from $x^t$; then
    $x^{t+1} = \sum_{i \in A} \frac{n_i}{\sum_A n} x_i$.

    A client that does not take part keeps its head and is evaluated with it on the common body;
    `train_loss` is that of the body's steps. Traffic: two bodies per participant and round.
    Collins et al., ICML 2021.
    """

    meets = "server"
    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    head_epochs: int = 5
    """Passes over its own data for the head, before those for the body (`epochs` or `steps`)."""
    personal: str = "head"
    """Tensors that stay: head (the last layer), norm (all normalisation), or names of layers,
    separated by commas."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.head_epochs >= 1, "head_epochs", self.head_epochs, "give at least 1")
        remedy = "name a layer, e.g. head; without one use the method fedavg"
        require(bool(self.personal.strip(" ,")), "personal", self.personal, remedy)
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> FedRepState:
        split_names(theta0, self.personal, engine.norms)  # refuse a layer that the model lacks
        return FedRepState(engine.replicate(theta0))

    def step(self, engine: Engine, state: FedRepState, round: int) -> tuple[FedRepState, Info]:
        shared, personal = split_names(state.theta, self.personal, engine.norms)
        chosen = participants(engine, self.participation, round)
        passes = replace(self.sgd, epochs=self.head_epochs, steps=0)
        theta = engine.train(state.theta, passes, round, among=chosen, only=personal).theta
        half, loss = engine.train(theta, self.sgd, round, among=chosen, only=shared)
        body, graph = server_average(engine, chosen, only(half, shared), only(state.theta, shared))
        return FedRepState(half | body), {"train_loss": loss, "graph": graph}
