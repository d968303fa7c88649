"""Every client for itself: the baseline that any cooperation has to beat."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch

from scool.contracts import Engine, Method
from scool.learning.local_sgd import LocalSGD
from scool.types import Info, Params, Tree


class LocalState(NamedTuple):
    theta: Tree


@final
@dataclass(frozen=True)
class LocalOnly(Method[LocalState]):
    r"""Local SGD, $\theta_i \leftarrow \theta_i - \eta \nabla L(D_i; \theta_i)$; no traffic.

    Equals SCooL with w = I in row weighting, and both degenerate cells of the paper's grid
    (likelihood 1.1 with priors 2.2 or 2.3).
    """

    meets = "nobody"
    verbs = frozenset({"train"})

    sgd: LocalSGD = field(default_factory=LocalSGD)

    def init(self, engine: Engine, theta0: Params) -> LocalState:
        return LocalState(engine.replicate(theta0))

    def step(self, engine: Engine, state: LocalState, round: int) -> tuple[LocalState, Info]:
        theta, loss = engine.train(state.theta, self.sgd, round)
        graph = torch.eye(engine.num_clients, dtype=torch.float64)
        return LocalState(theta), {"train_loss": loss, "graph": graph}
