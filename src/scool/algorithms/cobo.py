"""Collaborative learning as a bilevel problem: partners whose gradients agree half-way."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.sharing import mix_and_move
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.learning.local_sgd import LocalSGD
from scool.randomness import generator
from scool.types import Info, Params, Tree


class CoBoState(NamedTuple):
    theta: Tree
    w: Tensor  # (K, K) symmetric, in [0, 1]: the pull between pairs; 1 on the diagonal


@final
@dataclass(frozen=True)
class CoBo(Method[CoBoState]):
    r"""$\min \sum_i L_i(\theta_i) + \frac{\rho}{2} \sum_{i<j} w_{ij} \|\theta_i - \theta_j\|^2$,
    $w_{ij} = \arg\max_{w \in [0, 1]} w \langle \nabla L_i(m_{ij}), \nabla L_j(m_{ij}) \rangle$ with
    $m_{ij} = \frac{1}{2} (\theta_i + \theta_j)$.

    In each of `meetings` pairings a client meets one other client, and $w_{ij} \leftarrow [w_{ij} +
    \gamma \langle \nabla L_i(m_{ij}), \nabla L_j(m_{ij}) \rangle]_{[0, 1]}$, from 1 at first. Then
    $\theta_i^{t+1} = \theta_i^t - \Delta_i - \sum_j r_{ij} (\theta_i^t - \theta_j^t)$ with
    $-\Delta_i$ the change by local training and $r_{ij} = \rho\, w_{ij} / \max(\sum_m w_{im},
    \sum_m w_{jm})$.

    The pairings go round, so that all pairs meet equally often. `graph` holds the $r_{ij}$ and what
    they leave to the client itself. Traffic: one model per edge and direction, and for each meeting
    a model and a gradient per client. Hashemi, He, Jaggi, NeurIPS 2024.
    """

    learns_graph = True
    verbs = frozenset({"train", "gradient", "mix", "fetch", "inner"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    rho: float = 1.0
    """How far the models of partners move together in a round, in (0, 1]; 1: to their mean."""
    gamma: float = 10.0
    """Step of the weights; the larger, the sooner a weight is 0 or 1."""
    meetings: int = 5
    """Peers that a client meets in a round."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 < self.rho <= 1, "rho", self.rho, "give a number above 0, at most 1")
        require(self.gamma > 0, "gamma", self.gamma, "give a positive number")
        require(self.meetings >= 1, "meetings", self.meetings, "give at least 1")

    def init(self, engine: Engine, theta0: Params) -> CoBoState:
        k = engine.num_clients
        return CoBoState(engine.replicate(theta0), torch.ones(k, k, dtype=torch.float64))

    def step(self, engine: Engine, state: CoBoState, round: int) -> tuple[CoBoState, Info]:
        w, theta = state.w.clone(), state.theta
        for pairs in self._pairings(engine, round):
            middle = engine.mix(midpoints(pairs), theta)
            slope = engine.gradient(middle, "train").theta
            engine.fetch(slope, pairs.double())
            agree = engine.inner(slope, slope)
            met = pairs & agree.isfinite()
            w = torch.where(met, (w + self.gamma * agree.where(met, 0.0)).clamp(0, 1), w)
        graph = steps_of(w, self.rho, engine.active)
        half, loss = engine.train(theta, self.sgd, round)
        theta = mix_and_move(engine, graph, theta, half)
        return CoBoState(theta, w), {"train_loss": loss, "graph": graph}

    def _pairings(self, engine: Engine, round: int) -> list[Tensor]:
        """(K, K) bool each: the pairs of active clients that meet, by the circle method."""
        k = engine.num_clients
        rng = generator(engine.seed, "cobo")
        place = torch.randperm(k, generator=rng)
        turns = k - 1 + k % 2  # pairings in which all meet each other
        found: list[Tensor] = []
        for m in range(min(self.meetings, turns)):
            turn = (round * self.meetings + m) % turns
            pairs = torch.zeros(k, k, dtype=torch.bool)
            pairs[place, place[partners(k, turn)]] = True
            active = engine.active
            found.append(pairs & ~torch.eye(k, dtype=torch.bool) & active & active[:, None])
        return found


def partners(count: int, turn: int) -> Tensor:
    """(K,) the partner of each client in a round of a tournament; itself where it sits out.

    >>> partners(4, 0), partners(4, 1), partners(4, 2)
    (tensor([3, 2, 1, 0]), tensor([2, 3, 0, 1]), tensor([1, 0, 3, 2]))
    """
    ring = count - 1 + count % 2  # the last of an even number sits in the middle
    there = (2 * turn - torch.arange(ring)) % ring if ring else torch.zeros(0, dtype=torch.int64)
    if count % 2:
        return there
    there = torch.cat([there, torch.tensor([turn])])
    there[turn] = count - 1
    return there


def midpoints(pairs: Tensor) -> Tensor:
    """(K, K) weights of the model half-way to the client that each meets; its own where there is
    none."""
    half = pairs.double() / 2
    return half + torch.diag(1 - half.sum(dim=1))


def steps_of(w: Tensor, rho: float, active: Tensor) -> Tensor:
    r"""(K, K) $r_{ij}$, and on the diagonal what they leave: rows and columns sum to one.

    >>> steps_of(torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).double(), 0.5,
    ...          torch.ones(3, dtype=torch.bool)).tolist()
    [[0.75, 0.25, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]
    """
    here = active[:, None] & active & ~torch.eye(len(w), dtype=torch.bool)
    apart = w.where(here, 0.0)
    degree = 1 + apart.sum(dim=1)
    steps = rho * apart / torch.maximum(degree[:, None], degree)
    return steps + torch.diag(1 - steps.sum(dim=1))
