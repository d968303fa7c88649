"""Cross-gradient aggregation: a step that contradicts none of the neighbours' gradients."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.cross_updates import CrossUpdates
from scool.algorithms.shared.sharing import choose
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.graph.edges import Edges
from scool.graph.mixing import edges_without
from scool.graph.topology import check_topology, matrix_of
from scool.learning.local_sgd import LocalSGD
from scool.models.stack import flat
from scool.types import Info, Params, Tree

EXPLODED = 1000  # a loss this many times that of the uninformed predictor does not recover


class CGAState(NamedTuple):
    theta: Tree
    w: Edges  # pi, symmetric, doubly stochastic
    velocity: Tree  # empty without momentum
    diverged: Tensor  # (K,) bool: these clients have stopped


@final
@dataclass(frozen=True)
class CGA(Method[CGAState]):
    r"""$\theta_i \leftarrow \sum_j \pi_{ij} \theta_j - \tilde g_i$, with the $\tilde g_i$ closest
    to $a = \pi_{ii} g_{ii}$ that no cross gradient contradicts.

    $g_{ij}$ is the change, negated, that the local steps of client j make to the model of client i:
    with --steps 1 the cross gradient times the learning rate. $G$ has the rows $\pi_{ij} g_{ij}$,
    $j \ne i$;

    $\min_z \frac12 \|z - a\|^2$ with $G z \ge 0$, in the dual $\min_{u \ge m} \frac12 u^\top G
    G^\top u + a^\top G^\top u$ and $\tilde g = a + G^\top u$ (the margin m is 0 in the paper).

    Momentum: $v \leftarrow \beta v + \tilde g$, and in place of $\tilde g$ the step $\tilde g +
    \beta v$ (`official`) or $v$ (`paper`).

    Many local steps may diverge, as in the paper's table: a client whose loss is not a number, or a
    thousand times that of the uninformed predictor, stops where it is, its neighbours go on without
    it, and `diverged` in the record counts such clients. Traffic: two models per edge and
    direction, and a byte to all clients, whether one goes on; the average costs nothing, as each
    client has seen its neighbours' models. Memory: one model per edge and client. Esfandiari et
    al., ICML 2021.
    """

    verbs = frozenset({"train_at", "products", "weighted_sums", "mix", "gather"})
    stays = "topology"

    sgd: LocalSGD = field(default_factory=LocalSGD)
    topology: str = "group-ring"
    """ring, bipartite, group-ring, generalised-bipartite, complete or identity."""
    degree: int = 10
    """Neighbours of a client; group-ring has an even number, generalised-bipartite at most K/2."""
    shuffle: bool = False
    """Give the places in the graph to the clients at random, not in their order."""
    variant: Literal["vector", "tensor"] = "vector"
    """One quadratic program for the whole model, or one for each of its tensors (official code)."""
    margin: float = 0.0
    """Least weight u of every neighbour's gradient (official code: 0.5)."""
    beta: float = 0.0
    """Momentum over rounds (official code: 0.9)."""
    momentum_form: Literal["official", "paper"] = "official"
    """Where the momentum enters; no difference with beta = 0."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_topology(self)
        require(self.margin >= 0, "margin", self.margin, "give 0 or more")
        require(0 <= self.beta < 1, "beta", self.beta, "give a number in [0, 1)")

    def init(self, engine: Engine, theta0: Params) -> CGAState:
        k, theta = engine.num_clients, engine.replicate(theta0)
        w = Edges.of(matrix_of(self, k, engine.seed))
        velocity = {n: torch.zeros_like(t) for n, t in theta.items()} if self.beta else {}
        return CGAState(theta, w, velocity, torch.zeros(k, dtype=torch.bool))

    def step(self, engine: Engine, state: CGAState, round: int) -> tuple[CGAState, Info]:
        theta, goes = state.theta, engine.active & ~state.diverged
        joined = state.w.on(torch.ones(state.w.count, dtype=torch.bool), False)
        pairs = joined.updated(Edges.loops(len(goes), goes)).among(goes)
        found = engine.train_at(theta, pairs, self.sgd, round)
        loss = pairs.on(found.loss, torch.nan).loop_values()
        worst = EXPLODED * max(1.0, -engine.uniform_log_lik)
        goes = goes & (loss < worst)  # NaN is not
        w = edges_without(state.w, goes)
        g = CrossUpdates(engine, w, pairs, theta, found).combine(self.variant, self.margin)
        mixed = engine.mix(w, theta, via="held")
        velocity, move = self._momentum(state.velocity, g)
        stepped = {n: mixed[n] - move[n] for n in mixed}
        fits = goes & engine.gather(_is_finite(stepped)).cpu()
        after = CGAState(
            choose(engine, fits, stepped, theta),
            state.w,
            choose(engine, fits, velocity, state.velocity),
            engine.active & ~fits,
        )
        info = {"train_loss": loss, "graph": w, "diverged": float(after.diverged.sum())}
        return after, info

    def _momentum(self, velocity: Tree, g: Tree) -> tuple[Tree, Tree]:
        """The velocity after the step, and the step."""
        if not velocity:
            return {}, g
        v = {n: self.beta * velocity[n] + g[n] for n in g}
        return v, v if self.momentum_form == "paper" else {n: g[n] + self.beta * v[n] for n in g}


def _is_finite(tree: Tree) -> Tensor:
    """(n,) bool."""
    return torch.stack([flat(t).isfinite().all(dim=1) for t in tree.values()]).all(dim=0)
