"""What all engines do alike: who takes part, and which models are tried on whose data."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from scool.contracts import Split
from scool.data.federation import Federation
from scool.engines.counted import count_cross, count_fetch, count_peers
from scool.engines.cross import check_draw
from scool.engines.edges import Edges, edges_of
from scool.engines.ledger import Ledger
from scool.learning.cross import CrossDraw
from scool.types import Tree


class CommonVerbs(ABC):
    """See `contracts.Engine` for what each verb promises."""

    federation: Federation
    num_clients: int
    ledger: Ledger
    quarantined: dict[int, str]

    @property
    def active(self) -> Tensor:
        mask = torch.ones(self.num_clients, dtype=torch.bool)
        mask[list(self.quarantined)] = False
        return mask

    @property
    def uniform_log_lik(self) -> float:
        if self.federation.task == "classification":
            return -math.log(self.federation.num_outputs)
        train = self.federation.train
        mask = train.mask & self.active.to(train.mask.device)[:, None]
        y = train.y[mask].double()
        return -0.5 * float(y.var(dim=0, correction=0).sum()) if len(y) else 0.0

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
