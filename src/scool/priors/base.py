"""What a prior of one's own inherits, and what it must be and return."""

from functools import lru_cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args

from torch import Tensor

from scool.contracts import Evidence, Mixes, SelfMode
from scool.errors import ConfigError, require, unknown
from scool.graph.edges import Edges, Matrix, values_at
from scool.randomness import derive
from scool.types import Info, Params, Tree

STRIDE = 256  # rounds between two keys of the chain that are remembered
SLACK = 1e-6  # a graph that a person gives may be as far below 0, see `check_mixing_matrix`


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
    `init`, `e_step` and `elbo`; the other methods only if it needs them.
    """

    mixes: ClassVar[Mixes] = "updates"
    reports: ClassVar[bool] = False

    def init(self, num_clients: int, theta0: Params, seed: int) -> S:
        """The state before the first round."""
        raise NotImplementedError

    def e_step(self, state: S, evidence: Evidence) -> S:
        """[E]: w and the other parameters of q."""
        raise NotImplementedError

    def elbo(self, state: S, evidence: Evidence) -> Tensor:
        """The part of the bound that depends on the graph."""
        raise NotImplementedError

    def report(self, state: S, updates: Tree) -> Tensor:
        """Only where `reports` is True: what each client tells all others of its update."""
        raise NotImplementedError

    def gradient(self, state: S, evidence: Evidence) -> Params:
        """No parameters that all clients learn together."""
        return {}

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


@lru_cache(maxsize=1024)
def sweep_key(seed: int, purpose: str, round: int) -> int:
    """The key of the random numbers of an E-step. Each round's is derived from that of the round
    before; whoever missed rounds finds the same one."""
    if round == 0:
        return derive(seed, purpose)
    last = (round - 1) // STRIDE * STRIDE
    key = sweep_key(seed, purpose, last)
    for _ in range(round - last):
        key = derive(key, "next")
    return key


def check_prior(prior: Any) -> None:
    """Refuse what is no prior.

    Raises:
        ConfigError: it cannot infer a graph, or says nothing known about self-loops.
    """
    is_prior = hasattr(prior, "e_step") and not isinstance(prior, type)
    require(is_prior, "prior", prior, "give a prior, e.g. scool.SBM()")
    for name, known in (("self_mode", get_args(SelfMode)), ("mixes", get_args(Mixes))):
        value = getattr(prior, name, None)
        if value not in known:
            unknown(f"{name} of {type(prior).__name__}", str(value), known)


def check_posterior(prior: Any, graph: Any, evidence: Evidence) -> None:
    """Refuse a posterior that is not a (K, K) matrix of finite weights of 0 or more: rows of NaN
    would leave their clients alone, and nobody would know.

    Raises:
        ConfigError: names the prior and what is wrong.
    """
    w, pairs = getattr(graph, "w", None), Edges.of(evidence.seen)
    size = tuple(pairs.shape)
    if not isinstance(w, Tensor | Edges):
        raise ConfigError(
            f"e_step of {type(prior).__name__} gave {type(w).__name__} as w: give a state with a "
            f"tensor w of shape {size}; see docs/own-prior-or-method.md"
        )
    if tuple(w.shape) == size:
        measured = values_at(w, pairs)
        if bool(measured.isfinite().all()) and bool((measured >= -SLACK).all()):
            return
    found = w.values if isinstance(w, Edges) else w
    odd, negative = int((~found.isfinite()).sum()), int((found < -SLACK).sum())
    raise ConfigError(
        f"e_step of {type(prior).__name__} gave w of shape {tuple(w.shape)}, {odd} entries of it "
        f"not finite and {negative} negative: give weights of 0 or more of shape {size}; see "
        "docs/own-prior-or-method.md"
    )
