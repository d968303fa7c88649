"""The reference: mixing by the true graph, where the truth is known."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

from scool.algorithms.shared.sharing import mix_updates
from scool.contracts import Engine, Method
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params, Tree


class TruthState(NamedTuple):
    theta: Tree


@final
@dataclass(frozen=True)
class Truth(Method[TruthState]):
    r"""$\theta_i^{t+1} = \theta_i^t - \sum_j w^*_{ij} \Delta_j$ with the true graph $w^*$.

    What a perfect graph would give: no method that has to learn the graph may look at it.
    """

    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)

    def init(self, engine: Engine, theta0: Params) -> TruthState:
        if engine.truth is None:
            raise ConfigError(
                "method 'truth' needs a federation whose true graph is known: this one has none "
                "(use planted data, or pass truth= to the federation)"
            )
        return TruthState(engine.replicate(theta0))

    def step(self, engine: Engine, state: TruthState, round: int) -> tuple[TruthState, Info]:
        half, loss = engine.train(state.theta, self.sgd, round)
        assert engine.truth is not None
        theta = mix_updates(engine, engine.truth, state.theta, half)
        return TruthState(theta), {"train_loss": loss, "graph": engine.truth}
