"""A body that random peers push to one another, and a personal head, trained in turn."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.sharing import only, split_names
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.graph.mixing import keep_top
from scool.learning.local_sgd import LocalSGD
from scool.randomness import derive, uniform
from scool.types import Info, Params, Tree


class DFedPGPState(NamedTuple):
    theta: Tree  # the bodies z_i and the heads v_i
    mass: Tensor  # (K,) mu, the push-sum weights; their sum stays K


@final
@dataclass(frozen=True)
class DFedPGP(Method[DFedPGPState]):
    r"""First the head on the body, then the body under that head, then push-sum of bodies along
    arrows that are drawn again in every round.

    $v_i \leftarrow v_i - \eta \nabla_v L(z_i, v_i)$ for `head_epochs`;
    $z_i \leftarrow z_i - \eta \nabla_z L(z_i, v_i)$ for `epochs` (or `steps`);
    $\mu_i^{t+1} = \sum_j P_{ij} \mu_j^t$, $z_i^{t+1} = \frac{1}{\mu_i^{t+1}} \sum_j P_{ij} \mu_j^t
    z_j$.

    $P_{ij} = \frac{1}{1 + d}$ for $i = j$ and the $d$ clients i that j sends to: columns sum to
    one, rows need not, and $\mu$ makes up for that. The weights on the $z_j$, which are what
    `graph` holds, sum to one. Heads never travel. Traffic: `degree` bodies per client and round.
    Liu, Shi, Li, Wu, Wang, Shen, CVPR 2024.
    """

    verbs = frozenset({"train", "mix"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    head_epochs: int = 1
    """Passes over its own data for the head, before those for the body (`epochs` or `steps`)."""
    personal: str = "head"
    """Tensors that stay: head (the last layer), norm (all normalisation), or names of layers,
    separated by commas."""
    degree: int = 10
    """Random peers that a client sends its body to, drawn in every round."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.head_epochs >= 1, "head_epochs", self.head_epochs, "give at least 1")
        require(self.degree >= 1, "degree", self.degree, "give at least 1")
        remedy = "name a layer, e.g. head; without one use the method dpsgd"
        require(bool(self.personal.strip(" ,")), "personal", self.personal, remedy)

    def init(self, engine: Engine, theta0: Params) -> DFedPGPState:
        split_names(theta0, self.personal, engine.norms)  # refuse a layer that the model lacks
        mass = torch.ones(engine.num_clients, dtype=torch.float64)
        return DFedPGPState(engine.replicate(theta0), mass)

    def step(self, engine: Engine, state: DFedPGPState, round: int) -> tuple[DFedPGPState, Info]:
        shared, personal = split_names(state.theta, self.personal, engine.norms)
        passes = replace(self.sgd, epochs=self.head_epochs, steps=0)
        theta = engine.train(state.theta, passes, round, only=personal).theta
        half, loss = engine.train(theta, self.sgd, round, only=shared)
        pushed = self._arrows(engine, round) * state.mass
        mass = pushed.sum(dim=1)
        graph = pushed / mass[:, None]
        body = engine.mix(graph, only(half, shared))
        return DFedPGPState(half | body, mass), {"train_loss": loss, "graph": graph}

    def _arrows(self, engine: Engine, round: int) -> Tensor:
        """(K, K) P: column j says how client j passes its mass on; all to itself if not active."""
        k = engine.num_clients
        luck = uniform(derive(engine.seed, "dfedpgp", round), torch.arange(k), (k,))
        peers = engine.active[:, None] & engine.active & ~torch.eye(k, dtype=torch.bool)
        sends = keep_top(luck, self.degree, peers)  # row j: whom j sends to, and itself
        return (sends.double() / sends.sum(dim=1, keepdim=True)).T
