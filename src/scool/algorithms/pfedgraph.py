"""A collaboration graph inferred from the directions in which models have moved."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.checks import check_pull
from scool.algorithms.shared.sharing import shares
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD, Pull
from scool.types import Info, Params, Tree


class PFedGraphState(NamedTuple):
    theta: Tree
    theta0: Params  # the common first model


@final
@dataclass(frozen=True)
class PFedGraph(Method[PFedGraphState]):
    r"""$\theta_i \leftarrow \sum_j w_{ij} \theta_j^{t+1/2}$ with $w_{i\cdot} = \arg\min_{w \in
    \text{simplex}} \alpha \sum_j (w_j - p_j)^2 - \sum_j w_j c_{ij}$, $p_j = n_j / \sum n$.

    $c_{ij} = \cos(\theta_i^{t+1/2} - \theta^0, \theta_j^{t+1/2} - \theta^0)$, where above 0.9 it
    counts as 1. The minimum is the projection of $p + c_i / (2 \alpha)$ on the simplex, so most
    weights are 0.

    A proximal term towards the mixture, `mu`, replaces the cosine that the published local training
    adds to the loss. Traffic: two models per client, through a server that compares them. Ye et
    al., ICML 2023.
    """

    meets = "server"
    learns_graph = True
    verbs = frozenset({"train", "mix", "inner"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    alpha: float = 0.8
    """How much the weights follow the shares of the samples rather than similar models."""
    mu: float = 0.0
    """Pull of the local steps towards the model they begin with."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.alpha > 0, "alpha", self.alpha, "give a positive number")
        check_pull("mu", self.mu, self.sgd)

    def init(self, engine: Engine, theta0: Params) -> PFedGraphState:
        theta = engine.replicate(theta0)
        return PFedGraphState(theta, {n: p.to(theta[n]) for n, p in theta0.items()})

    def step(
        self, engine: Engine, state: PFedGraphState, round: int
    ) -> tuple[PFedGraphState, Info]:
        pull = Pull(state.theta, self.mu)
        half, loss = engine.train(state.theta, self.sgd, round, pull=pull)
        moved = {n: t - state.theta0[n] for n, t in half.items()}
        share = shares(engine, engine.active)
        eye = torch.eye(engine.num_clients, dtype=torch.float64)
        if share is None:
            return state, {"train_loss": loss, "graph": eye}
        wanted = share + cosines(engine.inner(moved, moved)) / (2 * self.alpha)
        graph = project_rows(wanted.masked_fill(~engine.active, -torch.inf))
        graph = torch.where(engine.active[:, None], graph, eye)
        theta = engine.mix(graph, half, via="server")
        return state._replace(theta=theta), {"train_loss": loss, "graph": graph}


def cosines(inner: Tensor) -> Tensor:
    """(K, K) cosines by inner products; above 0.9 they count as 1, and nothing is similar to a
    model that has not moved, but the model itself."""
    length = inner.diagonal().clamp(min=0).sqrt()
    product = length[:, None] * length
    cosine = torch.where(product > 0, inner / product.where(product > 0, 1.0), 0.0)
    return torch.where(cosine > 0.9, 1.0, cosine).fill_diagonal_(1.0)


def project_rows(x: Tensor) -> Tensor:
    """Each row's closest point on the simplex; entries of -inf become 0.

    >>> project_rows(torch.tensor([[0.9, 0.5, -3.0]]))
    tensor([[0.7000, 0.3000, 0.0000]])
    """
    largest = x.sort(dim=1, descending=True).values
    rank = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    over = (largest.cumsum(dim=1) - 1) / rank  # the shift, if so many entries stay positive
    stay = (largest > over).sum(dim=1, keepdim=True)
    return (x - over.gather(1, stay - 1)).clamp(min=0)
