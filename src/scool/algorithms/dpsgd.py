"""Gossip on a fixed graph: decentralised parallel SGD."""

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self, final

from torch import Tensor

from scool.algorithms.shared.sharing import mix_and_move
from scool.contracts import Engine, Method
from scool.errors import ConfigError, check_fields, require
from scool.graph.matrix_file import read_matrix
from scool.graph.topology import check_mixing_matrix, check_topology, matrix_of
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params, Tree


class DPSGDState(NamedTuple):
    theta: Tree
    w: Tensor  # (K, K) symmetric, doubly stochastic


@final
@dataclass(frozen=True)
class DPSGD(Method[DPSGDState]):
    r"""[DPSGD] over a fixed mixing matrix w.

    cta (combine, then adapt):  $\theta_i^{t+1} = \sum_j w_{ij} \theta_j^t - \Delta_i$;
    atc (adapt, then combine):  $\theta_i^{t+1} = \sum_j w_{ij} \theta_j^{t+1/2}$.

    With one step per round, cta is the published algorithm and equals SCooL with a Dirac prior.
    Each client's own model is evaluated. Traffic: one model per edge and direction. Lian et al.,
    2017.
    """

    verbs = frozenset({"train", "mix"})
    stays = "topology"

    sgd: LocalSGD = field(default_factory=LocalSGD)
    topology: str = "group-ring"
    """ring, bipartite, group-ring, generalised-bipartite, complete or identity."""
    degree: int = 10
    """Neighbours of a client; group-ring has an even number, generalised-bipartite at most K/2."""
    shuffle: bool = False
    """Give the places in the graph to the clients at random, not in their order."""
    order: Literal["atc", "cta"] = "atc"
    """atc: local steps, then average; cta: average, then add the local change."""
    matrix: str = ""
    """File (.npy, .csv, .txt) with your own K x K weights instead of a topology."""
    weights: Tensor | None = field(default=None, compare=False)
    """The same as a tensor: from Python, and in records, which hold the contents of the file."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_topology(self)
        if self.matrix and self.weights is not None:
            raise ConfigError("matrix and weights are both given: give one of them")
        if self.weights is not None:
            check_mixing_matrix(self.weights)
        has_own = bool(self.matrix) or self.weights is not None
        for name in ("topology", "degree"):
            is_plain = getattr(self, name) == getattr(DPSGD, name)
            remedy = "the matrix says who is joined; leave it out, or leave out the matrix"
            require(not has_own or is_plain, name, getattr(self, name), remedy)

    def complete(self) -> Self:
        """The same with the matrix of the file in place of its name, as records keep it."""
        return replace(self, weights=read_matrix(self.matrix), matrix="") if self.matrix else self

    def init(self, engine: Engine, theta0: Params) -> DPSGDState:
        return DPSGDState(engine.replicate(theta0), self._mixing_matrix(engine))

    def step(self, engine: Engine, state: DPSGDState, round: int) -> tuple[DPSGDState, Info]:
        half, loss = engine.train(state.theta, self.sgd, round)
        if self.order == "atc":
            theta = engine.mix(state.w, half)
        else:
            theta = mix_and_move(engine, state.w, state.theta, half)
        return state._replace(theta=theta), {"train_loss": loss, "graph": state.w}

    def _mixing_matrix(self, engine: Engine) -> Tensor:
        """(K, K) your own matrix, checked, or that of the topology."""
        own = read_matrix(self.matrix) if self.matrix else self.weights
        if own is None:
            return matrix_of(self, engine.num_clients, engine.seed)
        own = own.double().cpu()
        check_mixing_matrix(own, engine.num_clients)
        return own
