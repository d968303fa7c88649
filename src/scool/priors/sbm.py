"""SCooL-SBM: clients fall into blocks, and blocks decide who learns from whom."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from scool.contracts import Evidence, SelfMode
from scool.errors import check_fields, require
from scool.graph.edges import Edges
from scool.priors.base import (
    GraphPrior,
    Measured,
    Null,
    check_null,
    list_pairs,
    read_edges,
    resolve_null,
    sweep_key,
)
from scool.priors.safe_math import expected_log_pi, update_alpha
from scool.priors.sbm_released import released_w
from scool.priors.sbm_updates import (
    beta_terms,
    sbm_bound,
    update_B,
    update_gamma,
    update_omega,
    update_w,
)
from scool.priors.seeding import first_omega
from scool.randomness import generator
from scool.types import Info, Params

GROWTH = 1.25  # times as many measured pairs as at the last fresh start call for another


class SBMState(NamedTuple):
    """q(Y, z, pi) with alpha and B; tensors only, so that a checkpoint holds all of it."""

    w: Edges  # q(Y_ij = 1); 0 for pairs that were not measured
    omega: Tensor  # (K, M) q(z_i)
    gamma: Tensor  # (K, M) q(pi_i)
    alpha: Tensor  # (M,)
    B: Tensor  # (M, M)
    started: Tensor  # bool scalar: omega holds memberships of an earlier round
    known: Tensor  # int64 scalar: pairs that were measured when memberships last began afresh


@final
@dataclass(frozen=True)
class SBM(GraphPrior[SBMState]):
    r"""Stochastic block model prior, cases 1.2 x 2.3 of the paper.

    $\pi_i \sim \mathrm{Dir}(\alpha)$, $z_i \sim \mathrm{Cat}(\pi_i)$,
    $Y_{ij} \sim \mathrm{Bern}(z_i^\top B z_j)$; mean field
    $\prod_i \mathrm{Dir}(\pi_i|\gamma_i)\,\mathrm{Cat}(z_i|\Omega_i)
    \prod_{ij} \mathrm{Bern}(Y_{ij}|w_{ij})$.

    Departures: the i = j terms (see `sbm_updates`), the alpha gradient, sequential Omega sweeps, a
    last w update, and B learned only against a null model, without which B and w collapse to 0.
    While all pairs are measured, and where many more have become known, the memberships of the
    round before compete with fresh ones, because those of the first models, or of the first few
    pairs, are often wrong and hard to leave.
    Reference: Li, Zhou, Tian, Tao, ICML 2023.
    """

    num_blocks: int = 5
    """M. Give at least the number of groups you expect."""
    self_mode: SelfMode = "gated"
    """`gated`: own data weighted by w_ii; `always`, `exclude`: own data counts fully, no w_ii."""
    temperature: float = 1.0
    """T; above 1 softens the graph, below 1 hardens it."""
    temperature_mode: Literal["entropy", "likelihood"] = "entropy"
    """`entropy` divides prior and likelihood by T, `likelihood` the likelihood alone."""
    null_loglik: Null = "uniform"
    """Log-likelihood that explains D_j without an edge; `auto`: 0, with a learned B `uniform`."""
    learn_B: bool = False
    """Estimate B in the M-step."""
    learn_alpha: bool = False
    """Estimate alpha in the M-step; the bound is nearly flat in it."""
    alpha: float = 1.0
    """Dirichlet parameter, (the start of) every component."""
    b_in: float = 0.8
    """(The start of) the probability of an edge inside a block."""
    b_out: float = 0.2
    """(The start of) the probability of an edge between blocks."""
    pseudo_count: float = 0.5
    """Added to the edges and non-edges B is estimated from, a Beta prior."""
    sweeps: int = 10
    """Most sweeps over the clients in one E-step."""
    tolerance: float = 1e-6
    """Sweeps end when no w changes by more."""
    warm_start: bool = True
    """Go on from the memberships of the round before."""
    restarts: int = 1
    """Cold starts tried; the best bound is kept."""
    init_mode: Literal["seeded", "random"] = "seeded"
    """First memberships: from farthest clients, or random."""
    compat: Literal["derived", "released"] = "derived"
    """`released` repeats the authors' program, whose block prior is numerically switched off."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.num_blocks >= 1, "num_blocks", self.num_blocks, "give at least one block")
        require(self.temperature > 0, "temperature", self.temperature, "give a positive number")
        require(self.alpha > 0, "alpha", self.alpha, "give a positive number")
        require(0 < self.b_in < 1, "b_in", self.b_in, "give a probability inside (0, 1)")
        require(0 < self.b_out < 1, "b_out", self.b_out, "give a probability inside (0, 1)")
        require(self.pseudo_count >= 0, "pseudo_count", self.pseudo_count, "give 0 or more")
        require(self.sweeps >= 1, "sweeps", self.sweeps, "give at least one sweep")
        require(self.restarts >= 1, "restarts", self.restarts, "give at least one start")
        check_null(self.null_loglik)
        if self.compat == "released":
            remedy = "the released program gates the own data; leave self_mode at 'gated'"
            require(self.self_mode == "gated", "self_mode", self.self_mode, remedy)
            require(not self.learn_B, "learn_B", self.learn_B, "the released program fixes B")

    def init(self, num_clients: int, theta0: Params, seed: int) -> SBMState:
        """No edges, even memberships, B with b_in on and b_out off the diagonal."""
        del theta0, seed
        K, M = num_clients, self.num_blocks
        alpha = torch.full((M,), self.alpha, dtype=torch.float64)
        omega = torch.full((K, M), 1 / M, dtype=torch.float64)
        B = torch.full((M, M), self.b_out, dtype=torch.float64).fill_diagonal_(self.b_in)
        w = Edges.none(K, 0.0)
        gamma = update_gamma(alpha, omega)
        return SBMState(w, omega, gamma, alpha, B, torch.tensor(False), torch.tensor(0))

    def e_step(self, state: SBMState, evidence: Evidence) -> SBMState:
        """[E] Sweeps of w, Omega and gamma, from the last memberships or from fresh starts."""
        rng = generator(sweep_key(evidence.seed, "sbm", evidence.round), "e-step")
        if self.compat == "released":
            return released_w(state, evidence, self.temperature, rng)
        pairs = self._pairs(evidence)
        known = torch.tensor(pairs.edges.count)
        has_grown = bool(known > GROWTH * state.known)
        results: list[SBMState] = []
        if self.warm_start and bool(state.started):
            results.append(self._sweep(state, pairs, rng))
        if not results or has_grown or pairs.is_dense:
            starts = self._starts(state, evidence, rng)
            results += [self._sweep(start, pairs, rng) for start in starts]
            results = [result._replace(known=known) for result in results]
        best = results[0]
        if len(results) > 1:
            best = max(results, key=lambda result: float(self._bound(result, pairs)))
        return best._replace(started=torch.tensor(True))

    def _starts(
        self, state: SBMState, evidence: Evidence, rng: torch.Generator
    ) -> Iterator[SBMState]:
        """Fresh memberships, as often as asked for."""
        is_seeded = self.init_mode == "seeded"
        for attempt in range(self.restarts):
            omega = first_omega(evidence.pairs, self.num_blocks, is_seeded, attempt, rng)
            yield state._replace(omega=omega, gamma=update_gamma(state.alpha, omega))

    def m_step(self, state: SBMState, evidence: Evidence) -> SBMState:
        """[M] B and alpha, each if asked for."""
        if self.learn_B:
            edges = self._pairs(evidence).edges
            w = state.w.lookup(edges)
            B = update_B(edges, w, state.omega, state.B, self.pseudo_count)
            state = state._replace(B=B)
        if self.learn_alpha:
            alpha = update_alpha(state.alpha, expected_log_pi(state.gamma))
            state = state._replace(alpha=alpha)
        return state

    def elbo(self, state: SBMState, evidence: Evidence) -> Tensor:
        """[SBM-elbo], with the log density of the Beta prior where B is learned."""
        return self._bound(state, self._pairs(evidence))

    def describe(self, state: SBMState) -> Info:
        """`blocks`: (K,) the block that each client belongs to most."""
        return {"blocks": state.omega.argmax(dim=1)}

    def _pairs(self, evidence: Evidence) -> Measured:
        null = resolve_null(self.null_loglik, evidence, self.learn_B)
        scale = self.temperature if self.temperature_mode == "likelihood" else 1.0
        return read_edges(evidence, self.self_mode, null, scale)

    @property
    def _entropy_temperature(self) -> float:
        return self.temperature if self.temperature_mode == "entropy" else 1.0

    def _bound(self, s: SBMState, pairs: Measured) -> Tensor:
        T, w = self._entropy_temperature, s.w.lookup(pairs.edges)
        bound = sbm_bound(pairs, w, s.omega, s.gamma, s.alpha, s.B, T)
        return bound + beta_terms(s.B, self.pseudo_count) if self.learn_B else bound

    def _sweep(self, s: SBMState, pairs: Measured, rng: torch.Generator) -> SBMState:
        """Repeat {w; Omega_i and gamma_i in random order}; end with w, which the method uses.

        gamma_i enters the update of Omega_i alone, so all gamma may wait for the end of a sweep.
        """
        T, edges, omega, gamma = self._entropy_temperature, pairs.edges, s.omega, s.gamma
        lists = list_pairs(edges)
        w = pairs.ratio
        for sweep in range(self.sweeps):
            last, w = w, update_w(pairs, omega, s.B, T)
            if sweep > 0 and bool(((w - last).abs() < self.tolerance).all()):
                break
            order = torch.randperm(len(omega), generator=rng)
            omega = update_omega(edges, w, omega, gamma, s.B, order, lists)
            gamma = update_gamma(s.alpha, omega)
        w = edges.on(update_w(pairs, omega, s.B, T))
        return s._replace(w=w, omega=omega, gamma=gamma)
