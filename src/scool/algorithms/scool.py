"""SCooL: learn the models and the graph of who learns from whom, together."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast, final

import torch
from torch import Tensor

from scool.algorithms.shared.scool_options import (
    add_prior,
    check_options,
    exact_step,
    laplacian,
    log_likelihoods,
    own_data_step,
    remark_of,
    verbs_of,
)
from scool.algorithms.shared.sharing import mix_updates, only, split_names
from scool.contracts import Engine, Evidence, Method, Prior
from scool.graph.candidates import choose_candidates, pairs_with
from scool.graph.edges import Edges, values_at
from scool.graph.growing import laid_over
from scool.graph.mixing import (
    Mixing,
    Weighting,
    draw_peers,
    keep_best,
    likely,
    mixing_weights,
    num_candidates,
    num_kept,
)
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.models.layers import is_statistic
from scool.priors import SBM, AnyPrior, Dirac
from scool.priors.base import Difference, check_posterior
from scool.randomness import derive
from scool.types import Info, Params, Tree

AGAIN = 3  # rounds between choices after a client came back: its model has to catch up


class SCooLState(NamedTuple):
    theta: Tree  # theta^t
    theta0: Params  # the common first model
    graph: Any  # the prior's state; graph.w are edges or a matrix
    neighbours: Edges  # N_i; all clients (no pair listed, True everywhere) until the choice
    cross_loss: Edges  # L_ij, averaged over rounds where asked for; NaN where not known


@final
@dataclass(frozen=True)
class SCooL(Method[SCooLState]):
    r"""Structured cooperative learning with any prior of the cooperation graph. Li et al., 2023.

    One round: local learning, cross losses, E-step, aggregation, M-step, and the choice of
    neighbours (once, or in every round if they are drawn). The cases of the paper: likelihood 1.1
    (`own`) or 1.2 (`shared`); prior 2.1 (Dirac, or `model_coupling`), 2.2 (attention), 2.3 (SBM,
    MMSBM).

    We depart from the printed update: updates are averaged (`weighting="row"`). Own plus the sum of
    all peers is a step many times too long after hundreds of local steps; `weighting="paper"` is
    for single steps. If a client keeps only part of its group, `aggregate="models"` keeps the group
    together. With many clients, the rounds before the choice try a few candidates instead of all
    pairs (`graph.candidates`) and remember their losses. Personal tensors are not mixed, and no
    prior sees them.
    """

    prior: AnyPrior = field(default_factory=SBM)
    sgd: LocalSGD = field(default_factory=LocalSGD)
    draw: CrossDraw = field(default_factory=CrossDraw)
    likelihood: Literal["auto", "own", "shared"] = "auto"
    """own: case 1.1, a model explains its own data; shared: case 1.2, also its peers' data."""
    likelihood_reduction: Literal["mean", "sum"] = "mean"
    """How a client's samples enter the posterior; a sum saturates it."""
    cross_gradient: Literal["local", "exact"] = "local"
    """local: grad L(D_j; theta_j) stands for grad L(D_j; theta_i); exact needs --steps 1."""
    cross_ema: float = 0.0
    """Memory of the cross losses over rounds, 0 (none) to below 1."""
    weighting: Weighting = "row"
    aggregate: Literal["updates", "models"] = "updates"
    """What is averaged: updates, or the models themselves, so that peers stay close."""
    sparsify_round: int = 10
    """The round (from 0) after which a client keeps only its best peers; -1 never."""
    fraction: float = 0.1
    """Peers kept, as a fraction of all clients; where there are candidates, no more than these. 0:
    however many have at least half the weight of the best one."""
    candidates: int = -1
    """Peers tried per round until the graph is sparse; 0: all; -1: all, or 64 of more than 500."""
    peers: Literal["best", "drawn"] = "best"
    """Which are kept: the best, once and for all, or new ones drawn by w in every round."""
    keep_self: bool = True
    """A client is always its own neighbour, which does not count as a peer."""
    model_precision: float = 0.0
    """lambda of the Gaussian prior on the models, exp(-lambda/2 ||theta||^2)."""
    model_coupling: float = 0.0
    """lambda of case 1.2 x 2.1: also pull the models of neighbours together (a heuristic)."""
    personal: str = ""
    """Layers that are never mixed: `head`, `norm` (all that normalise), or names separated by
    commas; empty: all are mixed."""

    def __post_init__(self) -> None:
        check_options(self)

    def remark(self, rounds: int) -> str:
        return remark_of(self, rounds)

    @property
    def _prior(self) -> Prior[Any]:
        """The prior as the contract sees it, whatever the type of its state."""
        return cast("Prior[Any]", self.prior)

    @property
    def shares_data(self) -> bool:
        """Case 1.2: models also explain the data of their peers."""
        auto = self.prior.mixes == "updates"
        return auto if self.likelihood == "auto" else self.likelihood == "shared"

    @property
    def averages(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the rows of the graph sum to one."""
        return self.weighting == "row"

    @property
    def learns_graph(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the prior learns w: Dirac's is fixed."""
        return not isinstance(self.prior, Dirac)

    @property
    def averages_updates(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        is_sum = self.aggregate == "updates" and self._prior.mixes == "updates"
        return "aggregate" if is_sum and self.shares_data else ""

    @property
    def stays(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return getattr(self.prior, "stays", "")

    @property
    def verbs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The verbs that these options need."""
        return verbs_of(self)

    def shared(self, engine: Engine, tree: Tree) -> Tree:
        """The tensors that may be mixed, of one model or of a stack."""
        return only(tree, split_names(tree, self.personal, engine.norms).shared)

    def learned(self, engine: Engine, tree: Tree) -> Tree:
        """The shared tensors that gradients move: all that priors look at."""
        return {n: t for n, t in self.shared(engine, tree).items() if not is_statistic(n)}

    def init(self, engine: Engine, theta0: Params) -> SCooLState:
        k, theta = engine.num_clients, engine.replicate(theta0)
        graph = self._prior.init(k, self.learned(engine, theta0), engine.seed)
        return SCooLState(theta, theta0, graph, Edges.none(k, True), Edges.none(k, torch.nan))

    def step(self, engine: Engine, state: SCooLState, round: int) -> tuple[SCooLState, Info]:
        """The algorithm box of the paper, one line per step."""
        pairs = self._pairs(engine, state, round) if self.shares_data else None
        half, loss = engine.train(state.theta, self.sgd, round)  # local learning
        if pairs is None:
            return own_data_step(self, engine, state, half, loss, round)
        state = state._replace(cross_loss=self._cross_losses(engine, state, half, pairs, round))
        evidence = self._evidence(engine, state, half, round)  # log P(D_j | theta_i)
        graph = self._prior.e_step(state.graph, evidence)  # [E]
        check_posterior(self.prior, graph, evidence)
        w = evidence.pairs.on(values_at(graph.w, evidence.pairs))
        partners = self._partners(engine, state, w, round)
        weights, fallback = self._weights(partners, round)
        theta = self._models(engine, state, half, weights, round)  # [M], theta
        pulls = laplacian(self, engine, self.learned(engine, state.theta), partners)
        if (pull := self._prior.pull(graph, evidence)) is not None:
            pulls = [pull, *pulls]
        theta = add_prior(self, engine, state.theta, theta, pulls, round)
        rank = w.on(values_at(self._prior.ranking(graph, evidence), w))
        neighbours = self._neighbours(engine, state.neighbours, w, rank, round)
        elbo = self._prior.elbo(graph, evidence)
        graph = self._m_step(engine, graph, evidence)  # [M], alpha, B, phi
        info = {
            "train_loss": loss,
            "graph": weights,
            "elbo": elbo,
            "edges": float((~weights.is_loop).sum()),
            "fallback": float((fallback & engine.active).sum()),
            **self._prior.describe(graph),
        }
        return state._replace(theta=theta, graph=graph, neighbours=neighbours), info

    def _cross_losses(
        self, engine: Engine, state: SCooLState, half: Tree, pairs: Edges, round: int
    ) -> Edges:
        """L_ij of the pairs still in the graph. Candidates and drawn peers change: a pair that is
        not measured this time keeps its last loss."""
        loss = engine.cross_loss(half, pairs, self.draw, round)
        before = state.cross_loss.lookup(loss)
        memory = torch.where(before.isfinite(), self.cross_ema, 0.0)
        mean = before.where(before.isfinite(), 0.0) * memory + (1 - memory) * loss.values
        loss = loss.on(mean, torch.nan)
        if self._candidates(engine, round) or self.peers == "drawn":
            return state.cross_loss.updated(loss)
        return loss

    def _evidence(self, engine: Engine, state: SCooLState, half: Tree, round: int) -> Evidence:
        """The losses of the pairs, and what the clients report of their updates if the prior asks
        for it."""
        loss, shared = state.cross_loss, self.learned(engine, half)
        loss = loss.take(loss.values.isfinite()).among(engine.active)
        log_lik, uniform = log_likelihoods(self, engine, shared, loss)
        updates, reports = Difference(shared, state.theta0), None
        if self._reports:
            reports = engine.gather(self._prior.report(state.graph, updates))
        seen = loss.on(torch.ones(loss.count, dtype=torch.bool), False)
        known = Evidence(log_lik, seen, uniform, updates, engine.owned, reports)
        return known._replace(round=round, seed=engine.seed)

    def _m_step(self, engine: Engine, graph: Any, evidence: Evidence) -> Any:
        """[M] of the prior, with its gradient over all clients if it asks for it."""
        if self._reports:
            gradient = self._prior.gradient(graph, evidence)
            summed = {name: engine.total(g) for name, g in gradient.items()}
            evidence = evidence._replace(gradient=summed)
        return self._prior.m_step(graph, evidence)

    def _pairs(self, engine: Engine, state: SCooLState, round: int) -> Edges:
        """The pairs that are measured, chosen before the training: who breaks there drops out. A
        client's own model on its own data costs no traffic."""
        active, count = engine.active, self._candidates(engine, round)
        own = Edges.loops(len(active), active)
        if not count:
            if state.neighbours.fill:
                return Edges.complete(len(active), active)
            met = state.neighbours.among(active)
            return met.updated(own) if self.keep_self else met
        w, tried = Edges.of(state.graph.w), state.cross_loss
        tried = tried.take(tried.values.isfinite())
        last, seed = round == self.sparsify_round, engine.seed
        chosen = choose_candidates(w, tried, active, count, seed=seed, round=round, is_last=last)
        return chosen.updated(own)

    def _partners(self, engine: Engine, state: SCooLState, w: Edges, round: int) -> Edges:
        """The weights of the peers whose updates a client may take: with candidates only the best
        known ones, so that updates do not travel more often than models."""
        if count := self._candidates(engine, round):
            return w.within(keep_best(w, count))
        return w if state.neighbours.fill else w.within(state.neighbours)

    def _weights(self, partners: Edges, round: int) -> Mixing:
        """Peers that were drawn by w count equally: w is in the draw already."""
        if self.peers == "drawn" and self._is_sparse(round):
            partners = partners.on(torch.ones_like(partners.values))
        own = "gated" if self.prior.self_mode == "gated" else "full"
        return mixing_weights(partners, own, self.weighting)

    def _models(
        self, engine: Engine, state: SCooLState, half: Tree, weights: Edges, round: int
    ) -> Tree:
        r"""[M] for theta: $\theta_i^{t+1} = \theta_i^t - \sum_j \hat w_{ij} \Delta_j$; a Dirac
        prior also mixes the models, [DPSGD]. With `aggregate="models"`
        $\theta_i^{t+1} = \sum_j \hat w_{ij} \theta_j^{t+1/2}$: the same as long as neighbours hold
        equal models, and what brings them together where they do not. Personal tensors stay those
        of $\theta_i^{t+1/2}$; with exact gradients running statistics do, too."""
        shared = self.shared(engine, state.theta)
        if self.cross_gradient == "exact":
            return half | exact_step(self, engine, state.theta, weights, round)
        if self.aggregate == "models":
            return half | engine.mix(weights, self.shared(engine, half))
        mixed = mix_updates(engine, weights, shared, self.shared(engine, half))
        if self.prior.mixes == "models":
            models = engine.mix(state.graph.w, shared)
            moved = {n: t for n, t in shared.items() if not is_statistic(n)}
            mixed |= {n: models[n] + mixed[n] - t for n, t in moved.items()}
        return half | mixed

    def _neighbours(
        self, engine: Engine, before: Edges, w: Edges, rank: Edges, round: int
    ) -> Edges:
        """N_i: everyone, until each client chooses its best peers once and for all, or from then on
        draws others for every round. Clients whose rows `admit` opened choose again in the next
        round that `AGAIN` divides and in which all their pairs were measured."""
        count = num_kept(engine.num_clients, self.fraction or 1.0)
        count = min(count, num_candidates(engine.num_clients, self.candidates) or count)
        if self.peers == "drawn" and self._is_sparse(round + 1):
            return draw_peers(w, count, derive(engine.seed, "peers", round), self.keep_self)
        is_late = before.fill and self._is_sparse(round)  # of one who came after the choice
        is_time = round == self.sparsify_round or is_late
        if not is_time and (not self._is_sparse(round) or round % AGAIN):
            return before
        rank = rank if self.fraction else rank.within(likely(w))
        best = keep_best(rank, count, self.keep_self)
        if is_time:
            return best
        opened = (before.degrees > best.degrees) & engine.active
        opened &= w.degrees >= before.among(engine.active).degrees
        return before.take(~opened[before.i]).updated(best.take(opened[best.i]))

    def admit(self, state: SCooLState, clients: Tensor) -> SCooLState:
        """A client that comes back has no measured pairs, and would never be chosen as a neighbour.
        Opens the row and the column of these clients (with many clients, for some peers): the pairs
        are measured from the next round on, and enter the next choice of peers."""
        known = state.neighbours
        if known.fill:
            return state  # all meet each other
        count = num_candidates(len(known), self.candidates) or len(known)
        return state._replace(neighbours=known.updated(pairs_with(clients, count, len(known))))

    def grow(self, state: SCooLState, fresh: SCooLState) -> SCooLState:
        """The prior says what it holds of newcomers."""
        found = laid_over(fresh, state._replace(graph={}))
        return found._replace(graph=self._prior.grow(state.graph, fresh.graph))

    @property
    def _reports(self) -> bool:
        """Whether the prior asks for more than the losses."""
        return getattr(self.prior, "reports", False)

    def _candidates(self, engine: Engine, round: int) -> int:
        """Peers that a client tries; 0: all that are left."""
        return 0 if self._is_sparse(round) else num_candidates(engine.num_clients, self.candidates)

    def _is_sparse(self, round: int) -> bool:
        """Whether clients meet only the peers they have chosen."""
        return 0 <= self.sparsify_round < round
