"""Meta-learning to collaborate: a common encoder says who should learn from whom."""

import math
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
from scool.priors.encoder import LayerwiseRowEncoder
from scool.types import Info, Params, Tree


class MetaL2CState(NamedTuple):
    theta: Tree
    theta0: Params  # the common first model
    phi: Params  # the encoder
    moments: adam.Moments
    neighbours: Tensor  # (K, K) bool


@final
@dataclass(frozen=True)
class MetaL2C(Method[MetaL2CState]):
    r"""As `l2c`, with $w_{i\cdot} = \mathrm{softmax}_j \langle u_i, u_j \rangle$ and $u_i =
    \mathrm{Enc}(\theta_i^{t+1/2} - \theta^0; \phi)$, $\phi$ trained by Adam on $\frac1K \sum_i
    L^{val}_i(\theta_i^{t+1})$.

    With $s_{ij} = \langle u_i, u_j \rangle$ and $S = \partial \sum_i L_i / \partial s$ the encoder
    receives $(S + S^\top) u$: client i enters through its row and through its column. $\phi$ takes
    one step per round, after the mixing; the mean of the gradients stands for the mean of the
    clients' encoders.

    SCooL's encoder sees updates of norm 1, whose entries are so small that all embeddings are
    alike, and here no likelihood tells clients apart at first: so the entries get a root mean
    square of 1 (`input_scale`).

    Traffic: one update for every nonzero weight, every embedding to all clients, and the sum of
    the encoder's gradients. Li et al., CVPR 2022, reconstructed from the abstract and a public
    port.
    """

    learns_graph = True
    verbs = frozenset({"train", "gradient", "mix", "inner", "gather", "total"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    meta_lr: float = 0.1
    """Adam's learning rate for the encoder."""
    meta_decay: float = 0.01
    """Weight decay of the encoder."""
    input_scale: Literal["rms", "norm"] = "rms"
    """What is 1 in an update that the encoder sees: the mean square of its entries, or its norm."""
    encoder_hidden: int = 10
    """Width of the encoder."""
    encoder_out: int = 5
    """Size of a row's embedding; also the largest possible score."""
    sparsify_round: int = 10
    """The round (from 0) after which a client keeps only its best peers; -1 never."""
    fraction: float = 0.1
    """Peers kept, as a fraction of all clients."""
    validation: float = 0.2
    """Share of the training samples set aside, where the federation has no validation data."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_learning(self.meta_lr, self.meta_decay, self.fraction)
        check_validation(self.validation)
        require(self.encoder_hidden >= 1, "encoder_hidden", self.encoder_hidden, "give 1 or more")
        require(self.encoder_out >= 1, "encoder_out", self.encoder_out, "give 1 or more")
        require(self.sparsify_round >= -1, "sparsify_round", self.sparsify_round, "give -1 or more")

    @property
    def encoder(self) -> LayerwiseRowEncoder:
        """The map from updates to embeddings."""
        return LayerwiseRowEncoder(self.encoder_hidden, self.encoder_out)

    def init(self, engine: Engine, theta0: Params) -> MetaL2CState:
        require_validation(engine)
        theta = engine.replicate(theta0)
        first = {n: p.to(theta[n]) for n, p in theta0.items()}
        phi = self.encoder.init(first, engine.seed)
        everyone = torch.ones(engine.num_clients, engine.num_clients, dtype=torch.bool)
        return MetaL2CState(theta, first, phi, adam.start(phi), everyone)

    def step(self, engine: Engine, state: MetaL2CState, round: int) -> tuple[MetaL2CState, Info]:
        half, loss = engine.train(state.theta, self.sgd, round)
        phi = {n: x.detach().requires_grad_() for n, x in state.phi.items()}
        with torch.enable_grad():
            mine = self._embed(phi, {n: t - state.theta0[n] for n, t in half.items()})
        u = engine.gather(mine.detach())
        w = softmax_rows(u @ u.T, state.neighbours, engine.active)
        theta = mix_updates(engine, w, state.theta, half)
        parts = {n: t - state.theta[n] for n, t in half.items()}
        slope = score_gradient(engine, w, theta, parts) / engine.active.sum()
        received = ((slope + slope.T).to(u) @ u)[engine.owned]
        gradient = torch.autograd.grad(mine, list(phi.values()), received)
        total = {n: engine.total(g) for n, g in zip(phi, gradient, strict=True)}
        phi, moments = descend(state.phi, total, state.moments, self.meta_lr, self.meta_decay)
        neighbours = state.neighbours
        if round == self.sparsify_round:
            neighbours = best_neighbours(w, self.fraction, neighbours)
        after = MetaL2CState(theta, state.theta0, phi, moments, neighbours)
        return after, {"train_loss": loss, "graph": w}

    def _embed(self, phi: Params, updates: Tree) -> Tensor:
        """(n, D) embeddings. The encoder brings each update to norm 1, times a factor."""
        size = sum(t[0].numel() for t in updates.values())
        return self.encoder.embed(phi, updates, math.sqrt(size) if self.input_scale == "rms" else 1)
