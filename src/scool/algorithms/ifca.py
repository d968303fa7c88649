"""Clustered federated learning: every client trains the cluster model that suits it best."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import as_metric
from scool.models.layers import is_statistic
from scool.models.stack import flat
from scool.randomness import generator
from scool.types import Info, Params, Tree


class IFCAState(NamedTuple):
    theta: Tree  # the model of each client's cluster
    clusters: Tree  # (M, ...) the models of all clusters, known to all clients


@final
@dataclass(frozen=True)
class IFCA(Method[IFCAState]):
    r"""$m_i = \arg\min_m L_i(c_m)$ over the cluster models c; client i trains $c_{m_i}$ to
    $\theta_i$; then $c_m = \sum_{i: m_i = m} \frac{n_i}{\sum n} \theta_i$.

    Losses are those of all own training samples. A cluster that no client chose keeps its model.
    The clusters must start apart, and no start may be better than the others: the first is
    $\theta^0$, each other one has the entries of every tensor of $\theta^0$ shuffled, which is as
    good as a new draw. Each client is evaluated with the model of its cluster.

    Every client has to know all M models, so a round costs a sum of M models over all clients, $2
    (K - 1)$ messages per tensor. Ghosh et al., NeurIPS 2020.
    """

    meets = "server"
    learns_graph = True
    verbs = frozenset({"train", "measure", "total"})
    trains_theta = False  # but the models of the clusters

    sgd: LocalSGD = field(default_factory=LocalSGD)
    num_clusters: int = 5
    """M, how many cluster models there are."""
    spread: float = 1.0
    """How far apart the cluster models start: 1 as if drawn separately, less nearer to theta0."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.num_clusters >= 1, "num_clusters", self.num_clusters, "give at least 1")
        remedy = "give a number in (0, 1]; clusters that start equal never part"
        require(0 < self.spread <= 1, "spread", self.spread, remedy)

    def init(self, engine: Engine, theta0: Params) -> IFCAState:
        theta = engine.replicate(theta0)
        options = self.num_clusters, self.spread, engine.seed
        clusters = {n: _starts(theta0[n].to(t), n, *options) for n, t in theta.items()}
        return IFCAState(theta, clusters)

    def step(self, engine: Engine, state: IFCAState, round: int) -> tuple[IFCAState, Info]:
        chosen = self._choices(engine, state.clusters)
        half, loss = engine.train(_models(engine, state.clusters, chosen), self.sgd, round)
        members = F.one_hot(chosen, self.num_clusters) * (engine.sizes * engine.active)[:, None]
        shares = members / members.sum(dim=0).clamp(min=1).double()  # (K, M), columns sum to 1
        clusters = _averages(engine, shares, half, state.clusters)
        empty = ~shares.any(dim=0)[chosen]  # a cluster that only clients in quarantine chose
        graph = shares.T[chosen] + torch.diag(empty.double())
        theta = _models(engine, clusters, chosen)
        return IFCAState(theta, clusters), {"train_loss": loss, "graph": graph, "blocks": chosen}

    def _choices(self, engine: Engine, clusters: Tree) -> Tensor:
        """(K,) the cluster whose model has the lowest loss on each client's own data."""
        losses: list[Tensor] = []
        for m in range(self.num_clusters):
            models = _models(engine, clusters, torch.full((engine.num_clients,), m))
            losses.append(engine.measure(models, "train", as_metric(engine.loss)))
        return torch.stack(losses).nan_to_num(nan=torch.inf).argmin(dim=0)


def _starts(p: Tensor, name: str, count: int, spread: float, seed: int) -> Tensor:
    """(M, ...) one tensor of the first models: that of theta0, then it mixed with shuffles of
    itself. Mean and variance stay, so that no model begins with larger outputs."""
    if is_statistic(name):
        return p.expand(count, *p.shape).clone()
    mean, starts = p.mean(), [p]
    for m in range(1, count):
        order = torch.randperm(p.numel(), generator=generator(seed, "cluster", m, name))
        shuffled = p.flatten()[order.to(p.device)].view_as(p)
        starts.append(mean + (1 - spread**2) ** 0.5 * (p - mean) + spread * (shuffled - mean))
    return torch.stack(starts)


def _models(engine: Engine, clusters: Tree, chosen: Tensor) -> Tree:
    """For every client held here, the model of the cluster `chosen` (K,) for it."""
    mine = chosen[engine.owned.cpu()]
    return {n: c[mine.to(c.device)] for n, c in clusters.items()}


def _averages(engine: Engine, shares: Tensor, half: Tree, before: Tree) -> Tree:
    """(M, ...) the mean model of every cluster, by shares (K, M); an empty one stays."""
    mine, empty = shares[engine.owned.cpu()], ~shares.any(dim=0)
    clusters: Tree = {}
    for n, t in half.items():
        total = engine.total((mine.T.to(t) @ flat(t)).view_as(before[n]))
        stays = empty.to(t.device).view(-1, *[1] * (t.dim() - 1))
        clusters[n] = torch.where(stays, before[n], total)
    return clusters
