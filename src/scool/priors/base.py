"""What a prior inherits and reads, and checks of your own prior and its results."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    final,
    get_args,
)

import torch
from torch import Tensor

from scool.contracts import Evidence, Mixes, SelfMode
from scool.errors import ConfigError, require, unknown
from scool.graph.edges import Edges, Matrix, unique, values_at
from scool.graph.growing import laid_over
from scool.randomness import derive
from scool.types import Info, Params, Tree

Null: TypeAlias = Literal["uniform", "auto"] | float | tuple[float, ...]
"""log P_0(D_j), what explains D_j without an edge: a number, one number per client, or a name."""

SMALL = 500  # clients up to which lists of pairs save nothing
SPARSE = 0.4  # share of the pairs above which they save nothing
DENSE = 0.6  # share of the pairs from which on groups can be told apart without a warm start
STRIDE = 256  # rounds between two keys of the chain that are cached
SLACK = 1e-6  # weights may be this far below 0, as in `check_mixing_matrix`


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

    def report(self, state: S, updates: Mapping[str, Tensor]) -> Tensor:
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
        """What to show of the graph besides w, e.g. the blocks."""
        return {}

    def grow(self, state: S, fresh: S) -> S:
        """Newcomers as in `fresh`, a state of all clients."""
        return laid_over(fresh, state)

    @property
    def stays(self) -> str:
        """The option that is made for one number of clients; empty: the graph can grow."""
        return ""


@lru_cache(maxsize=1024)
def sweep_key(seed: int, purpose: str, round: int) -> int:
    """The key of the random numbers of an E-step. Each round's is derived from that of the round
    before; a process that missed rounds finds the same one."""
    if round == 0:
        return derive(seed, purpose)
    last = (round - 1) // STRIDE * STRIDE
    key = sweep_key(seed, purpose, last)
    for _ in range(round - last):
        key = derive(key, "next")
    return key


def check_prior(prior: Any) -> None:
    """Refuse what is not a prior.

    Raises:
        ConfigError: it cannot infer a graph, or its self_mode is unknown.
    """
    is_prior = hasattr(prior, "e_step") and not isinstance(prior, type)
    require(is_prior, "prior", prior, "give a prior, e.g. scool.SBM()")
    for name, known in (("self_mode", get_args(SelfMode)), ("mixes", get_args(Mixes))):
        value = getattr(prior, name, None)
        if value not in known:
            unknown(f"{name} of {type(prior).__name__}", str(value), known)


def check_posterior(prior: Any, graph: Any, evidence: Evidence) -> None:
    """Refuse a posterior that is not a (K, K) matrix of finite weights of 0 or more: rows of NaN
    would silently leave their clients alone.

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


# ---------------------------------------------------------------------- evidence to terms


class Measured(NamedTuple):
    """The pairs that enter sums over (i, j), as edges; float64 on the CPU."""

    edges: Edges  # a set; loops only where w_ii is inferred
    ratio: Tensor  # (E,) l_ij - l0_j, tempered
    own: Tensor  # scalar: sum_i l_ii of the data that always counts (tempered); 0 when gated

    @property
    def is_dense(self) -> bool:
        """Whether most pairs were measured, as in the rounds before the graph gets sparse."""
        return self.edges.count > DENSE * len(self.edges) ** 2


class PairLists(NamedTuple):
    """For each client the pairs i != j that it is part of, in either direction."""

    peer: Tensor  # (pairs,) the other client; the pairs of client 0 first, then of 1, ...
    ends: Tensor  # (K + 1,) where the pairs of each client begin and end
    there: Tensor  # (pairs,) place of (i, j) among the edges; any where it is not measured
    back: Tensor  # (pairs,) place of (j, i)
    is_there: Tensor  # (pairs,) 1.0 where (i, j) is measured, else 0.0
    is_back: Tensor  # (pairs,) the same of (j, i)


def list_pairs(edges: Edges) -> PairLists | None:
    """The pairs as lists; None where there are so many that whole rows are faster."""
    k = len(edges)
    if k <= SMALL:
        return None
    off = edges.take(~edges.is_loop)
    linked: Tensor = unique(torch.cat([off.keys, off.j * k + off.i]))
    if len(linked) > SPARSE * k**2:
        return None
    i, j = linked // k, linked % k
    count = i.bincount(minlength=k)
    ends = torch.cat([count.new_zeros(1), count.cumsum(0)])
    (there, is_there), (back, is_back) = edges.find_keys(linked), edges.find_keys(j * k + i)
    return PairLists(j, ends, there, back, is_there.double(), is_back.double())


def read_edges(
    evidence: Evidence,
    self_mode: SelfMode,
    null: Tensor | float | tuple[float, ...],
    scale: float = 1.0,
) -> Measured:
    """Pairs, null model, likelihood temperature `scale` and self mode applied to the evidence."""
    found = evidence.pairs
    l0 = _null_of_each(null, len(found))
    gated = self_mode == "gated"
    own = torch.zeros((), dtype=torch.float64) if gated else found.loop_values().sum() / scale
    edges = found if gated else found.take(~found.is_loop)
    of_source = l0 if l0.ndim == 0 else l0.expand(len(found))[edges.j]
    return Measured(edges, (edges.values - of_source) / scale, own)


def _null_of_each(null: Tensor | float | tuple[float, ...], clients: int) -> Tensor:
    l0 = torch.as_tensor(null, dtype=torch.float64).cpu()
    fits = l0.ndim == 0 or len(l0) in (1, clients)
    require(fits, "null_loglik", null, f"give one number, or one for each of {clients} clients")
    return l0


def resolve_null(
    null: Null, evidence: Evidence, learned: bool
) -> Tensor | float | tuple[float, ...]:
    """`uniform` is -log C; `auto` is `uniform` where B is learned (without it B and w collapse
    to 0), else 0 as in the paper."""
    if isinstance(null, str):
        return evidence.uniform if null == "uniform" or learned else 0.0
    return null


def check_null(null: Null) -> None:
    """Refuse names other than the two."""
    require(
        not isinstance(null, str) or null in ("uniform", "auto"),
        "null_loglik",
        null,
        "give a number, 'uniform' or 'auto'",
    )


def bernoulli_entropy(w: Tensor) -> Tensor:
    """h(w) = -w log w - (1 - w) log(1 - w), with 0 log 0 = 0.

    >>> bernoulli_entropy(torch.tensor([0.0, 1.0])).tolist()
    [-0.0, -0.0]
    """
    return -torch.xlogy(w, w) - torch.xlogy(1 - w, 1 - w)


def pair_terms(own: Tensor, ratio: Tensor, w: Tensor, temperature: float) -> Tensor:
    """The likelihood and T times the entropy of q(Y); w and the ratio are 0 for other pairs."""
    return own + (w * ratio).sum() + temperature * bernoulli_entropy(w).sum()


def categorical_entropy(q: Tensor) -> Tensor:
    """-sum_g q_g log q_g over the last axis."""
    return -torch.xlogy(q, q).sum(-1)


def masked_log_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """Log softmax of each row over the columns in `mask`, -inf elsewhere; an empty row is all -inf.

    >>> masked_log_softmax(torch.zeros(1, 3), torch.tensor([[True, True, False]])).exp().tolist()
    [[0.5, 0.5, 0.0]]
    """
    # the second filling turns the NaN of an empty row into -inf
    return x.masked_fill(~mask, -torch.inf).log_softmax(-1).masked_fill(~mask, -torch.inf)


@final
class Difference(Mapping[str, Tensor]):
    """theta_i - theta^0, computed for one tensor when it is read: most priors never do."""

    def __init__(self, theta: Tree, theta0: Params) -> None:
        self.theta, self.theta0 = theta, theta0

    def __getitem__(self, name: str) -> Tensor:
        return self.theta[name] - self.theta0[name].to(self.theta[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.theta)

    def __len__(self) -> int:
        return len(self.theta)

    def rows(self, clients: slice) -> "Difference":
        """Of some clients only."""
        return Difference({name: t[clients] for name, t in self.theta.items()}, self.theta0)
