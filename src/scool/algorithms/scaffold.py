"""Federated averaging whose local steps are corrected for the differences between clients."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch

from scool.algorithms.shared.checks import check_plain
from scool.algorithms.shared.sharing import (
    check_participation,
    participants,
    per_client,
    server_average,
)
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD, Push
from scool.models.layers import is_statistic
from scool.types import Info, Params, Tree


class ScaffoldState(NamedTuple):
    theta: Tree  # x, the common model, once per client
    common: Tree  # c, the common control variate, once per client
    own: Tree  # c_i, each client's own


@final
@dataclass(frozen=True)
class Scaffold(Method[ScaffoldState]):
    r"""$y_i \leftarrow y_i - \eta (\nabla L(y_i) - c_i + c)$ from $y_i = x^t$, S steps; then
    $x^{t+1} = x^t + \eta_g \sum_{i \in A} \frac{n_i}{\sum_A n} (y_i - x^t)$.

    $c_i^+ = c_i - c + \frac{1}{S \eta} (x^t - y_i)$ is the mean gradient on the way of a
    participant, and $c \leftarrow c + \sum_{i \in A} \frac{n_i}{\sum n} (c_i^+ - c_i)$ that of all
    clients. All begin at 0. Local steps then go where the mean of all goes, however long they are;
    with $c = c_i = 0$ throughout this is FedAvg.

    Every client is evaluated with x. Traffic: two models and two control variates per participant
    and round, in two messages. Karimireddy et al., ICML 2020, option II.
    """

    adds_up = "control variates"
    meets = "server"
    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    server_lr: float = 1.0
    """eta_g: how far the common model moves towards the mean of the local ones."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        remedy = "give a number above 0, at most 2; beyond, the common model overshoots"
        require(0 < self.server_lr <= 2, "server_lr", self.server_lr, remedy)
        check_plain(self.sgd, "SCAFFOLD")
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> ScaffoldState:
        theta = engine.replicate(theta0)
        learned = {n: t for n, t in theta.items() if not is_statistic(n)}
        common, own = ({n: torch.zeros_like(t) for n, t in learned.items()} for _ in range(2))
        return ScaffoldState(theta, common, own)

    def step(self, engine: Engine, state: ScaffoldState, round: int) -> tuple[ScaffoldState, Info]:
        chosen = participants(engine, self.participation, round)
        x, c = state.theta, state.common
        push = Push({n: t - state.own[n] for n, t in c.items()})
        half, loss = engine.train(x, self.sgd, round, among=chosen, pull=push)
        mine = engine.owned.cpu()
        took = (chosen & engine.active)[mine].double()
        steps = self.sgd.steps_per_round(engine.sizes).clamp(min=1)[mine].double()
        scale = took / (steps * self.sgd.rate(round))
        change = {  # of c_i; 0 where no client trained
            n: per_client(scale, t) * (x[n] - half[n]) - per_client(took, t) * t
            for n, t in c.items()
        }
        sent = half | {f"control {n}": t for n, t in change.items()}
        before = x | {f"control {n}": torch.zeros_like(t) for n, t in change.items()}
        mean, graph = server_average(engine, chosen, sent, before)
        share = float((engine.sizes * (chosen & engine.active)).sum()) / self._of_all(engine)
        theta = {n: torch.lerp(t, mean[n], self.server_lr) for n, t in x.items()}
        common = {n: t + share * mean[f"control {n}"] for n, t in c.items()}
        own = {n: t + change[n] for n, t in state.own.items()}
        return ScaffoldState(theta, common, own), {"train_loss": loss, "graph": graph}

    @staticmethod
    def _of_all(engine: Engine) -> float:
        """Samples of all clients that may come back."""
        return max(1.0, float((engine.sizes * engine.health.healthy).sum()))
