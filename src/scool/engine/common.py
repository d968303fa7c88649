"""What all engines do alike: who takes part, and which models are tried on whose data."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Self, cast

import torch
from torch import Tensor

from scool.contracts import VERBS, MatrixT, Products, Split, Trained, Updates
from scool.data.federation import Federation
from scool.engine.counted import count_cross, count_fetch, count_peers, count_train_at
from scool.engine.cross import check_draw
from scool.engine.edges import PairList, edges_of
from scool.engine.steps.updates import products, weighted_sums
from scool.graph.edges import Edges, Matrix
from scool.health import Health, Reason
from scool.learning.cross import CrossDraw
from scool.learning.local_sgd import LocalSGD
from scool.ledger import Ledger
from scool.types import Params, Tree


def _like(asked: MatrixT, found: Edges) -> MatrixT:
    """Who asks with a matrix gets a matrix."""
    return cast("MatrixT", found if isinstance(asked, Edges) else found.dense())


Compare = Callable[[Tensor, Tensor], Tensor]
"""Rows (n, D) and (m, D) -> a number for each pair (n, m)."""


class CommonVerbs(ABC):
    """See `contracts.Engine` for what each verb promises."""

    offers = VERBS
    federation: Federation
    num_clients: int
    ledger: Ledger
    health: Health
    sizes: Tensor  # (K,) training samples
    owned: Tensor  # (n,) ids of the clients held here
    device: torch.device
    dtype: torch.dtype

    @property
    def active(self) -> Tensor:
        return self.health.active

    def begin_round(self, round: int) -> None:  # noqa: B027
        """Everybody is here: nothing to find out."""

    def replicate(self, theta0: Params) -> Tree:
        return {
            name: p.to(self.device, self.dtype).expand(len(self.owned), *p.shape).clone()
            for name, p in theta0.items()
        }

    def empty(self) -> Self:
        nobody = copy.copy(self)
        nobody.owned = self.owned[:0]
        return nobody

    def collect(self, tree: Tree) -> Tree:
        return {name: t.cpu() for name, t in tree.items()}

    def settle(self, graph: Matrix, tree: Tree) -> Tree:
        return tree  # everybody is together

    def layout(self) -> Mapping[str, Tensor]:
        return {}

    def restore(self, layout: Mapping[str, Tensor]) -> None:  # noqa: B027
        """There is one place for everybody."""

    def quarantine(self, reasons: Mapping[int, Reason]) -> None:
        self.health.quarantine(reasons)

    @property
    def uniform_log_lik(self) -> float:
        if self.federation.task == "classification":
            return -math.log(self.federation.num_outputs)
        train = self.federation.train
        mask = train.mask & self.active.to(train.mask.device)[:, None]
        y = train.y[mask].double()
        return -0.5 * float(y.var(dim=0, correction=0).sum()) if len(y) else 0.0

    def train_at(self, theta: Tree, pairs: Tensor, sgd: LocalSGD, round: int) -> Trained:
        asked = edges_of(pairs)
        edges = asked.among(self.active)
        count_train_at(self.ledger, theta, edges)
        self.ledger.add_samples(int(sgd.samples_per_round(self.sizes, round)[edges.j].sum()))
        return self._visit(theta, asked, edges, sgd, round)

    @abstractmethod
    def _visit(
        self, theta: Tree, asked: PairList, edges: PairList, sgd: LocalSGD, round: int
    ) -> Trained:
        """Rows for all pairs asked for, trained where both clients are active (`edges`)."""

    def products(self, updates: Updates) -> Products:
        return products(updates)

    def weighted_sums(self, updates: Updates, weights: Tensor) -> Tree:
        return weighted_sums(updates, weights)

    def fetch(self, tree: Tree, pairs: Matrix) -> None:
        count_fetch(self.ledger, tree, edges_of(pairs).among(self.active))

    def cross_loss(self, theta: Tree, pairs: MatrixT, draw: CrossDraw, round: int) -> MatrixT:
        check_draw(draw, self.federation.task)
        graph = Edges.of(pairs).nonzero_pairs().among(self.active)
        edges = PairList(graph.i, graph.j)
        count_cross(self.ledger, theta, edges, self.num_clients)
        losses = self._losses(theta, edges, draw, round, "train")
        return _like(pairs, graph.on(losses.cpu().double(), torch.nan))

    def peer_loss(
        self, theta: Tree, pairs: MatrixT, draw: CrossDraw, round: int, split: Split = "train"
    ) -> MatrixT:
        check_draw(draw, self.federation.task)
        graph = Edges.of(pairs).nonzero_pairs().among(self.active)
        back, order = graph.transposed()
        edges = PairList(back.i, back.j)
        count_peers(self.ledger, theta, edges)
        losses = self._losses(theta, edges, draw, round, split).cpu().double()
        values = torch.empty_like(losses).index_put_((order,), losses)
        return _like(pairs, graph.on(values, torch.nan))

    @abstractmethod
    def _losses(
        self, theta: Tree, edges: PairList, draw: CrossDraw, round: int, split: Split
    ) -> Tensor:
        """(E,) losses of theta_i on a draw of D_j."""

    def squared_distances(self, tree: Tree) -> Tensor:
        def distances(mine: Tensor, theirs: Tensor) -> Tensor:
            mode = "donot_use_mm_for_euclid_dist"
            return torch.cdist(mine, theirs, compute_mode=mode).square()

        return self._all_pairs("squared_distances", tree, tree, distances)

    def inner(self, a: Tree, b: Tree) -> Tensor:
        return self._all_pairs("inner", a, b, lambda mine, theirs: mine @ theirs.T)

    @abstractmethod
    def _all_pairs(self, purpose: str, a: Tree, b: Tree, compare: Compare) -> Tensor:
        """(K, K) float64: a number for each pair of rows, summed over the tensors."""
