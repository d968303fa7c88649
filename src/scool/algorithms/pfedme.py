"""Personal models through the Moreau envelope of every client's loss."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.checks import check_pull
from scool.algorithms.shared.sharing import check_participation, participants, server_average
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD, Pull
from scool.types import Info, Params, Tree


class PFedMeState(NamedTuple):
    theta: Tree  # the personal models
    common: Tree  # x, the common model, once per client


@final
@dataclass(frozen=True)
class PFedMe(Method[PFedMeState]):
    r"""$\min_x \sum_i F_i(x)$ with $F_i(x) = \min_\theta L_i(\theta) + \frac{\lambda}{2}
    \|\theta - x\|^2$.

    A participant starts with $x_i = x^t$ and repeats, once an epoch,

    $\theta_i \approx \arg\min L_i(\theta) + \frac{\lambda}{2} \|\theta - x_i\|^2$ by SGD from its
    last $\theta_i$, one pass over its own data;
    $x_i \leftarrow x_i - \eta' \lambda (x_i - \theta_i)$, with $\eta' \lambda$ = `outer_step`.

    Then $x^{t+1} = (1 - \beta) x^t + \beta \sum_{i \in A} \frac{n_i}{\sum_A n} x_i$. The personal
    models $\theta_i$ are evaluated; a client that does not take part keeps its own. So `epochs`
    stays the number of passes over the data; with `steps` there is one repetition of that many
    mini-batches. Traffic: two models per participant and round. Dinh, Tran, Nguyen, NeurIPS 2020.
    """

    meets = "server"
    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    lam: float = 1.0
    """lambda: pull of the personal model towards the client's copy of the common one."""
    outer_step: float = 0.3
    """How far that copy then moves towards the personal model, in (0, 1]."""
    beta: float = 1.0
    """How far the common model moves towards the mean of the copies."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_pull("lam", self.lam, self.sgd)
        remedy = "give a number in (0, 1]; 1 puts the copy where the personal model is"
        require(0 < self.outer_step <= 1, "outer_step", self.outer_step, remedy)
        remedy = "give a number above 0, at most 2; beyond, the common model overshoots"
        require(0 < self.beta <= 2, "beta", self.beta, remedy)
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> PFedMeState:
        return PFedMeState(engine.replicate(theta0), engine.replicate(theta0))

    def step(self, engine: Engine, state: PFedMeState, round: int) -> tuple[PFedMeState, Info]:
        chosen = participants(engine, self.participation, round)
        theta, copy = state.theta, state.common
        repetitions = 1 if self.sgd.steps else self.sgd.epochs
        once = replace(self.sgd.at_round(round), epochs=1)
        losses: list[Tensor] = []
        for r in range(repetitions):
            batches = round * repetitions + r  # each repetition continues with the next batches
            pull = Pull(copy, self.lam)
            theta, loss = engine.train(theta, once, batches, among=chosen, pull=pull)
            copy = {n: x - self.outer_step * (x - theta[n]) for n, x in copy.items()}
            losses.append(loss)
        mean, graph = server_average(engine, chosen, copy, state.common)
        common = {n: x + self.beta * (mean[n] - x) for n, x in state.common.items()}
        info = {"train_loss": torch.stack(losses).mean(dim=0), "graph": graph}
        return PFedMeState(theta, common), info
