"""First-order model optimisation: a client takes from each model what helps its own validation."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.checks import WHOLE, check_validation, require_validation
from scool.algorithms.shared.sharing import check_participation, choose, participants
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.graph.mixing import keep_top, normalise_rows, num_kept
from scool.learning.local_sgd import LocalSGD
from scool.randomness import derive, uniform
from scool.types import Info, Params, Tree


class FedFomoState(NamedTuple):
    theta: Tree  # a_i, where the next local phase begins
    sent: Tree  # what each client last offered: its model after a local phase
    affinity: Tensor  # (K, K) P, how much each model has helped so far


@final
@dataclass(frozen=True)
class FedFomo(Method[FedFomoState]):
    r"""$\theta_i \leftarrow a_i + \sum_n \omega_{in} (\theta_n - a_i)$ over a few fetched models.

    $\omega_{in} = \frac{L^{val}_i(a_i) - L^{val}_i(\theta_n)}{\|\theta_n - a_i\|}$, negative ones
    set to 0, then divided by their sum; where all are 0 the client stays at $a_i$, the model its
    last local phase began with. The affinity $P_{in}$ adds up the $\omega_{in}$; a client fetches
    the models with the largest, and with probability $\epsilon$ a random one instead. Its own
    model is always among them.

    A round is local phase, then aggregation; the published order is the same sequence, cut in
    another place. Traffic: `fraction` times K models per participant. Zhang et al., ICLR 2021.
    """

    learns_graph = True
    verbs = frozenset({"train", "peer_loss", "mix", "squared_distances"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    fraction: float = 0.1
    """Models that a client fetches in a round, as a fraction of all clients; its own is extra."""
    epsilon: float = 0.3
    """Probability, in the first round, that a fetched model is a random one."""
    epsilon_decay: float = 0.05
    """Subtracted from epsilon every round, down to 0."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round."""
    validation: float = 0.2
    """Share of the training samples set aside, where the federation has no validation data."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 < self.fraction <= 1, "fraction", self.fraction, "give a fraction in (0, 1]")
        require(0 <= self.epsilon <= 1, "epsilon", self.epsilon, "give a number in [0, 1]")
        require(self.epsilon_decay >= 0, "epsilon_decay", self.epsilon_decay, "give 0 or more")
        check_participation(self.participation)
        check_validation(self.validation)

    def init(self, engine: Engine, theta0: Params) -> FedFomoState:
        require_validation(engine)
        k = engine.num_clients
        affinity = torch.zeros(k, k, dtype=torch.float64)
        return FedFomoState(engine.replicate(theta0), engine.replicate(theta0), affinity)

    def step(self, engine: Engine, state: FedFomoState, round: int) -> tuple[FedFomoState, Info]:
        chosen = participants(engine, self.participation, round)
        half, loss = engine.train(state.theta, self.sgd, round, among=chosen)
        chosen = chosen & engine.active
        sent = choose(engine, chosen, half, state.sent)
        own = torch.eye(engine.num_clients, dtype=torch.bool)
        fetched = (self._candidates(engine, state.affinity, round) | own) & chosen[:, None]
        theirs = engine.peer_loss(sent, fetched, WHOLE, round, split="val")
        mine = engine.peer_loss(state.theta, own, WHOLE, round, split="val").diagonal()[:, None]
        distance = engine.squared_distances(state.theta, sent).sqrt()
        helps = (mine - theirs) / distance
        omega = torch.where(helps.isfinite(), helps, 0.0)  # not fetched, or the same model
        gain = omega.clamp(min=0)
        graph = normalise_rows(gain)
        mixed = engine.mix(graph, sent, via="held")
        theta = choose(engine, gain.any(dim=1), mixed, state.theta)
        info = {"train_loss": loss, "graph": graph}
        return FedFomoState(theta, sent, state.affinity + omega), info

    def _candidates(self, engine: Engine, affinity: Tensor, round: int) -> Tensor:
        """(K, K) bool: the peers whose models are fetched; the best by affinity, equal ones in
        random order, and random ones in the places where the client explores."""
        k = engine.num_clients
        count = num_kept(k, self.fraction)
        key = derive(engine.seed, "fedfomo", round)
        draws = uniform(key, torch.arange(k), (k + count,))
        luck, places = draws[:, :k], draws[:, k:]
        peers = engine.active[:, None] & engine.active & ~torch.eye(k, dtype=torch.bool)
        explored = (places < self.epsilon - self.epsilon_decay * round).sum(dim=1, keepdim=True)
        shuffled = luck.argsort(dim=1)
        known = affinity.masked_fill(~peers, -torch.inf).gather(1, shuffled)
        order = shuffled.gather(1, known.argsort(dim=1, descending=True, stable=True))
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(k).expand(k, -1))
        return keep_top(luck + (rank < count - explored), count, peers, keep_self=False)
