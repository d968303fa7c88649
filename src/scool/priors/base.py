"""What a prior gets for free. To write one's own: a config, a state with `w`, three methods."""

from typing import ClassVar, Generic, Protocol, TypeVar

from torch import Tensor

from scool.contracts import Evidence, Mixes
from scool.graph.edges import Matrix
from scool.types import Info, Params, Tree


class HasGraph(Protocol):
    """A state that carries the graph."""

    @property
    def w(self) -> Matrix:
        """w_ij: how much client i learns from client j."""
        ...


S = TypeVar("S", bound=HasGraph)


class GraphPrior(Generic[S]):
    """Defaults of the contract `scool.contracts.Prior`.

    A prior is a frozen dataclass with a field `self_mode` that inherits from this class and writes
    `init`, `e_step` and `elbo`; `m_step`, `ranking` and `pull` only if it needs them.
    """

    mixes: ClassVar[Mixes] = "updates"

    def init(self, num_clients: int, theta0: Params, seed: int) -> S:
        """The state before the first round."""
        raise NotImplementedError

    def e_step(self, state: S, evidence: Evidence) -> S:
        """[E]: w and the other parameters of q."""
        raise NotImplementedError

    def elbo(self, state: S, evidence: Evidence) -> Tensor:
        """The part of the bound that depends on the graph."""
        raise NotImplementedError

    def m_step(self, state: S, evidence: Evidence) -> S:
        """[M]: nothing to learn."""
        return state

    def ranking(self, state: S, evidence: Evidence) -> Matrix:
        """Clients keep the neighbours with the largest weight."""
        return state.w

    def pull(self, state: S, evidence: Evidence) -> Tree | None:
        """Nothing added to the gradient in theta."""
        return None

    def describe(self, state: S) -> Info:
        """What a person may want to see of the graph besides w, e.g. the blocks."""
        return {}
