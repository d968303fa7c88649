"""Adaptive personalised federated learning: each client blends two models."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.checks import check_plain
from scool.algorithms.shared.sharing import (
    check_participation,
    choose,
    participants,
    per_client,
    server_average,
)
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD
from scool.models.layers import is_statistic
from scool.types import Info, Params, Tree


class APFLState(NamedTuple):
    theta: Tree  # the blends
    common: Tree  # w, the common model, once per client
    own: Tree  # v, the personal models
    alpha: Tensor  # (n,) of the clients held here: the share of their own model in the blend


@final
@dataclass(frozen=True)
class APFL(Method[APFLState]):
    r"""A common model w as in FedAvg, a personal one v, and the blend
    $\bar v_i = \alpha_i v_i + (1 - \alpha_i) w_i$ that is used.

    In each local step of a participant, on the same batch b, all at once:

    $w_i \leftarrow w_i - \eta \nabla L(b; w_i)$ from $w_i = w^t$;
    $v_i \leftarrow v_i - \eta \alpha_i \nabla L(b; \bar v_i)$, going on where it stopped;
    $\alpha_i \leftarrow \alpha_i - \eta \langle v_i - w_i, \nabla L(b; \bar v_i) \rangle$, kept in
    [0, 1].

    Then $w^{t+1} = \sum_{i \in A} \frac{n_i}{\sum_A n} w_i$, and everyone is evaluated with
    $\alpha_i v_i + (1 - \alpha_i) w^{t+1}$. `train_loss` is that of the blends, `graph` the weights
    of the common model. Traffic: two models per participant and round. Deng, Kamani, Mahdavi, 2020.
    """

    meets = "server"
    verbs = frozenset({"train", "mix"})
    trains_theta = False

    sgd: LocalSGD = field(default_factory=LocalSGD)
    alpha: float = 0.5
    """How much of the blend is personal at first: 0 is FedAvg, 1 local SGD."""
    adaptive: bool = True
    """Whether each client learns its alpha, or all keep the first."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.alpha <= 1, "alpha", self.alpha, "give a number in [0, 1]")
        check_plain(self.sgd, "APFL")
        check_participation(self.participation)

    def init(self, engine: Engine, theta0: Params) -> APFLState:
        theta, common, own = (engine.replicate(theta0) for _ in range(3))
        mine = torch.ones(len(engine.owned), dtype=engine.dtype, device=engine.device)
        return APFLState(theta, common, own, self.alpha * mine)

    def step(self, engine: Engine, state: APFLState, round: int) -> tuple[APFLState, Info]:
        chosen = participants(engine, self.participation, round)
        counts = self.sgd.steps_per_round(engine.sizes)
        once = replace(self.sgd.at_round(round), steps=1)
        first, w, v, alpha = round * int(counts.max()), state.common, state.own, state.alpha
        total = torch.zeros(engine.num_clients, dtype=torch.float64)
        for s in range(int((counts * chosen).max())):
            going = chosen & (counts > s)
            mixed = blend(alpha, v, w)
            trained, loss = engine.train(mixed, once, first + s, among=going)
            slope = {n: t - trained[n] for n, t in mixed.items() if not is_statistic(n)}
            towards = sum(((v[n] - w[n]) * g).flatten(1).sum(1) for n, g in slope.items())
            v = trained | {n: v[n] - per_client(alpha, g) * g for n, g in slope.items()}
            alpha = (alpha - towards).clamp(0, 1) if self.adaptive else alpha
            w = engine.train(w, once, first + s, among=going).theta
            total += loss.nan_to_num(0.0)
        done = chosen & engine.active & (counts > 0)
        loss = torch.where(done, total / counts.clamp(min=1), torch.nan)
        common, graph = server_average(engine, chosen, w, state.common)
        theta = choose(engine, engine.active, blend(alpha, v, common), state.theta)
        return APFLState(theta, common, v, alpha), {"train_loss": loss, "graph": graph}


def blend(alpha: Tensor, own: Tree, common: Tree) -> Tree:
    r"""$\alpha_i v_i + (1 - \alpha_i) w_i$."""
    return {n: torch.lerp(common[n], v, per_client(alpha, v)) for n, v in own.items()}
