"""Sets of partners under a budget: those whose models, averaged, do best on one's own validation
data."""

from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.shared.checks import check_validation, require_validation
from scool.contracts import Engine, Method
from scool.errors import check_fields, require
from scool.graph.mixing import normalise_rows, num_kept
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import as_metric
from scool.randomness import derive, uniform
from scool.types import Info, Params, Tree


class DPFLState(NamedTuple):
    theta: Tree
    pool: Tensor  # (K, K) bool Omega: the peers among which each client chooses
    untried: Tensor  # (K, K) bool: peers that its next search tries, too; all at first
    partners: Tensor  # (K, K) bool S, each client itself among them


@final
@dataclass(frozen=True)
class DPFL(Method[DPFLState]):
    r"""$\theta_i^{t+1} = \bar\theta(S_i)$, the mean of the $\theta_j^{t+1/2}$ of $S_i$ weighted by
    samples, with $S_i \approx \arg\max_{i \in S \subseteq \Omega_i \cup \{i\},\, |S| \le 1 + B}
    R_i(S)$, $R_i(S) = -L^{val}_i(\bar\theta(S))$.

    A randomised double greedy search: with $X = \{i\}$ and $Y = \Omega_i \cup \{i\}$ client i goes
    through $\Omega_i$ in random order, with $a = [R_i(X \cup j) - R_i(X)]_+$ and $b = [R_i(Y
    \setminus j) - R_i(Y)]_+$. Peer j joins X with probability $a / (a + b)$ (1 if both are 0), else
    it leaves Y. The search ends when X has B peers.

    The first search is among all clients; those that it finds are $\Omega_i$ from then on, and so
    are those that join later if the first search after that finds them. In the `warmup` rounds
    before, everyone learns alone. Traffic: the models of all others in the round of the first
    search, later those of $\Omega_i$ where a search is due, else those of $S_i$.
    Kharrat, Canini, Horvath, AISTATS 2025.
    """

    learns_graph = True
    verbs = frozenset({"train", "fetch", "mix", "measure"})

    sgd: LocalSGD = field(default_factory=LocalSGD)
    fraction: float = 0.1
    """B: partners at most, as a fraction of all clients; the client itself is extra."""
    warmup: int = 1
    """Rounds of learning alone before the first search."""
    every: int = 1
    """Rounds from one search to the next."""
    validation: float = 0.2
    """Share of the training samples set aside, where the federation has no validation data."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 < self.fraction <= 1, "fraction", self.fraction, "give a fraction in (0, 1]")
        require(self.warmup >= 0, "warmup", self.warmup, "give 0 or more")
        require(self.every >= 1, "every", self.every, "give at least 1")
        check_validation(self.validation)

    def init(self, engine: Engine, theta0: Params) -> DPFLState:
        require_validation(engine)
        own = torch.eye(engine.num_clients, dtype=torch.bool)
        return DPFLState(engine.replicate(theta0), torch.zeros_like(own), ~own, own)

    def admit(self, state: DPFLState, clients: Tensor) -> DPFLState:
        untried = state.untried.clone()
        untried[clients], untried[:, clients] = True, True
        return state._replace(untried=untried.fill_diagonal_(False))

    def step(self, engine: Engine, state: DPFLState, round: int) -> tuple[DPFLState, Info]:
        half, loss = engine.train(state.theta, self.sgd, round)
        active = engine.active
        if round >= self.warmup and (round - self.warmup) % self.every == 0:
            tried = (state.pool | state.untried) & active & active[:, None]
            engine.fetch(half, tried)
            found = self._search(engine, half, tried, round)
            state = state._replace(
                pool=torch.where(state.untried & tried, found, state.pool),
                untried=state.untried & ~tried,
                partners=torch.where(active[:, None], found, state.partners),
            )
        else:
            engine.fetch(half, state.partners)
        graph = weights_of(state.partners, engine.sizes)
        theta = engine.mix(graph, half, via="held")
        return state._replace(theta=theta), {"train_loss": loss, "graph": graph}

    def _search(self, engine: Engine, half: Tree, peers: Tensor, round: int) -> Tensor:
        """(K, K) bool S: the double greedy search of all clients at once, a candidate each at a
        time."""
        k = engine.num_clients
        budget = num_kept(k, self.fraction)
        luck = uniform(derive(engine.seed, "dpfl", round), torch.arange(k), (2 * k,))
        order = luck[:, :k].masked_fill(~peers, torch.inf).argsort(dim=1)
        chosen = torch.eye(k, dtype=torch.bool)
        left = peers | chosen
        reward, rest = self._reward(engine, half, chosen), self._reward(engine, half, left)
        counts = peers.sum(dim=1)
        for s in range(int(counts.max())):
            searches = (s < counts) & (chosen.sum(dim=1) <= budget)
            if not bool(searches.any()):
                break
            here = torch.zeros_like(peers).scatter_(1, order[:, s : s + 1], True)
            here &= searches[:, None]
            joined = self._reward(engine, half, chosen | here)
            without = self._reward(engine, half, left & ~here)
            joins = luck[:, k + s] < chance(joined - reward, without - rest)
            chosen = chosen | (here & joins[:, None])
            left = left & ~(here & ~joins[:, None])
            reward = torch.where(searches & joins, joined, reward)
            rest = torch.where(searches & ~joins, without, rest)
        return chosen

    def _reward(self, engine: Engine, half: Tree, partners: Tensor) -> Tensor:
        """(K,) R of a set of each client."""
        mean = engine.mix(weights_of(partners, engine.sizes), half, via="held")
        return -engine.measure(mean, "val", as_metric(engine.loss)).double().cpu()


def weights_of(partners: Tensor, sizes: Tensor) -> Tensor:
    """(K, K) the weights of a mean over sets of clients by their numbers of samples."""
    return normalise_rows(partners * sizes.double().clamp_min(1))


def chance(gain: Tensor, relief: Tensor) -> Tensor:
    """The probability that a peer joins, by what it adds to X and what its leaving adds to Y; 0
    where X with it has no finite loss.

    >>> gain, relief = torch.tensor([3.0, -1, -1, torch.nan]), torch.tensor([1.0, 2, -2, torch.nan])
    >>> chance(gain, relief).tolist()
    [0.75, 0.0, 1.0, 0.0]
    """
    a, b = gain.clamp_min(0), relief.nan_to_num(0.0).clamp_min(0)
    return torch.where(a + b > 0, a / (a + b), 1.0).where(gain.isfinite(), 0.0)
