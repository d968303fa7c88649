"""Attentive message passing: every client has a cloud model made of models close to its own."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.checks import check_pull
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD, Pull
from scool.types import Info, Params, Tree


class FedAMPState(NamedTuple):
    theta: Tree


@final
@dataclass(frozen=True)
class FedAMP(Method[FedAMPState]):
    r"""$\min \sum_i L_i(\theta_i) + \lambda \sum_{i<j} A(\|\theta_i - \theta_j\|^2)$ with
    $A(x) = 1 - e^{-x / \sigma}$, a step on each part in turn.

    The server makes $u_i = \xi_{ii} \theta_i + \sum_{j \ne i} \xi_{ij} \theta_j$ with
    $\xi_{ij} = \alpha_t A'(\|\theta_i - \theta_j\|^2)$ and $\xi_{ii} = 1 - \sum_{j \ne i}
    \xi_{ij}$; client i then trains on $L_i(\theta_i) + \frac{\lambda}{2} \|\theta_i - u_i\|^2$.

    The squared distances are divided by their mean, and $\alpha_t$ is `alpha` times the largest
    step with which no $\xi_{ii}$ is negative: neither depends on the size of the network. All
    clients take part. Traffic: two models per client and round. Huang et al., AAAI 2021.
    """

    meets = "server"
    learns_graph = True
    verbs = frozenset({"train", "mix", "squared_distances"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    sigma: float = 0.1
    """Width of the attention, in units of the mean squared distance: a small one favours close
    models."""
    alpha: float = 0.9
    """The share that the client with the closest peers takes from them, in [0, 1]."""
    lam: float = 1.0
    """Pull of the local steps towards u_i (the paper's lambda / alpha_t); 0 is local SGD."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.sigma > 0, "sigma", self.sigma, "give a positive number")
        require(0 <= self.alpha <= 1, "alpha", self.alpha, "give a number in [0, 1]")
        check_pull("lam", self.lam, self.sgd)

    def init(self, engine: Engine, theta0: Params) -> FedAMPState:
        return FedAMPState(engine.replicate(theta0))

    def step(self, engine: Engine, state: FedAMPState, round: int) -> tuple[FedAMPState, Info]:
        distances = engine.squared_distances(state.theta)
        graph = attention(distances, engine.active, self.sigma, self.alpha)
        cloud = engine.mix(graph, state.theta, via="server")
        pull = Pull(cloud, self.lam)
        theta, loss = engine.train(state.theta, self.sgd, round, pull=pull)
        return FedAMPState(theta), {"train_loss": loss, "graph": graph}


def attention(distances: Tensor, active: Tensor, sigma: float, alpha: float) -> Tensor:
    r"""(K, K) $\xi$ of the squared distances (K, K); inactive clients stay alone.

    >>> near = torch.tensor([[0.0, 1.0, 9.0], [1.0, 0.0, 9.0], [9.0, 9.0, 0.0]]).double()
    >>> attention(near, torch.ones(3, dtype=torch.bool), sigma=0.1, alpha=0.5).round(decimals=3)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """
    eye = torch.eye(len(distances), dtype=torch.bool)
    pairs = active[:, None] & active & ~eye
    if not bool(pairs.any()):
        return eye.double()
    mean = distances[pairs].mean()
    x = distances / mean.clamp(min=torch.finfo(mean.dtype).tiny)
    nearest = x[pairs].min()  # a common factor of A', which alpha_t takes out again
    closeness = torch.exp((nearest - x) / sigma).where(pairs, 0.0)
    xi = alpha * closeness / closeness.sum(dim=1).max()
    return xi + torch.diag((1 - xi.sum(dim=1)).clamp(min=0))
