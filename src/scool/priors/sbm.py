r"""SCooL-SBM: clients fall into blocks, and blocks decide who learns from whom. The prior, and its
updates, each the exact maximiser of the bound in one block of variables.

Inside a sum over pairs the diagonal is special: $E_q[z_{ig} z_{ih}] = \delta_{gh}\Omega_{ig}$, so
the block term of a gated (i, i) is linear in $\Omega_i$. The paper sums over all (i, j) instead.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from scool.contracts import Evidence
from scool.errors import require
from scool.graph.edges import Edges
from scool.priors.base import (
    Measured,
    PairLists,
    categorical_entropy,
    list_pairs,
    pair_terms,
    sweep_key,
)
from scool.priors.blocks import (
    BlockOptions,
    LogB,
    clip_probability,
    dirichlet_terms,
    expected_log_pi,
    first_omega,
    log_B,
    update_alpha,
)
from scool.priors.sbm_released import released_w
from scool.randomness import generator
from scool.types import Info, Params

Array = np.ndarray[Any, np.dtype[np.float64]]
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

    Departures: the i = j terms (see above), the alpha gradient, sequential Omega sweeps, a last w
    update, and B learned only against a null model, without which B and w collapse to 0.
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

    def grow(self, state: SBMState, fresh: SBMState) -> SBMState:
        """Newcomers with even memberships, and gamma by the present alpha."""
        found, late = super().grow(state, fresh), slice(len(state.omega), None)
        found.gamma[late] = update_gamma(state.alpha, found.omega[late])
        return found

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


# ---------------------------------------------------------------------- updates


def block_form(edges: Edges, omega: Tensor, table: Tensor) -> Tensor:
    r"""(E,) $\sum_{gh}\Omega_{ig}\Omega_{jh} A_{gh}$; for i = j $\sum_g \Omega_{ig} A_{gg}$."""
    own = omega @ table.diagonal()
    return torch.where(edges.is_loop, own[edges.i], edges.forms(omega @ table, omega))


def update_w(pairs: Measured, omega: Tensor, B: Tensor, temperature: float) -> Tensor:
    r"""[SBM-w] $w_{ij} = \sigma\big([\,l_{ij} + \sum_{gh}\Omega_{ig}\Omega_{jh}
    (\log B_{gh} - \log(1-B_{gh}))]/T\big)$ of the measured pairs, (E,)."""
    logits = block_form(pairs.edges, omega, log_B(B).logit)
    return ((logits + pairs.ratio) / temperature).sigmoid()


def update_gamma(alpha: Tensor, omega: Tensor) -> Tensor:
    r"""[SBM-gamma] $\gamma_{ig} = \alpha_g + \Omega_{ig}$."""
    return alpha + omega


def update_omega(
    edges: Edges,
    w: Tensor,
    omega: Tensor,
    gamma: Tensor,
    B: Tensor,
    order: Tensor,
    lists: PairLists | None = None,
) -> Tensor:
    r"""[SBM-Omega] $\Omega_i = \mathrm{softmax}_g\big(\sum_{j \ne i}\sum_h \Omega_{jh}[
    w_{ij}\log B_{gh} + (1-w_{ij})\log(1-B_{gh}) + w_{ji}\log B_{hg} + (1-w_{ji})\log(1-B_{hg})]
    + e_{ig}\big)$, one client after another in `order`: all at once can lower the bound.

    Numpy, because the loop is sequential and its calls are tiny. With `lists` a sweep takes time
    in proportion to the measured pairs.
    """
    tables = log_B(B)
    bias: Array = (expected_log_pi(gamma) + _self_term(edges, w, tables)).numpy()
    stacked: Array = torch.cat([tables.on.T, tables.off.T, tables.on, tables.off]).numpy()
    sums = _sums_by_rows(edges, w) if lists is None else _sums_by_lists(lists, w)
    new: Array = omega.numpy().copy()
    for i in map(int, order):
        scores: Array = sums(i, new).reshape(-1) @ stacked + bias[i]
        scores -= scores.max()
        np.exp(scores, out=scores)
        new[i] = scores / scores.sum()
    return torch.as_tensor(new)


def _sums_by_rows(edges: Edges, w: Tensor) -> Callable[[int, Array], Array]:
    r"""(i, Omega) -> (4, M): $\sum_{j \ne i}\Omega_j$ times $w_{ij}$, $1-w_{ij}$, $w_{ji}$ and
    $1-w_{ji}$, over measured pairs."""
    other = (~edges.is_loop).double()
    off, on = edges.on(other).dense(), edges.on(w * other).dense()
    rows: Array = torch.stack([on, off - on, on.T, (off - on).T], dim=1).numpy()  # (K, 4, K)
    return lambda i, omega: rows[i] @ omega


def _sums_by_lists(lists: PairLists, w: Tensor) -> Callable[[int, Array], Array]:
    """The same from the pairs that a client is part of."""
    there = w.take(lists.there) * lists.is_there
    back = w.take(lists.back) * lists.is_back
    parts = [there, lists.is_there - there, back, lists.is_back - back]
    values: Array = torch.stack(parts, dim=1).numpy()  # (pairs, 4)
    peers: np.ndarray[Any, np.dtype[np.int64]] = lists.peer.numpy()
    ends = list(map(int, lists.ends))

    def sums(i: int, omega: Array) -> Array:
        mine = slice(ends[i], ends[i + 1])
        others: Array = omega.take(peers[mine], axis=0)
        return values[mine].T @ others

    return sums


def _self_term(edges: Edges, w: Tensor, tables: LogB) -> Tensor:
    """(K, M) what a gated w_ii says about the block of i."""
    gate, own = (edges.on(x).loop_values()[:, None] for x in (torch.ones_like(w), w))
    return gate * (own * tables.on.diagonal() + (1 - own) * tables.off.diagonal())


def update_B(edges: Edges, w: Tensor, omega: Tensor, B: Tensor, pseudo_count: float) -> Tensor:
    r"""[SBM-B] $B_{gh} = \sum_{i \ne j} w_{ij}\Omega_{ig}\Omega_{jh} / \sum_{i \ne j}
    \Omega_{ig}\Omega_{jh}$ over measured pairs; a gated diagonal adds $\sum_i w_{ii}\Omega_{ig}$
    and $\sum_i \Omega_{ig}$ to $B_{gg}$.

    `pseudo_count` is a - 1 of a Beta(a, a) prior. Blocks that nothing is known about keep their B.
    """

    def total(weight: Tensor) -> Tensor:
        off = edges.on(weight.masked_fill(edges.is_loop, 0.0))
        return omega.T @ off.sum_rows(omega) + torch.diag(edges.on(weight).loop_values() @ omega)

    on = total(w) + pseudo_count
    count = total(torch.ones_like(w)) + 2 * pseudo_count
    return torch.where(count > 1e-12, clip_probability(on / count.clamp(min=1e-12)), B)


def beta_terms(B: Tensor, pseudo_count: float) -> Tensor:
    """log density of the Beta prior that the pseudo-counts stand for, up to a constant."""
    tables = log_B(B)
    return pseudo_count * (tables.on + tables.off).sum()


def sbm_bound(
    pairs: Measured,
    w: Tensor,
    omega: Tensor,
    gamma: Tensor,
    alpha: Tensor,
    B: Tensor,
    temperature: float,
) -> Tensor:
    r"""[SBM-elbo] $F$: likelihood, block term, indicators, Dirichlet terms and entropies.

    The Gaussian prior on theta is left out; it does not depend on the graph.
    """
    tables, edges = log_B(B), pairs.edges
    block = w * block_form(edges, omega, tables.on) + (1 - w) * block_form(edges, omega, tables.off)
    indicators = (omega * expected_log_pi(gamma)).sum() + categorical_entropy(omega).sum()
    return (
        pair_terms(pairs.own, pairs.ratio, w, temperature)
        + block.sum()
        + indicators
        + dirichlet_terms(alpha, gamma)
    )
