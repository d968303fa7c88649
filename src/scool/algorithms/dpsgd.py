"""Gossip on a fixed graph: decentralised parallel SGD."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

from torch import Tensor

from scool.contracts import Engine
from scool.errors import check_fields
from scool.graph.topology import mixing_matrix
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params, Tree


class DPSGDState(NamedTuple):
    theta: Tree
    w: Tensor  # (K, K) symmetric, doubly stochastic


@final
@dataclass(frozen=True)
class DPSGD:
    r"""[DPSGD] over a fixed mixing matrix w.

    cta (combine, then adapt):  $\theta_i^{t+1} = \sum_j w_{ij} \theta_j^t - \Delta_i$;
    atc (adapt, then combine):  $\theta_i^{t+1} = \sum_j w_{ij} \theta_j^{t+1/2}$.

    With one step a round, cta is the published algorithm and equals SCooL with a Dirac prior. Each
    client's own model is evaluated. Traffic: one model an edge and direction. Lian et al., 2017.
    """

    sgd: LocalSGD = field(default_factory=LocalSGD)
    topology: str = "group-ring"
    """ring, bipartite, group-ring, generalised-bipartite, complete or identity."""
    degree: int = 10
    """Neighbours of a client (group-ring and generalised-bipartite)."""
    order: Literal["atc", "cta"] = "atc"

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, engine: Engine, theta0: Params) -> DPSGDState:
        w = mixing_matrix(self.topology, engine.num_clients, degree=self.degree, seed=engine.seed)
        return DPSGDState(engine.replicate(theta0), w)

    def step(self, engine: Engine, state: DPSGDState, round: int) -> tuple[DPSGDState, Info]:
        half, loss = engine.train(state.theta, self.sgd, round)
        if self.order == "atc":
            theta = engine.mix(state.w, half)
        else:
            mixed = engine.mix(state.w, state.theta)
            theta = {n: mixed[n] + half[n] - state.theta[n] for n in mixed}
        return state._replace(theta=theta), {"train_loss": loss, "graph": state.w}
