"""SCooL-SBM: clients fall into blocks, and blocks decide who learns from whom."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from scool.contracts import Evidence
from scool.errors import require
from scool.graph.edges import Edges
from scool.priors.base import (
    Measured,
    list_pairs,
    sweep_key,
)
from scool.priors.blocks import BlockOptions, first_omega
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
class SBM(BlockOptions[SBMState]):
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

    restarts: int = 1
    """Cold starts tried; the best bound is kept."""
    init_mode: Literal["seeded", "random"] = "seeded"
    """First memberships: from farthest clients, or random."""
    compat: Literal["derived", "released"] = "derived"
    """`released` repeats the authors' program, whose block prior is numerically switched off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.restarts >= 1, "restarts", self.restarts, "give at least one start")
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
        w = Edges.none(K, 0.0)
        gamma = update_gamma(alpha, omega)
        start = (torch.tensor(False), torch.tensor(0))
        return SBMState(w, omega, gamma, alpha, self.first_B(), *start)

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
