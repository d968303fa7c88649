"""The Dirac prior: the graph is given, and SCooL becomes D-PSGD."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from scool.contracts import Evidence, Mixes, SelfMode
from scool.errors import check_fields, require
from scool.graph.edges import Edges
from scool.graph.topology import check_mixing_matrix, check_topology, matrix_of
from scool.priors.base import GraphPrior
from scool.types import Params


class DiracState(NamedTuple):
    """Nothing but the graph."""

    w: Edges  # symmetric, rows sum to one


@final
@dataclass(frozen=True)
class Dirac(GraphPrior[DiracState]):
    r"""A fixed symmetric graph, cases 1.1 x 2.1 of the paper.

    [DPSGD] One gradient step of rate a on $\sum_i L(D_i;\theta_i) + \frac{\lambda}{2}\sum_{i<j}
    w_{ij}\|\theta_i-\theta_j\|^2$ is $\theta_i \leftarrow \sum_j w'_{ij}\theta_j - a\nabla
    L(D_i;\theta_i)$ with $w' = (1 - a\lambda) I + a\lambda\, w$; $\lambda = 1/a$ is D-PSGD.

    The paper sums the penalty over ordered pairs and prints half of its gradient; summing over
    unordered pairs makes its result right.
    """

    mixes: ClassVar[Mixes] = "models"

    topology: str = "group-ring"
    """Name of the graph, see `scool.graph.topology`."""
    degree: int = 10
    """Neighbours of a client, where the topology leaves it open."""
    shuffle: bool = False
    """Give the places in the graph to the clients at random, not in their order."""
    coupling: float = 1.0
    """a * lambda: 1 is D-PSGD, less couples the models softly, 0 not at all."""
    self_mode: SelfMode = "gated"
    """w_ii is the share a client keeps of its own model."""
    matrix: Tensor | None = field(default=None, compare=False)
    """(K, K) a graph of your own instead of a named one; from Python only."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.self_mode == "gated", "self_mode", self.self_mode, "a fixed graph has w_ii")
        check_topology(self)
        remedy = "give a number in [0, 1]; above 1 the iteration may diverge"
        require(0 <= self.coupling <= 1, "coupling", self.coupling, remedy)
        if self.matrix is not None:
            check_mixing_matrix(self.matrix, connected=False)

    def init(self, num_clients: int, theta0: Params, seed: int) -> DiracState:
        """The graph, with the coupling worked in."""
        del theta0
        w = self._matrix(num_clients, seed)
        keep = torch.eye(num_clients, dtype=torch.float64)
        return DiracState(Edges.of((1 - self.coupling) * keep + self.coupling * w))

    def e_step(self, state: DiracState, evidence: Evidence) -> DiracState:
        """[E] Nothing is uncertain."""
        return state

    def elbo(self, state: DiracState, evidence: Evidence) -> Tensor:
        """0: a point mass has no entropy, and the graph gates no likelihood."""
        return torch.zeros((), dtype=torch.float64)

    @property
    def stays(self) -> str:
        """The graph is one of so many clients."""
        return "matrix" if self.matrix is not None else "topology"

    def _matrix(self, num_clients: int, seed: int) -> Tensor:
        if self.matrix is None:
            return matrix_of(self, num_clients, seed)
        require(
            len(self.matrix) == num_clients,
            "matrix",
            tuple(self.matrix.shape),
            f"give one row and one column for each of the {num_clients} clients",
        )
        return self.matrix.double().cpu()
