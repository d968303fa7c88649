"""What each client does with its own model between rounds: methods that wrap a method.

None of them needs a peer. All are about `theta`, the models that a method scores; common
models that some train beside them (Ditto, pFedMe) are left alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from scool.algorithms.shared.sharing import per_client
from scool.contracts import Engine, Method
from scool.data.federation import Task
from scool.errors import require
from scool.graph.growing import laid_over
from scool.learning.losses import as_metric
from scool.models.layers import is_statistic
from scool.types import Info, Params, Tree

AROUND = (
    "sgd",
    "finds_rate",
    "validation",
    "judges_all",
    "averages",
    "learns_graph",
    "stays",
    "meets",
    "verbs",
)
"""Declarations that a wrapper takes over from the method inside."""
RECORDED = ("slow_momentum", "model_average", "patience", "fine_tune")
"""The options of wrappers, as records name them."""


@dataclass(frozen=True)
class Around(Method[Any]):
    """A wrapper around a method: it needs what that method needs."""

    method: Method[Any]

    def __post_init__(self) -> None:
        for name in AROUND:
            object.__setattr__(self, name, getattr(self.method, name))

    def admit(self, state: Any, clients: Tensor) -> Any:
        return state._replace(method=self.method.admit(state.method, clients))

    def grow(self, state: Any, fresh: Any) -> Any:
        """What the wrapper keeps of newcomers is as in `fresh`."""
        inside = self.method.grow(state.method, fresh.method)
        return laid_over(fresh, state._replace(method={}))._replace(method=inside)

    def predictor(self, module: nn.Module, task: Task) -> nn.Module:
        return self.method.predictor(module, task)

    def complete(self) -> Self:
        return replace(self, method=self.method.complete())

    def remark(self, rounds: int) -> str:
        return self.method.remark(rounds)

    @property
    def around(self) -> Mapping[str, float]:
        own = {n: value for n, value in vars(self).items() if n in RECORDED}
        return {**self.method.around, **own}

    @property
    def plain(self) -> Any:
        return self.method.plain


class SlowState(NamedTuple):
    theta: Tree
    method: Any  # the state of the method inside, without its theta, which is the field above
    velocity: Tree  # u


@final
@dataclass(frozen=True)
class SlowMomentum(Around):
    r"""A wrapper whose clients repeat part of their last change in every round.

    With $\theta'$ the model that a round of the method makes of $\theta^t$:
    $u^{t+1} = \beta u^t + \theta^t - \theta'$, $\theta^{t+1} = \theta^t - u^{t+1}$.

    Averaged updates are short steps; this makes up for it. A client in quarantine keeps its model.
    Running statistics have no momentum. Wang et al., SlowMo, ICLR 2020.
    """

    slow_momentum: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(slow_momentum=self.slow_momentum)
        check_goes_on(self.method, self.slow_momentum)

    def init(self, engine: Engine, theta0: Params) -> SlowState:
        state = self.method.init(engine, theta0)
        theta: Tree = state.theta
        velocity = {n: torch.zeros_like(t) for n, t in theta.items() if not is_statistic(n)}
        return SlowState(theta, state._replace(theta={}), velocity)

    def step(self, engine: Engine, state: SlowState, round: int) -> tuple[SlowState, Info]:
        # the method may overwrite what it is given
        before = {n: t.clone() for n, t in state.theta.items()}
        method, info = self.method.step(engine, state.method._replace(theta=state.theta), round)
        share = self.slow_momentum * engine.active[engine.owned.cpu()].double()
        velocity = {
            n: (per_client(share, u) * u).add_(before[n] - method.theta[n])
            for n, u in state.velocity.items()
        }
        theta = method.theta | {n: before[n] - u for n, u in velocity.items()}
        return SlowState(theta, method._replace(theta={}), velocity), info


class AveragedState(NamedTuple):
    theta: Tree  # a, the averages
    method: Any  # the state of the method, whose theta trains on


@final
@dataclass(frozen=True)
class Averaged(Around):
    r"""A wrapper whose clients keep and use a moving average of their models over rounds.

    $a^{t+1} = m\, a^t + (1 - m)\, \theta^{t+1}$, the plain mean at first. Training goes on from
    $\theta$. The average of many late steps lies in a flatter minimum than each of them. The
    average of a client in quarantine goes on towards the model it keeps, that of an absent one
    waits. Izmailov et al., SWA, UAI 2018.
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
        if bool((absent := engine.health.absent[engine.owned.cpu()]).any()):
            rows = absent.nonzero()[:, 0]
            for name, average in kept.items():
                average[rows] = state.theta[name][rows]
        return AveragedState(kept, method), info


class BestState(NamedTuple):
    theta: Tree  # the best models so far
    method: Any  # the state of the method, whose theta trains on
    losses: Tensor  # (K,) the last validation loss of each client, NaN where there is none
    best: Tensor  # the lowest mean of them
    waited: Tensor  # evaluations since then


@final
@dataclass(frozen=True)
class EarlyStopping(Around):
    """A wrapper that stops the run when the validation loss no longer falls, and keeps its best
    models.

    The mean over clients of the validation loss is evaluated every `every` rounds; an absent client
    counts with its last one. After `patience` evaluations without a lower mean the run is over. The
    models that are scored and kept are those of the best evaluation, of all clients together. A
    federation without validation data sets a fifth of the training samples aside.
    """

    patience: int
    every: int = 1
    trains_theta = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.patience >= 1, "patience", self.patience, "give at least 1")
        object.__setattr__(self, "validation", self.method.validation or 0.2)

    def init(self, engine: Engine, theta0: Params) -> BestState:
        state = self.method.init(engine, theta0)
        kept = {n: t.clone() for n, t in state.theta.items()}
        losses = torch.full((engine.num_clients,), torch.nan, dtype=torch.float64)
        best = torch.tensor(torch.inf, dtype=torch.float64)
        return BestState(kept, state, losses, best, torch.tensor(0))

    def step(self, engine: Engine, state: BestState, round: int) -> tuple[BestState, Info]:
        method, info = self.method.step(engine, state.method, round)
        state = state._replace(method=method)
        if (round + 1) % self.every == 0:
            found = engine.measure(method.theta, "val", as_metric(engine.loss)).double().cpu()
            losses = torch.where(engine.active & found.isfinite(), found, state.losses)
            mean = losses[engine.health.healthy].nanmean()
            if bool(mean < state.best):
                kept = {n: t.clone() for n, t in method.theta.items()}
                state = state._replace(theta=kept, best=mean, waited=torch.tensor(0))
            else:
                state = state._replace(waited=state.waited + 1)
            state = state._replace(losses=losses)
            info = {**info, "validation_loss": mean, "waited": state.waited}
        return state, info


class TunedState(NamedTuple):
    theta: Tree  # after the last round fine-tuned
    method: Any  # the state of the method, whose theta trains on


@final
@dataclass(frozen=True)
class FineTuned(Around):
    """A wrapper whose clients train on, each alone on its own data, before their models are judged.

    This happens once, at the end: after the last of `rounds`, or where `patience` ends
    the run. Absent clients do it too, since it needs no other client. A client whose
    numbers stop being finite meanwhile goes into quarantine with the model that it had.
    """

    fine_tune: int
    """Passes over the client's own training samples, with the options of the method's own SGD."""
    rounds: int
    patience: int = 0
    trains_theta = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.fine_tune >= 1, "fine_tune", self.fine_tune, "give at least 1")
        object.__setattr__(self, "verbs", self.verbs and self.verbs | {"view"})

    def init(self, engine: Engine, theta0: Params) -> TunedState:
        state = self.method.init(engine, theta0)
        return TunedState({n: t.clone() for n, t in state.theta.items()}, state)

    def step(self, engine: Engine, state: TunedState, round: int) -> tuple[TunedState, Info]:
        method, info = self.method.step(engine, state.method, round)
        theta: Tree = method.theta
        waited = int(info.get("waited", 0)) if self.patience else -1
        if round + 1 == self.rounds or waited >= self.patience:
            alone = engine.view("fine-tuning")  # where nobody is absent
            sgd = replace(self.sgd, epochs=self.fine_tune, steps=0)
            theta = alone.train(theta, sgd, round + 1, among=engine.health.healthy).theta
            engine.quarantine(alone.health.reasons)
        return TunedState({n: t.clone() for n, t in theta.items()}, method), info


def check_shares(slow_momentum: float = 0.0, model_average: float = 0.0) -> None:
    """Refuse what is not a share of the past."""
    for name, value in (("slow_momentum", slow_momentum), ("model_average", model_average)):
        require(0 <= value < 1, name, value, "give a number in [0, 1), 0 for none")


def check_goes_on(method: Method[Any], slow_momentum: float) -> None:
    """Refuse momentum on models that the next round does not start from."""
    remedy = f"{type(method.plain).__name__} starts no round from the models it scores; give 0"
    require(method.trains_theta or not slow_momentum, "slow_momentum", slow_momentum, remedy)


def with_between(
    method: Method[Any], slow_momentum: float = 0.0, model_average: float = 0.0
) -> Method[Any]:
    """The method in the wrappers that are asked for; itself if none is."""
    if slow_momentum:
        method = SlowMomentum(method, slow_momentum)
    return Averaged(method, model_average) if model_average else method


def with_share(method: Method[Any], participation: float) -> Method[Any]:
    """The method with the share of clients that take part in a round, where it has an option for
    that: a server then asks this share. For all other methods the engine leaves clients out.

    Raises:
        ConfigError: the method has another share already.
    """
    if isinstance(method, Around):
        return replace(method, method=with_share(method.method, participation))
    own = getattr(method.plain, "participation", None)
    if own is None or participation == 1 or own == participation:
        return method
    words = f"{type(method.plain).__name__} has {own} already; give one of the two"
    require(own == 1, "participation", participation, words)
    return replace(method, participation=participation)  # type: ignore[call-arg]
