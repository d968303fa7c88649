"""SCooL-attention: clients whose models moved alike learn from each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from scool.contracts import Evidence, SelfMode
from scool.errors import check_fields, require
from scool.graph.edges import Edges
from scool.priors import adam
from scool.priors.attention_released import per_client_gradient, released_scores, target_rows
from scool.priors.attention_updates import (
    attention_bound,
    detached,
    embedding_gradient,
    held_rows,
    in_blocks,
    read_scores,
    update_log_p,
    update_w,
    updates_of,
)
from scool.priors.base import GraphPrior, Measured, Null, check_null, resolve_null
from scool.priors.encoder import LayerwiseRowEncoder, update_norm
from scool.types import Params, Tree


class AttentionState(NamedTuple):
    """q(Y) and the encoder; tensors and trees of tensors only."""

    w: Edges  # rows sum to one; a row with nothing measured is empty
    phi: Params  # the encoder
    first: Params  # Adam's moments of phi; with a leading client axis in "released"
    second: Params
    steps: Tensor  # int64 scalar: steps taken on phi
    u: Tensor  # (K, D) embeddings of all clients as of the last E-step


@final
@dataclass(frozen=True)
class Attention(GraphPrior[AttentionState]):
    r"""Attention prior, cases 1.2 x 2.2 of the paper.

    $u_i = \mathrm{Enc}(\theta_i^{t+1/2} - \theta^0; \phi)$, $p_{i\cdot} = \mathrm{softmax}_j
    \langle u_i, u_j\rangle$, $Y_{i\cdot} \sim \mathrm{Cat}(p_{i\cdot})$; the E-step is exact.

    Departures: a client's own data are either gated (in the softmax) or always counts (its logit is
        then 0), never both; the encoder step maximises $\sum_{ij} w_{ij}\log p_{ij}$ without the
        paper's extra sum. `compat="released"` repeats the authors' program: likelihood targets, one
        encoder copy and Adam state a client with averaging, and the wrong sign once rows are
        sparse; the recipe adds prior_optimizer "adamw", prior_lr 0.2, prior_betas (0.9, 0.99),
        encoder_out 20.
    Reference: Li, Zhou, Tian, Tao, ICML 2023.
    """

    reports: ClassVar[bool] = True

    self_mode: SelfMode = "gated"
    """`gated`: own data weighted by w_ii; `always`: it counts fully; `exclude`: and no w_ii."""
    temperature: float = 1.0
    """T, divides the log-likelihood; the prior stays as it is."""
    null_loglik: Null = 0.0
    """Subtracted from the log-likelihood of the columns that are gated; `auto` is 0."""
    encoder_hidden: int = 10
    """Width of the encoder."""
    encoder_out: int = 5
    """Size of a row's embedding; also the largest possible attention score."""
    prior_lr: float = 0.1
    """Step size of the encoder."""
    prior_weight_decay: float = 0.01
    """Weight decay of the encoder."""
    prior_betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates."""
    prior_optimizer: Literal["adam", "adamw"] = "adam"
    """`adam` adds the decay to the gradient, `adamw` applies it separately."""
    encoder_target: Literal["posterior", "likelihood"] = "posterior"
    """What p is fitted to: w, or the likelihood softmax (always so in `released`)."""
    prior_grad_to_theta: bool = False
    """Let the prior pull the models as well, [ATT-theta]."""
    compat: Literal["derived", "released"] = "derived"
    """`released` repeats the authors' program."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.temperature > 0, "temperature", self.temperature, "give a positive number")
        require(self.encoder_hidden >= 1, "encoder_hidden", self.encoder_hidden, "give 1 or more")
        require(self.encoder_out >= 1, "encoder_out", self.encoder_out, "give 1 or more")
        require(self.prior_lr >= 0, "prior_lr", self.prior_lr, "give 0 or more")
        decay = self.prior_weight_decay
        require(decay >= 0, "prior_weight_decay", decay, "give 0 or more")
        rates = all(0 <= beta < 1 for beta in self.prior_betas)
        require(rates, "prior_betas", self.prior_betas, "give two numbers in [0, 1)")
        check_null(self.null_loglik)
        if self.compat == "released":
            remedy = "the released program gates the own data; leave self_mode at 'gated'"
            require(self.self_mode == "gated", "self_mode", self.self_mode, remedy)
            remedy = "the released program never does; leave it off"
            pulls = self.prior_grad_to_theta
            require(not pulls, "prior_grad_to_theta", pulls, remedy)

    @property
    def encoder(self) -> LayerwiseRowEncoder:
        """The map from updates to embeddings."""
        return LayerwiseRowEncoder(self.encoder_hidden, self.encoder_out)

    def init(self, num_clients: int, theta0: Params, seed: int) -> AttentionState:
        """No edges and a fresh encoder on the device of the model."""
        phi = self.encoder.init(theta0, seed)
        moments = adam.start(phi, num_clients if self.compat == "released" else None)
        at_rest = {name: torch.zeros_like(x)[None] for name, x in theta0.items()}
        u = torch.zeros_like(self.encoder.embed(phi, at_rest)).expand(num_clients, -1).clone()
        return AttentionState(Edges.none(num_clients, 0.0), phi, *moments, u)

    def report(self, state: AttentionState, updates: Mapping[str, Tensor]) -> Tensor:
        """(n, D) the embeddings of the updates; the others see nothing else of them."""
        with torch.no_grad():
            parts = [self.encoder.embed(state.phi, x, self._sign) for _, x in in_blocks(updates)]
        return torch.cat(parts)

    def e_step(self, state: AttentionState, evidence: Evidence) -> AttentionState:
        """[E] The exact posterior of every row."""
        u = evidence.reports
        if u is None:
            u = self.report(state, updates_of(evidence))
        scores = self._scores(evidence)
        log_p = update_log_p(u, scores.edges)
        if self.compat == "released":
            scores = released_scores(scores, self.temperature)
        return state._replace(w=scores.edges.on(update_w(scores, log_p)), u=u)

    def gradient(self, state: AttentionState, evidence: Evidence) -> Params:
        r"""[ATT-phi] $\sum_i J_i^\top \sum_l [(w-p)+(w-p)^\top]_{il}\, u_l$ over the clients held
        here, w held constant."""
        scores, updates = self._scores(evidence), updates_of(evidence)
        if self.compat == "released":
            phi, u = self._embed_with_grad(state, detached(updates))
            rows, log_p = held_rows(evidence), update_log_p(state.u, scores.edges)
            target = target_rows(scores)
            return per_client_gradient(phi, u, state.u, rows, scores.edges, target, log_p)
        target = state.w.lookup(scores.edges)
        if self.encoder_target == "likelihood":
            target = target_rows(scores)
        c = self._upstream(target, state.u, evidence)
        gradient = {name: torch.zeros_like(x) for name, x in state.phi.items()}
        for rows, some in in_blocks(updates):
            phi, u = self._embed_with_grad(state, some)
            found = torch.autograd.grad(u, list(phi.values()), c[rows])
            for total, g in zip(gradient.values(), found, strict=True):
                total += g
        return gradient

    def m_step(self, state: AttentionState, evidence: Evidence) -> AttentionState:
        r"""[ATT-phi] One Adam step up $\sum_{ij} w_{ij}\log p_{ij}$ along the gradient over all
        clients."""
        gradient = evidence.gradient
        if gradient is None:
            gradient = self.gradient(state, evidence)
        phi, moments = adam.descend(
            state.phi,
            {name: -g for name, g in gradient.items()},
            adam.Moments(state.first, state.second, state.steps),
            self.prior_lr,
            self.prior_betas,
            self.prior_weight_decay,
            decoupled=self.prior_optimizer == "adamw",
        )
        return AttentionState(state.w, phi, *moments, state.u)

    def elbo(self, state: AttentionState, evidence: Evidence) -> Tensor:
        """[ATT-elbo] with the embeddings of the last E-step."""
        scores = self._scores(evidence)
        w, log_p = state.w.lookup(scores.edges), update_log_p(state.u, scores.edges)
        return attention_bound(scores, w, log_p)

    def log_p(self, state: AttentionState, evidence: Evidence) -> Edges:
        """[ATT-p] of the last E-step: the graph that the prior alone would have; -inf elsewhere."""
        edges = self._scores(evidence).edges
        return edges.on(update_log_p(state.u, edges), -torch.inf)

    def ranking(self, state: AttentionState, evidence: Evidence) -> Edges:
        """w; in "released" mode the likelihood softmax."""
        if self.compat == "derived":
            return state.w
        scores = self._scores(evidence)
        return scores.edges.on(target_rows(scores))

    def pull(self, state: AttentionState, evidence: Evidence) -> Tree | None:
        r"""[ATT-theta] $-J_i^\top \sum_l [(w_{il}-p_{il}) + (w_{li}-p_{li})]\,u_l$ for the clients
        held here; a model that has not moved is not pulled."""
        if not self.prior_grad_to_theta:
            return None
        updates = {n: x.requires_grad_() for n, x in detached(updates_of(evidence)).items()}
        with torch.enable_grad():
            u = self.encoder.embed(state.phi, updates)
        c = self._upstream(state.w.lookup(self._scores(evidence).edges), state.u, evidence)
        moved = (update_norm(updates) > 1e-8).to(u)
        gradient = torch.autograd.grad(u, list(updates.values()), c * moved[:, None])
        return {name: -g for name, g in zip(updates, gradient, strict=True)}

    def _embed_with_grad(self, state: AttentionState, updates: Tree) -> tuple[Params, Tensor]:
        phi = {name: x.detach().requires_grad_() for name, x in state.phi.items()}
        with torch.enable_grad():
            return phi, self.encoder.embed(phi, updates, self._sign)

    def _upstream(self, target: Tensor, u: Tensor, evidence: Evidence) -> Tensor:
        """(n, D) what the embeddings held here receive from the bound; u (K, D) has those of all
        clients."""
        edges = self._scores(evidence).edges
        c = embedding_gradient(edges, target, update_log_p(u, edges), u)
        return c[held_rows(evidence).to(u.device)]

    @property
    def _sign(self) -> float:
        """The released encoder looks at init minus current."""
        return -1.0 if self.compat == "released" else 1.0

    def _scores(self, evidence: Evidence) -> Measured:
        null = resolve_null(self.null_loglik, evidence, learned=False)
        return read_scores(evidence, self.self_mode, null, self.temperature)
