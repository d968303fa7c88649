"""SCooL: learn the models and the graph of who learns from whom, together."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast, final

import torch
from torch import Tensor

from scool.algorithms.shared.aggregate import mix_and_move, mix_updates, per_client
from scool.algorithms.shared.exchange import choose
from scool.algorithms.shared.parts import only, split_names
from scool.algorithms.shared.scool_checks import check_options, verbs_of
from scool.contracts import Engine, Evidence, Method, Prior
from scool.graph.candidates import choose_candidates, num_candidates
from scool.graph.edges import Edges, Matrix, values_at
from scool.graph.normalise import Mixing, Weighting, mixing_weights
from scool.graph.sparsify import draw_peers, keep_best, num_kept
from scool.learning.cross import CrossDraw
from scool.learning.local_sgd import LocalSGD
from scool.models.norms import is_statistic
from scool.priors import SBM, AnyPrior, Dirac
from scool.priors.checks import check_posterior
from scool.randomness import derive
from scool.types import Difference, Info, Params, Tree


class SCooLState(NamedTuple):
    theta: Tree  # theta^t
    theta0: Params  # the common first model
    graph: Any  # the prior's state; graph.w are edges or a matrix
    neighbours: Edges  # N_i; everyone (no pair listed, True everywhere) until the choice
    cross_loss: Edges  # L_ij, averaged over rounds where asked for; NaN where not known


@final
@dataclass(frozen=True)
class SCooL(Method[SCooLState]):
    r"""Structured cooperative learning with any prior of the cooperation graph. Li et al., 2023.

    One round: local learning, cross losses, E-step, aggregation, M-step; and the choice of the
    neighbours, once, or in every round where they are drawn. The grid of the paper is covered:
    likelihood 1.1 (`own`) or 1.2 (`shared`); prior 2.1 (Dirac, or `model_coupling`), 2.2
    (attention), 2.3 (SBM, MMSBM).

    We depart from the printed update where it cannot be used: updates are averaged
    (`weighting="row"`), because own plus the sum of all peers, after hundreds of local steps, is a
    step many times too long. `weighting="paper"` is there for single steps. Where a client keeps
    only some of its group, or weighs its members unequally, `aggregate="models"` keeps the group
    together.

    With many clients the rounds until the choice try a few candidates each, not all pairs (see
    `graph.candidates`), and remember what they measured. Personal tensors are not mixed: they stay
    as local training left them, and no prior of the graph sees them.
    """

    prior: AnyPrior = field(default_factory=SBM)
    sgd: LocalSGD = field(default_factory=LocalSGD)
    draw: CrossDraw = field(default_factory=CrossDraw)
    likelihood: Literal["auto", "own", "shared"] = "auto"
    """own: case 1.1, a model explains its own data; shared: case 1.2, also its peers' data."""
    likelihood_reduction: Literal["mean", "sum"] = "mean"
    """How a client's samples enter the posterior; the sum saturates it."""
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
    """Peers kept, as a fraction of all clients; where there are candidates, no more than these."""
    candidates: int = -1
    """Peers tried a round until the graph is sparse; 0: all; -1: all up to 500 clients, then 64."""
    peers: Literal["best", "drawn"] = "best"
    """Which are kept: the best, once and for all, or every round others, drawn by w."""
    keep_self: bool = True
    """A client always stays its own neighbour and does not count as a peer."""
    model_precision: float = 0.0
    """lambda of the Gaussian prior on the models, exp(-lambda/2 ||theta||^2)."""
    model_coupling: float = 0.0
    """lambda of case 1.2 x 2.1: also pull the models of neighbours together (a heuristic)."""
    personal: str = ""
    """Layers that are never mixed: `head`, `norm` (all that normalise), or names with commas
    between; empty mixes all."""

    def __post_init__(self) -> None:
        check_options(self)

    def remark(self, rounds: int) -> str:
        """What was asked for and has no effect in so few rounds.

        >>> SCooL(peers="drawn").remark(10).partition(": ")[2]
        'run at least 12, or give sparsify_round = 8 or less'
        """
        last = rounds - 2  # the graph is sparse from the round after sparsify_round on
        if self.peers == "best" or self.sparsify_round <= last:
            return ""
        words = f"peers = {self.peers!r} has no effect in {rounds} rounds"
        remedy = f"run at least {self.sparsify_round + 2}"
        less = f", or give sparsify_round = {last} or less" if last >= 0 else ""
        return f"{words} with sparsify_round = {self.sparsify_round}: {remedy}{less}"

    @property
    def _prior(self) -> Prior[Any]:
        """The prior as the contract sees it; its state is its own business."""
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
    def verbs(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The verbs that these options need."""
        return verbs_of(self)

    def _shared(self, engine: Engine, tree: Tree) -> Tree:
        """What may be mixed, of a model or of many."""
        return only(tree, split_names(tree, self.personal, engine.norms).shared)

    def _learned(self, engine: Engine, tree: Tree) -> Tree:
        """What may be mixed and is moved by gradients: all that priors look at."""
        return {n: t for n, t in self._shared(engine, tree).items() if not is_statistic(n)}

    def _candidates(self, engine: Engine, round: int) -> int:
        """Peers that a client tries; 0: all that are left."""
        is_sparse = self._is_sparse(round)
        return 0 if is_sparse else num_candidates(engine.num_clients, self.candidates)

    def _is_sparse(self, round: int) -> bool:
        """Whether clients only meet the peers they have chosen."""
        return 0 <= self.sparsify_round < round

    def init(self, engine: Engine, theta0: Params) -> SCooLState:
        k = engine.num_clients
        return SCooLState(
            theta=engine.replicate(theta0),
            theta0=theta0,
            graph=self._prior.init(k, self._learned(engine, theta0), engine.seed),
            neighbours=Edges.none(k, True),
            cross_loss=Edges.none(k, torch.nan),
        )

    def step(self, engine: Engine, state: SCooLState, round: int) -> tuple[SCooLState, Info]:
        """The algorithm box of the paper, one line a step."""
        half, loss = engine.train(state.theta, self.sgd, round)  # local learning
        if not self.shares_data:
            return self._own_data_step(engine, state, half, loss, round)
        state, evidence = self._cross_losses(engine, state, half, round)  # log P(D_j | theta_i)
        graph = self._prior.e_step(state.graph, evidence)  # [E]
        check_posterior(self.prior, graph, evidence)
        w = evidence.pairs.on(values_at(graph.w, evidence.pairs))
        partners = self._partners(engine, state, w, round)
        weights, fallback = self._weights(partners, round)
        theta = self._models(engine, state, half, weights, round)  # [M], theta
        pulls = self._pulls(engine, state, graph, evidence, partners)
        theta = self._add_prior(engine, state, theta, pulls, round)
        neighbours = self._neighbours(engine, state, graph, w, evidence, round)
        elbo = self._prior.elbo(graph, evidence)
        graph = self._prior.m_step(graph, evidence)  # [M], alpha, B, phi
        info = {
            "train_loss": loss,
            "graph": weights,
            "elbo": elbo,
            "edges": float((~weights.is_loop).sum()),
            "fallback": float((fallback & engine.active).sum()),
            **self._prior.describe(graph),
        }
        return state._replace(theta=theta, graph=graph, neighbours=neighbours), info

    def _own_data_step(
        self, engine: Engine, state: SCooLState, half: Tree, loss: Tensor, round: int
    ) -> tuple[SCooLState, Info]:
        """Case 1.1: peers' data enter nowhere and nobody is asked. With a prior of type 2.2 or 2.3
        the graph sums out and local learning remains; Dirac's couples the models."""
        graph: Matrix = Edges.loops(engine.num_clients, torch.ones_like(engine.active))
        graph, theta = graph.on(torch.ones(graph.count, dtype=torch.float64)), half
        if self.prior.mixes == "models":
            graph, shared = state.graph.w, self._shared(engine, state.theta)
            theta = half | mix_and_move(engine, graph, shared, half)
        theta = self._add_prior(engine, state, theta, [], round)
        return state._replace(theta=theta), {"train_loss": loss, "graph": graph}

    def _cross_losses(
        self, engine: Engine, state: SCooLState, half: Tree, round: int
    ) -> tuple[SCooLState, Evidence]:
        """L_ij of the pairs still in the graph, as evidence for it. Candidates and drawn peers come
        and go: a pair that is not measured this time keeps its last loss."""
        pairs = self._pairs(engine, state, round)
        loss = engine.cross_loss(half, pairs, self.draw, round)
        before = state.cross_loss.lookup(loss)
        memory = torch.where(before.isfinite(), self.cross_ema, 0.0)
        mean = before.where(before.isfinite(), 0.0) * memory + (1 - memory) * loss.values
        loss = loss.on(mean, torch.nan)
        if self._candidates(engine, round) or self.peers == "drawn":
            loss = state.cross_loss.updated(loss)
        shared = self._learned(engine, half)
        samples = engine.sizes.double() if self.likelihood_reduction == "sum" else None
        seen = loss.take(loss.values.isfinite()).among(engine.active)
        total = seen.values if samples is None else seen.values * samples[seen.j]
        evidence = Evidence(
            log_lik=seen.on(-total - self._model_distance(engine, shared, seen)),
            seen=seen.on(torch.ones(seen.count, dtype=torch.bool), False),
            uniform=engine.uniform_log_lik * (1.0 if samples is None else samples),
            updates=Difference(shared, state.theta0),
            owned=engine.owned,
            gather=engine.gather,
            total=engine.total,
        )
        return state._replace(cross_loss=loss), evidence

    def _pairs(self, engine: Engine, state: SCooLState, round: int) -> Edges:
        """The pairs that are measured. One's own model on one's own data costs nothing."""
        active, count = engine.active, self._candidates(engine, round)
        own = Edges.loops(len(active), active)
        if not count:
            if state.neighbours.fill:
                return Edges.complete(len(active), active)
            met = state.neighbours.among(active)
            return met.updated(own) if self.keep_self else met
        return choose_candidates(
            Edges.of(state.graph.w),
            state.cross_loss.take(state.cross_loss.values.isfinite()),
            active,
            count,
            seed=engine.seed,
            round=round,
            is_last=round == self.sparsify_round,
        ).updated(own)

    def _model_distance(self, engine: Engine, half: Tree, pairs: Edges) -> Tensor | float:
        """Case 1.2 x 2.1: the Laplacian prior's part of the edge logit."""
        if not self.model_coupling:
            return 0.0
        return 0.25 * self.model_coupling * engine.squared_distances(half)[pairs.i, pairs.j]

    def _partners(self, engine: Engine, state: SCooLState, w: Edges, round: int) -> Edges:
        """The weights of those whose updates a client may take. Of the pairs that candidates have
        made known only the best, so that updates do not travel more than models."""
        if count := self._candidates(engine, round):
            return w.within(keep_best(w, count))
        return w if state.neighbours.fill else w.within(state.neighbours)

    def _weights(self, partners: Edges, round: int) -> Mixing:
        """Peers that were drawn by w count alike: w is in the draw already."""
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
        shared = self._shared(engine, state.theta)
        if self.cross_gradient == "exact":
            shared = self._learned(engine, state.theta)
            step = engine.cross_gradient(state.theta, weights.dense(), self.sgd, round)
            decay = self.sgd.weight_decay * weights.row_sums()[engine.owned.cpu()]
            return half | {
                n: t - self.sgd.rate(round) * (step[n] + per_client(decay, t) * t)
                for n, t in shared.items()
            }
        if self.aggregate == "models":
            return half | engine.mix(weights, self._shared(engine, half))
        mixed = mix_updates(engine, weights, shared, self._shared(engine, half))
        if self.prior.mixes == "models":
            models = engine.mix(state.graph.w, shared)
            learned = self._learned(engine, shared)
            mixed |= {n: models[n] + mixed[n] - t for n, t in learned.items()}
        return half | mixed

    def _neighbours(
        self,
        engine: Engine,
        state: SCooLState,
        graph: Any,
        w: Edges,
        evidence: Evidence,
        round: int,
    ) -> Edges:
        """N_i: everyone, until each client chooses its best peers once and for all, or from then on
        draws others for every round."""
        count = num_kept(engine.num_clients, self.fraction)
        count = min(count, num_candidates(engine.num_clients, self.candidates) or count)
        if self.peers == "drawn" and self._is_sparse(round + 1):
            key = derive(engine.seed, "peers", round)
            return draw_peers(w, count, key, self.keep_self)
        if round != self.sparsify_round:
            return state.neighbours
        rank = values_at(self._prior.ranking(graph, evidence), w)
        return keep_best(w.on(rank), count, self.keep_self)

    def _pulls(
        self, engine: Engine, state: SCooLState, graph: Any, evidence: Evidence, partners: Edges
    ) -> list[Tree]:
        """What the graph adds to the prior's gradient: P(Y | theta), and the Laplacian of 2.1."""
        pull = self._prior.pull(graph, evidence)
        pulls = [] if pull is None else [pull]
        if self.model_coupling:
            pulls.append(self._laplacian(engine, self._learned(engine, state.theta), partners))
        return pulls

    def _add_prior(
        self, engine: Engine, state: SCooLState, theta: Tree, pulls: list[Tree], round: int
    ) -> Tree:
        r"""$\theta_i \leftarrow \theta_i - \eta S G_i$ with the gradient of the prior at
        $\theta^t$: $\lambda \theta_i$ of the Gaussian and the pulls of the graph. A client in
        quarantine keeps the model it came with."""
        if self.model_precision:
            learned = {n: t for n, t in state.theta.items() if not is_statistic(n)}
            pulls = [{n: self.model_precision * t for n, t in learned.items()}, *pulls]
        steps = self.sgd.steps_per_round(engine.sizes) * engine.active
        length = self.sgd.rate(round) * steps[engine.owned.cpu()]
        for pull in pulls:
            theta = theta | {n: theta[n] - per_client(length, g) * g for n, g in pull.items()}
        active = engine.active
        return theta if bool(active.all()) else choose(engine, active, theta, state.theta)

    def _laplacian(self, engine: Engine, theta: Tree, partners: Edges) -> Tree:
        r"""$\lambda \sum_j \frac{w_{ij} + w_{ji}}{2} (\theta_i - \theta_j)$, case 1.2 x 2.1."""
        w = partners.take(~partners.is_loop)
        i, j, half = torch.cat([w.i, w.j]), torch.cat([w.j, w.i]), w.values / 2
        mutual = Edges.gathered(len(w), i, j, self.model_coupling * torch.cat([half, half]))
        degree = mutual.row_sums()[engine.owned.cpu()]
        neighbours = engine.mix(mutual, theta)
        return {n: per_client(degree, t) * t - neighbours[n] for n, t in theta.items()}
