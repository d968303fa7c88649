"""A backbone that neighbours agree on and a personal head: a bilevel problem."""

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.checks import check_pull
from scool.algorithms.shared.sharing import mix_and_move, only, split_names
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.graph.topology import check_topology, matrix_of
from scool.learning.local_sgd import LocalSGD, Pull
from scool.types import Info, Params, Tree


class SPDBState(NamedTuple):
    theta: Tree  # the backbones x_i and the heads y_i
    w: Tensor  # (K, K) symmetric, doubly stochastic
    dual: Tree  # q_i, of the backbone; empty in the gossip form


@final
@dataclass(frozen=True)
class SPDB(Method[SPDBState]):
    r"""$\min_{x_1 = \dots = x_K} \frac1K \sum_i L_i(x_i, y_i^*(x_i))$, $y_i^*(x) = \arg\min_y
    L_i(x, y)$, with $\theta_i = (x_i, y_i)$.

    gossip: local steps on $(x_i, y_i)$, then $x_i \leftarrow \sum_j w_{ij} x_j$ (atc), or
    $x_i \leftarrow \sum_j w_{ij} x_j - \Delta_i$ (cta);
    primal-dual: $q_i \leftarrow q_i + \rho (x_i - \sum_j w_{ij} x_j)$, steps on $y_i$, then steps
    $x_i \leftarrow x_i - \eta [\nabla_x L_i + q_i + \rho (x_i - \sum_j w_{ij} x_j^t)]$.

    Both levels have the same loss, whose gradient in y vanishes at $y^*$: the hypergradient is
    $\nabla_x L_i$. With one step, $\rho = 1/\eta$ and q kept at 0 the forms have the same step on
    x. Heads never travel. Traffic: one backbone per edge and direction. Reconstructed from the
    abstract of Lu et al., ICASSP 2022.
    """

    verbs = frozenset({"train", "mix"})
    stays = "topology"

    sgd: LocalSGD = field(default_factory=LocalSGD)
    personal: str = "head"
    """Tensors that stay: head (the last layer), norm (all normalisation), or names of layers,
    separated by commas."""
    topology: str = "group-ring"
    """ring, bipartite, group-ring, generalised-bipartite, complete or identity."""
    degree: int = 10
    """Neighbours of a client; group-ring has an even number, generalised-bipartite at most K/2."""
    shuffle: bool = False
    """Give the places in the graph to the clients at random, not in their order."""
    form: Literal["gossip", "primal-dual"] = "gossip"
    order: Literal["atc", "cta"] = "atc"
    """gossip: local steps, then average (atc), or average, then add the local change (cta)."""
    rho: float = 0.1
    """primal-dual: strength of the pull towards the neighbours, and step of the dual variable."""
    head_steps: int = 0
    """Mini-batches that the head takes alone, first; 0: none (gossip), or as many as the backbone
    (primal-dual)."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_topology(self)
        require(self.head_steps >= 0, "head_steps", self.head_steps, "give 0 or more")
        if self.form == "primal-dual":
            require(self.rho > 0, "rho", self.rho, "give a positive number")
            check_pull("rho", self.rho, self.sgd)

    def init(self, engine: Engine, theta0: Params) -> SPDBState:
        theta = engine.replicate(theta0)
        shared = only(theta, split_names(theta0, self.personal, engine.norms).shared)
        w = matrix_of(self, engine.num_clients, engine.seed)
        has_dual = self.form == "primal-dual"
        dual = {n: torch.zeros_like(t) for n, t in shared.items()} if has_dual else {}
        return SPDBState(theta, w, dual)

    def step(self, engine: Engine, state: SPDBState, round: int) -> tuple[SPDBState, Info]:
        advance = self._gossip if self.form == "gossip" else self._primal_dual
        return advance(engine, state, round)

    def _gossip(self, engine: Engine, state: SPDBState, round: int) -> tuple[SPDBState, Info]:
        shared, head = split_names(state.theta, self.personal, engine.norms)
        start = state.theta
        if self.head_steps:
            start, _ = engine.train(start, self._head_sgd, round, only=head)
        half, loss = engine.train(start, self.sgd, round)
        if self.order == "atc":
            x = engine.mix(state.w, only(half, shared))
        else:
            x = mix_and_move(engine, state.w, only(start, shared), half)
        return state._replace(theta=half | x), {"train_loss": loss, "graph": state.w}

    def _primal_dual(self, engine: Engine, state: SPDBState, round: int) -> tuple[SPDBState, Info]:
        shared, head = split_names(state.theta, self.personal, engine.norms)
        x = only(state.theta, shared)
        mixed = engine.mix(state.w, x)
        dual = {n: state.dual[n] + self.rho * (x[n] - mixed[n]) for n in x}
        anchor = state.theta | {n: mixed[n] - dual[n] / self.rho for n in x}
        half, _ = engine.train(state.theta, self._head_sgd, round, only=head)
        pull = Pull(anchor, self.rho)  # the head is frozen meanwhile, so it is not pulled
        theta, loss = engine.train(half, self.sgd, round, only=shared, pull=pull)
        return SPDBState(theta, state.w, dual), {"train_loss": loss, "graph": state.w}

    @property
    def _head_sgd(self) -> LocalSGD:
        return replace(self.sgd, steps=self.head_steps) if self.head_steps else self.sgd
