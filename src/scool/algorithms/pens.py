"""Performance-based neighbour selection: gossip with those whose models suit their own data."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.graph.mixing import keep_top, normalise_rows, num_kept
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.randomness import derive, uniform
from scool.types import Info, Params, Tree


class PENSState(NamedTuple):
    theta: Tree
    picked: Tensor  # (K, K) how often client j was among the best peers of client i


@final
@dataclass(frozen=True)
class PENS(Method[PENSState]):
    r"""$\theta_i \leftarrow \frac{1}{1 + |B_i|} (\theta_i^{t+1/2} + \sum_{j \in B_i}
    \theta_j^{t+1/2})$.

    In the first `select_rounds` rounds T a client fetches the models of random peers, and $B_i$
    are the `top` among them with the lowest loss on its own training data. After that its
    neighbours are the peers picked more often than the $T \cdot \text{top} / (K - 1)$ times that
    chance would give (if there are none, the one picked most), and $B_i$ are `top` random ones of
    them.

    Traffic: `fraction` times K models per client in the first rounds, `top` models later. Onoszko,
    Karlsson, Mogren, Listo Zec, 2021.
    """

    learns_graph = True
    verbs = frozenset({"train", "peer_loss", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    draw: CrossDraw = field(default_factory=CrossDraw)
    fraction: float = 0.1
    """Peers whose models a client tries in a round, as a fraction of all clients."""
    top: int = 2
    """Peers that a client averages with."""
    select_rounds: int = 20
    """Rounds in which clients look for their neighbours."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 < self.fraction <= 1, "fraction", self.fraction, "give a fraction in (0, 1]")
        require(self.top >= 1, "top", self.top, "give at least 1")
        require(self.select_rounds >= 1, "select_rounds", self.select_rounds, "give at least 1")

    def init(self, engine: Engine, theta0: Params) -> PENSState:
        k = engine.num_clients
        return PENSState(engine.replicate(theta0), torch.zeros(k, k, dtype=torch.int64))

    def step(self, engine: Engine, state: PENSState, round: int) -> tuple[PENSState, Info]:
        half, loss = engine.train(state.theta, self.sgd, round)
        k, picked = engine.num_clients, state.picked
        luck = uniform(derive(engine.seed, "pens", round), torch.arange(k), (k,))
        peers = engine.active[:, None] & engine.active & ~torch.eye(k, dtype=torch.bool)
        is_selecting = round < self.select_rounds
        if is_selecting:
            tried = keep_top(luck, num_kept(k, self.fraction), peers, keep_self=False)
            theirs = engine.peer_loss(half, tried, self.draw, round)
            best = keep_top(-theirs, self.top, tried & theirs.isfinite())
            picked = picked + (best & peers)
        else:
            best = keep_top(luck, self.top, self._neighbours(picked, peers))
        graph = normalise_rows(best.double())
        theta = engine.mix(graph, half, via="held" if is_selecting else "peers")
        return PENSState(theta, picked), {"train_loss": loss, "graph": graph}

    def _neighbours(self, picked: Tensor, peers: Tensor) -> Tensor:
        """(K, K) bool: the peers picked more often than by chance."""
        others = max(1, len(picked) - 1)
        expected = self.select_rounds * min(self.top, others) / others
        found = peers & (picked > expected)
        favourite = keep_top(picked.double(), 1, peers, keep_self=False)
        return torch.where(found.any(dim=1, keepdim=True), found, favourite)
