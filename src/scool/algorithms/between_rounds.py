"""What each client does with its own model besides what the method does."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch

from scool.algorithms.shared.aggregate import per_client
from scool.contracts import Engine
from scool.errors import require
from scool.types import Info, Params, Tree


class BetweenState(NamedTuple):
    theta: Tree  # the models that are scored and kept
    method: Any  # the state of the method; its theta trains on, and is empty where it is the above
    velocity: Tree  # u, empty without momentum


def check_between(slow_momentum: float, model_average: float) -> None:
    """Refuse what is no share of the past."""
    for name, value in (("slow_momentum", slow_momentum), ("model_average", model_average)):
        require(0 <= value < 1, name, value, "give a number in [0, 1), 0 for none")


def wrapped(method: Any, slow_momentum: float = 0.0, model_average: float = 0.0) -> Any:
    """The method with what is asked for; itself where that is nothing.

    Raises:
        ConfigError: the method cannot do it.
    """
    between = BetweenRounds(method, slow_momentum, model_average)
    return between if slow_momentum or model_average else method


def unwrapped(method: Any) -> Any:
    """The method that something was put around, or itself."""
    return method.method if isinstance(method, BetweenRounds) else method


@final
@dataclass(frozen=True)
class BetweenRounds:
    r"""A method with slow momentum and averaged models. Neither needs a word from a peer.

    With $\theta'$ the model that a round of the method makes of $\theta^t$:

    slow momentum:  $u^{t+1} = \beta u^t + \theta^t - \theta'$, $\theta^{t+1} = \theta^t - u^{t+1}$.
                    Averaged updates are short steps; this makes up for it. Wang et al., SlowMo,
                    ICLR 2020.
    averages:       $a^{t+1} = m\, a^t + (1 - m)\, \theta^{t+1}$, the plain mean at first. A client
                    keeps and uses $a$, and goes on from $\theta$: the average of many late steps
                    lies in a flatter place than each of them. Izmailov et al., SWA, UAI 2018.

    Both are about `theta`, the models that a method scores; common models that some train beside
    them (Ditto, pFedMe) are left alone. A client in quarantine keeps its model, and its average
    goes on towards that.
    """

    method: Any
    slow_momentum: float = 0.0
    model_average: float = 0.0

    def __post_init__(self) -> None:
        check_between(self.slow_momentum, self.model_average)
        remedy = f"{type(self.method).__name__} does not go on from the models it scores; give 0"
        goes_on = getattr(self.method, "trains_theta", True)
        require(goes_on or not self.slow_momentum, "slow_momentum", self.slow_momentum, remedy)

    def init(self, engine: Engine, theta0: Params) -> BetweenState:
        state = self.method.init(engine, theta0)
        theta: Tree = state.theta
        velocity = {n: torch.zeros_like(t) for n, t in theta.items() if self.slow_momentum}
        kept = {n: t.clone() for n, t in theta.items()} if self.model_average else theta
        return self._state(state, velocity, kept)

    def step(self, engine: Engine, state: BetweenState, round: int) -> tuple[BetweenState, Info]:
        method, velocity = state.method, state.velocity
        if not self.model_average:
            method = method._replace(theta=state.theta)
        before = method.theta
        if self.slow_momentum:  # the method may write over what it is given
            before = {n: t.clone() for n, t in before.items()}
        method, info = self.method.step(engine, method, round)
        if self.slow_momentum:
            share = self.slow_momentum * engine.active[engine.owned.cpu()].double()
            velocity = {
                n: (per_client(share, u) * u).add_(before[n] - method.theta[n])
                for n, u in velocity.items()
            }
            method = method._replace(theta={n: t - velocity[n] for n, t in before.items()})
        kept = method.theta
        if self.model_average:
            share = 1 - min(self.model_average, round / (round + 1))
            kept = {n: torch.lerp(a, kept[n], share) for n, a in state.theta.items()}
        return self._state(method, velocity, kept), info

    def _state(self, method: Any, velocity: Tree, kept: Tree) -> BetweenState:
        """Every tensor once: checkpoints hold them."""
        if not self.model_average:
            method = method._replace(theta={})
        return BetweenState(kept, method, velocity)
