"""What all engines do alike: who takes part, and which models are tried on whose data."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from scool.contracts import Products, Split, Trained, Updates
from scool.data.federation import Federation
from scool.engine.counted import count_cross, count_fetch, count_peers, count_train_at
from scool.engine.cross import check_draw
from scool.engine.edges import Edges, edges_of
from scool.engine.ledger import Ledger
from scool.engine.steps.updates import products, weighted_sums
from scool.health import Health
from scool.learning.cross import CrossDraw
from scool.learning.local_sgd import LocalSGD
from scool.types import Tree

Compare = Callable[[Tensor, Tensor], Tensor]
"""Rows (n, D) and (m, D) -> a number for each pair (n, m)."""


class CommonVerbs(ABC):
    """See `contracts.Engine` for what each verb promises."""

    federation: Federation
    num_clients: int
    ledger: Ledger
    health: Health
    sizes: Tensor  # (K,) training samples

    @property
    def active(self) -> Tensor:
        return self.health.active

    def begin_round(self, round: int) -> None:  # noqa: B027
        """Everybody is here: nothing to find out."""

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
    def _visit(self, theta: Tree, asked: Edges, edges: Edges, sgd: LocalSGD, round: int) -> Trained:
        """Rows for all pairs asked for, trained where both clients are active (`edges`)."""

    def products(self, updates: Updates) -> Products:
        return products(updates)

    def weighted_sums(self, updates: Updates, weights: Tensor) -> Tree:
        return weighted_sums(updates, weights)

    def fetch(self, tree: Tree, pairs: Tensor) -> None:
        count_fetch(self.ledger, tree, edges_of(pairs).among(self.active))

    def cross_loss(self, theta: Tree, pairs: Tensor, draw: CrossDraw, round: int) -> Tensor:
        check_draw(draw, self.federation.task)
        edges = edges_of(pairs).among(self.active)
        count_cross(self.ledger, theta, edges, self.num_clients)
        return self._losses(theta, edges, draw, round, "train")

    def peer_loss(
        self, theta: Tree, pairs: Tensor, draw: CrossDraw, round: int, split: Split = "train"
    ) -> Tensor:
        check_draw(draw, self.federation.task)
        edges = edges_of(pairs.T).among(self.active)
        count_peers(self.ledger, theta, edges)
        return self._losses(theta, edges, draw, round, split).T

    @abstractmethod
    def _losses(
        self, theta: Tree, edges: Edges, draw: CrossDraw, round: int, split: Split
    ) -> Tensor:
        """(K, K) losses of theta_i on a draw of D_j for the edges, NaN elsewhere."""

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
