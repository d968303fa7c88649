"""Learning to collaborate: mixing weights trained on each client's validation loss."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.checks import check_validation, require_validation
from scool.algorithms.shared.learned_weights import (
    best_neighbours,
    check_learning,
    descend,
    score_gradient,
    softmax_rows,
)
from scool.algorithms.shared.sharing import mix_updates
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD
from scool.priors import adam
from scool.types import Info, Params, Tree


class L2CState(NamedTuple):
    theta: Tree
    scores: Params  # alpha (K, K), row i belongs to client i
    moments: adam.Moments
    neighbours: Tensor  # (K, K) bool


@final
@dataclass(frozen=True)
class L2C(Method[L2CState]):
    r"""$\theta_i^{t+1} = \theta_i^t - \sum_j w_{ij} \Delta_j$ with $w_{i\cdot} =
    \mathrm{softmax}(\alpha_{i\cdot})$, $\alpha_i$ trained by Adam on $L^{val}_i(\theta_i^{t+1})$.

    $-\Delta_j$ is the change of model j in local training. All weights are equal at first; alpha
    takes one step per round, after the mixing. From the round after `sparsify_round` on a client
    keeps itself and its best peers.

    Rows that differ drive models apart, and updates of models that lie apart correct no client's
    errors: hence $\theta_i^{t+1} = \sum_j w_{ij} \theta_j^{t+1/2}$ (`average`).
    Traffic: one update (or model) for every nonzero weight. Li et al., CVPR 2022,
    reconstructed from the abstract and a public port.
    """

    learns_graph = True
    verbs = frozenset({"train", "gradient", "mix", "inner"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    average: Literal["updates", "models"] = "updates"
    """What the weights average: the published updates, or models."""
    meta_lr: float = 0.1
    """Adam's learning rate for alpha."""
    meta_decay: float = 0.01
    """Weight decay of alpha."""
    sparsify_round: int = 10
    """The round (from 0) after which a client keeps only its best peers; -1 never."""
    fraction: float = 0.1
    """Peers kept, as a fraction of all clients."""
    validation: float = 0.2
    """Share of the training samples set aside, where the federation has no validation data."""

    @property
    def averages_updates(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "average" if self.average == "updates" else ""

    def __post_init__(self) -> None:
        check_fields(self)
        check_learning(self.meta_lr, self.meta_decay, self.fraction)
        check_validation(self.validation)
        require(self.sparsify_round >= -1, "sparsify_round", self.sparsify_round, "give -1 or more")

    def init(self, engine: Engine, theta0: Params) -> L2CState:
        require_validation(engine)
        k = engine.num_clients
        scores = {"alpha": torch.zeros(k, k, dtype=torch.float64)}
        everyone = torch.ones(k, k, dtype=torch.bool)
        return L2CState(engine.replicate(theta0), scores, adam.start(scores), everyone)

    def step(self, engine: Engine, state: L2CState, round: int) -> tuple[L2CState, Info]:
        half, loss = engine.train(state.theta, self.sgd, round)
        w = softmax_rows(state.scores["alpha"], state.neighbours, engine.active)
        if self.average == "models":
            theta, parts = engine.mix(w, half), half
        else:
            theta = mix_updates(engine, w, state.theta, half)
            parts = {n: t - state.theta[n] for n, t in half.items()}
        slope = {"alpha": score_gradient(engine, w, theta, parts)}
        scores, moments = descend(state.scores, slope, state.moments, self.meta_lr, self.meta_decay)
        neighbours = state.neighbours
        if round == self.sparsify_round:
            neighbours = best_neighbours(scores["alpha"], self.fraction, neighbours)
        return L2CState(theta, scores, moments, neighbours), {"train_loss": loss, "graph": w}
