"""What the tests of SCooL share: a graph that never changes, and a few rounds."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scool.contracts import Evidence, SelfMode
from scool.data.federation import Federation
from scool.engine.local import LocalEngine
from scool.graph.edges import as_matrix
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.priors import GraphPrior
from scool.types import Params
from toys import (
    start,
)

SIZES = (5, 4, 8, 6, 7)
K = len(SIZES)
FULL = LocalSGD(lr=0.1, epochs=3, batch_size=20)  # whole data sets: batches without chance
DECAY = LocalSGD(lr=0.1, steps=1, batch_size=20, weight_decay=0.1)
ALL = CrossDraw(cross_samples=0)


class FixedState(NamedTuple):
    w: Tensor


@dataclass(frozen=True)
class Fixed(GraphPrior[FixedState]):
    """A graph that mixes updates and never changes: the smallest prior there is."""

    matrix: tuple[tuple[float, ...], ...]
    self_mode: SelfMode = "gated"

    def init(self, num_clients: int, theta0: Params, seed: int) -> FixedState:
        return FixedState(torch.tensor(self.matrix, dtype=torch.float64))

    def e_step(self, state: FixedState, evidence: Evidence) -> FixedState:
        return state

    def elbo(self, state: FixedState, evidence: Evidence) -> Tensor:
        return torch.zeros(())


def fixed(w: Tensor, self_mode: SelfMode = "gated") -> Any:
    return Fixed(tuple(map(tuple, w.tolist())), self_mode)


def run(
    algorithm: Any, federation: Federation, rounds: int = 3, **options: Any
) -> tuple[Any, list[dict[str, Any]], LocalEngine]:
    engine, theta0 = start(federation, **options)
    state = algorithm.init(engine, theta0)
    infos = []
    for t in range(rounds):
        state, info = algorithm.step(engine, state, t)
        infos.append({**info, "graph": as_matrix(info["graph"])})
    return state, infos, engine
