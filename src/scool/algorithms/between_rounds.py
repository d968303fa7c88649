"""What each client does with its own model between rounds, as methods around a method.

Neither needs a word from a peer. Both are about `theta`, the models that a method scores; common
models that some train beside them (Ditto, pFedMe) are left alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, final

import torch

from scool.algorithms.shared.aggregate import per_client
from scool.contracts import Engine, Method
from scool.errors import require
from scool.types import Info, Params, Tree

AROUND = ("sgd", "validation", "averages", "learns_graph", "meets", "verbs")
"""What a method around another one declares as that one does."""


@dataclass(frozen=True)
class Around(Method[Any]):
    """A method around another one: it needs what that one needs."""

    method: Method[Any]

    def __post_init__(self) -> None:
        for name in AROUND:
            object.__setattr__(self, name, getattr(self.method, name))

    def complete(self) -> Self:
        return replace(self, method=self.method.complete())

    def remark(self, rounds: int) -> str:
        return self.method.remark(rounds)

    @property
    def plain(self) -> Any:
        return self.method.plain


class SlowState(NamedTuple):
    theta: Tree
    method: Any  # the state of the method, without its theta, which is the above
    velocity: Tree  # u


@final
@dataclass(frozen=True)
class SlowMomentum(Around):
    r"""A method whose clients repeat part of their last change in every round.

    With $\theta'$ the model that a round of the method makes of $\theta^t$:
    $u^{t+1} = \beta u^t + \theta^t - \theta'$, $\theta^{t+1} = \theta^t - u^{t+1}$.

    Averaged updates are short steps; this makes up for it. A client in quarantine keeps its model.
    Wang et al., SlowMo, ICLR 2020.
    """

    slow_momentum: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(slow_momentum=self.slow_momentum)
        check_goes_on(self.method, self.slow_momentum)

    def init(self, engine: Engine, theta0: Params) -> SlowState:
        state = self.method.init(engine, theta0)
        theta: Tree = state.theta
        velocity = {n: torch.zeros_like(t) for n, t in theta.items()}
        return SlowState(theta, state._replace(theta={}), velocity)

    def step(self, engine: Engine, state: SlowState, round: int) -> tuple[SlowState, Info]:
        # the method may write over what it is given
        before = {n: t.clone() for n, t in state.theta.items()}
        method, info = self.method.step(engine, state.method._replace(theta=state.theta), round)
        share = self.slow_momentum * engine.active[engine.owned.cpu()].double()
        velocity = {
            n: (per_client(share, u) * u).add_(before[n] - method.theta[n])
            for n, u in state.velocity.items()
        }
        theta = {n: t - velocity[n] for n, t in before.items()}
        return SlowState(theta, method._replace(theta={}), velocity), info


class AveragedState(NamedTuple):
    theta: Tree  # a, the averages
    method: Any  # the state of the method, whose theta trains on


@final
@dataclass(frozen=True)
class Averaged(Around):
    r"""A method whose clients keep and use a moving average of their models over rounds.

    $a^{t+1} = m\, a^t + (1 - m)\, \theta^{t+1}$, the plain mean at first. Training goes on from
    $\theta$. The average of many late steps lies in a flatter place than each of them. The average
    of a client in quarantine goes on towards the model it keeps. Izmailov et al., SWA, UAI 2018.
    """

    model_average: float
    trains_theta = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(model_average=self.model_average)

    def init(self, engine: Engine, theta0: Params) -> AveragedState:
        state = self.method.init(engine, theta0)
        return AveragedState({n: t.clone() for n, t in state.theta.items()}, state)

    def step(self, engine: Engine, state: AveragedState, round: int) -> tuple[AveragedState, Info]:
        method, info = self.method.step(engine, state.method, round)
        share = 1 - min(self.model_average, round / (round + 1))
        kept = {n: torch.lerp(a, method.theta[n], share) for n, a in state.theta.items()}
        return AveragedState(kept, method), info


def check_shares(slow_momentum: float = 0.0, model_average: float = 0.0) -> None:
    """Refuse what is not a share of the past."""
    for name, value in (("slow_momentum", slow_momentum), ("model_average", model_average)):
        require(0 <= value < 1, name, value, "give a number in [0, 1), 0 for none")


def check_goes_on(method: Method[Any], slow_momentum: float) -> None:
    """Refuse momentum on models from which nobody goes on."""
    remedy = f"{type(method.plain).__name__} does not go on from the models it scores; give 0"
    require(method.trains_theta or not slow_momentum, "slow_momentum", slow_momentum, remedy)


def with_between(
    method: Method[Any], slow_momentum: float = 0.0, model_average: float = 0.0
) -> Method[Any]:
    """The method with what is asked for; itself where that is nothing."""
    if slow_momentum:
        method = SlowMomentum(method, slow_momentum)
    return Averaged(method, model_average) if model_average else method


def between_of(method: Method[Any]) -> Mapping[str, float]:
    """What is put around a method, by the names that records have for it."""
    found = {"slow_momentum": 0.0, "model_average": 0.0}
    while isinstance(method, Around):
        found |= {name: value for name, value in vars(method).items() if name in found}
        method = method.method
    return found
