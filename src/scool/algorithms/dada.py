"""Models and an undirected graph, learned in turn by minimising one function of both."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.checks import check_pull
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.graph.mixing import keep_top, normalise_rows, num_kept
from scool.learning.local_sgd import LocalSGD, Pull
from scool.randomness import derive, uniform
from scool.types import Info, Params, Tree


class DadaState(NamedTuple):
    theta: Tree
    w: Tensor  # (K, K) symmetric, 0 on the diagonal
    length: Tensor  # scalar: the step of the graph


@final
@dataclass(frozen=True)
class Dada(Method[DadaState]):
    r"""$\min_{\theta, w \ge 0} \sum_k d_k L_k(\theta_k) + \frac\mu2 \Big[\sum_{k<l} w_{kl} z_{kl} -
    \sum_k \log d_k + \frac{\lambda\mu}{2} \sum_{k<l} w_{kl}^2\Big]$, $d_k = \sum_l w_{kl}$.

    $z_{kl} = \|\theta_k - \theta_l\|^2$, divided by its mean, so that $\lambda$ does not depend on
    the network. Models: local steps with gradient $\nabla L_k + \mu (\theta_k - \sum_l
    \frac{w_{kl}}{d_k} \theta_l^t)$, the function divided by $d_k$; the sum goes over the largest
    $w_{kl}$. Graph: projected gradient steps on the pairs that met in the round, halved where the
    function would grow, else 5 % longer.

    Traffic: the models of the neighbours and of `kappa` random peers. The published models are
    boosted stumps; this port to networks is ours. Zantedeschi et al., AISTATS 2020.
    """

    learns_graph = True
    verbs = frozenset({"train", "fetch", "mix", "squared_distances"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    mu: float = 1.0
    """Pull towards the neighbours, and weight of the graph's terms beside the losses."""
    lam: float = 10.0
    """Weight of the squared edges: more spreads them over more neighbours."""
    fraction: float = 0.1
    """Neighbours kept for the models, as a fraction of all clients."""
    kappa: int = 10
    """Random peers that a client meets besides, so that the graph can find better ones."""
    graph_steps: int = 50
    """Steps on the graph in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.mu > 0, "mu", self.mu, "give a positive number")
        check_pull("mu", self.mu, self.sgd)
        require(self.lam >= 0, "lam", self.lam, "give 0 or more")
        require(0 < self.fraction <= 1, "fraction", self.fraction, "give a fraction in (0, 1]")
        require(self.kappa >= 0, "kappa", self.kappa, "give 0 or more")
        require(self.graph_steps >= 1, "graph_steps", self.graph_steps, "give at least 1")

    def init(self, engine: Engine, theta0: Params) -> DadaState:
        k = engine.num_clients
        w = (1 - torch.eye(k, dtype=torch.float64)) / max(1, k - 1)
        return DadaState(engine.replicate(theta0), w, torch.tensor(0.01, dtype=torch.float64))

    def step(self, engine: Engine, state: DadaState, round: int) -> tuple[DadaState, Info]:
        w = _among(state.w, engine.active)
        near, met = self._meet(engine, w, round)
        engine.fetch(state.theta, met)
        graph = normalise_rows(w * near)
        pull = Pull(engine.mix(graph, state.theta, via="held"), self.mu)
        theta, loss = engine.train(state.theta, self.sgd, round, pull=pull if near.any() else None)
        w, met = _among(w, engine.active), (met | met.T) & engine.active[:, None] & engine.active
        z = engine.squared_distances(state.theta).where(met, 0.0)
        z = z / (z.sum() / met.sum()).clamp(min=torch.finfo(z.dtype).tiny)
        objective = GraphObjective(z.nan_to_num(), loss.nan_to_num(), self.mu, self.lam)
        w, length = objective.descend(w, met, state.length, self.graph_steps)
        info = {"train_loss": loss, "graph": graph, "graph_objective": objective(w)}
        return DadaState(theta, w, length), info

    def _meet(self, engine: Engine, w: Tensor, round: int) -> tuple[Tensor, Tensor]:
        """(K, K) bool, twice: each client's neighbours, and all clients whose models it fetches."""
        k = engine.num_clients
        peers = engine.active[:, None] & engine.active & ~torch.eye(k, dtype=torch.bool)
        count = num_kept(k, self.fraction)
        near = keep_top(w, count, peers & (w > 0), keep_self=False)
        if not self.kappa:
            return near, near
        luck = uniform(derive(engine.seed, "dada", round), torch.arange(k), (k,))
        return near, near | keep_top(luck, self.kappa, peers & ~near, keep_self=False)


def _among(w: Tensor, active: Tensor) -> Tensor:
    """The edges between active clients; a client that loses its last edge starts over with all."""
    pairs = active[:, None] & active & ~torch.eye(len(w), dtype=torch.bool)
    w = w.where(pairs, 0.0)
    alone = ~w.any(dim=1)
    return torch.where(pairs & (alone[:, None] | alone), 1 / max(1, len(w) - 1), w)


class GraphObjective(NamedTuple):
    """What the graph minimises while the models are fixed. A client without edges enters no
    term."""

    z: Tensor  # (K, K) squared distances, 0 for pairs that have not met
    loss: Tensor  # (K,)
    mu: float
    lam: float

    def __call__(self, w: Tensor) -> Tensor:
        d = w.sum(dim=1)
        edges = (w * self.z).sum() / 2 + self.lam * self.mu / 2 * w.square().sum() / 2
        return (d * self.loss).sum() + self.mu / 2 * (edges - d[d > 0].log().sum())

    def gradient(self, w: Tensor) -> Tensor:
        """(K, K) by $w_{kl} = w_{lk}$."""
        d = w.sum(dim=1)
        inverse = torch.where(d > 0, 1 / d, 0.0)
        inner = self.z - (inverse[:, None] + inverse) + self.lam * self.mu * w
        return self.loss[:, None] + self.loss + self.mu / 2 * inner

    def descend(
        self, w: Tensor, pairs: Tensor, length: Tensor, steps: int
    ) -> tuple[Tensor, Tensor]:
        """Projected gradient steps on some pairs; the new weights, and the length of the last
        step."""
        value = self(w)
        connected = w.any(dim=1)
        for _ in range(steps):
            tried = (w - length * self.gradient(w) * pairs).clamp(min=0)
            after = self(tried)
            falls = bool(after <= value) and torch.equal(tried.any(dim=1), connected)
            w, value = (tried, after) if falls else (w, value)
            length = length * (1.05 if falls else 0.5)
        return w, length
