"""A personal model beside the one that a method trains, whatever the method."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from scool.algorithms.participation import participants
from scool.algorithms.proximal import check_pull
from scool.contracts import Engine
from scool.learning.local_sgd import LocalSGD, Pull
from scool.types import Info, Params, Tree


class PersonalState(NamedTuple):
    theta: Tree  # v, the personal models, which are scored and kept
    method: Any  # the state of the method


@final
@dataclass(frozen=True)
class PersonalModels:
    r"""A method, and personal models v that are pulled towards the models it makes.

    $v_i \leftarrow v_i - \eta (\nabla L(v_i) + \lambda (v_i - \theta_i^t))$

    with the local steps and batches of the method; $\theta_i^t$ is what the method scores at the
    start of the round. The models of the method have seen the data of many, v stays with its
    client. Around FedAvg that is Ditto (Li, Hu, Beirami, Smith, ICML 2021). It costs no message,
    and as much local training again. Who does not take part in a round keeps its v.
    """

    method: Any
    sgd: LocalSGD
    pull: float
    participation: float = 1.0

    def __post_init__(self) -> None:
        check_pull("personal_pull", self.pull, self.sgd)

    def init(self, engine: Engine, theta0: Params) -> PersonalState:
        return PersonalState(engine.replicate(theta0), self.method.init(engine, theta0))

    def step(self, engine: Engine, state: PersonalState, round: int) -> tuple[PersonalState, Info]:
        chosen = participants(engine, self.participation, round)
        pull = Pull(state.method.theta, self.pull)
        theta, loss = engine.train(state.theta, self.sgd, round, among=chosen, pull=pull)
        method, info = self.method.step(engine, state.method, round)
        return PersonalState(theta, method), {**info, "train_loss": loss}
