r"""The updates of SCooL-SBM, each the exact maximiser of the bound in one block of variables.

Inside a sum over pairs the diagonal is special: $E_q[z_{ig} z_{ih}] = \delta_{gh}\Omega_{ig}$, so
the block term of a gated (i, i) is linear in $\Omega_i$. The paper sums over all (i, j) instead.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scool.graph.edges import Edges
from scool.priors.base import Measured, PairLists
from scool.priors.safe_math import (
    LogB,
    bernoulli_entropy,
    categorical_entropy,
    clip_probability,
    dirichlet_terms,
    expected_log_pi,
    log_B,
)

Array = np.ndarray[Any, np.dtype[np.float64]]


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


def pair_terms(own: Tensor, ratio: Tensor, w: Tensor, temperature: float) -> Tensor:
    """The likelihood and T times the entropy of q(Y); w and the ratio are 0 for other pairs."""
    return own + (w * ratio).sum() + temperature * bernoulli_entropy(w).sum()


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
