r"""The updates of SCooL-MMSBM. Pairs meet only through gamma, so each line may run in parallel.

For each measured pair (i, j), i != j, `phi_send` is q of the block that client i takes towards
j, `phi_recv` q of the block that client j takes towards i; both (E, M), in the order of the edges.
"""

import torch
from torch import Tensor

from scool.graph.edges import Edges
from scool.priors.base import Measured, categorical_entropy, pair_terms
from scool.priors.blocks import clip_probability, dirichlet_terms, expected_log_pi, log_B


def pair_form(phi_send: Tensor, phi_recv: Tensor, table: Tensor) -> Tensor:
    r"""(E,) $\sum_{gh} \phi^{\to}_{ijg}\,\phi^{\gets}_{ijh}\,A_{gh}$."""
    return ((phi_send @ table) * phi_recv).sum(-1)


def update_w(
    pairs: Measured, phi_send: Tensor, phi_recv: Tensor, B: Tensor, temperature: float
) -> Tensor:
    r"""[MMSBM-w] $w_{ij} = \sigma\big([\,l_{ij} + \sum_{gh}\phi^{\to}_{ijg}\phi^{\gets}_{ijh}
    (\log B_{gh} - \log(1-B_{gh}))]/T\big)$, (E,)."""
    logits = pairs.ratio + pair_form(phi_send, phi_recv, log_B(B).logit)
    return (logits / temperature).sigmoid()


def update_phi_send(
    pairs: Measured, w: Tensor, phi_recv: Tensor, gamma: Tensor, B: Tensor
) -> Tensor:
    r"""[MMSBM-phi] $\phi^{\to}_{ij} = \mathrm{softmax}_g\big(\sum_h \phi^{\gets}_{ijh}
    [w_{ij}\log B_{gh} + (1-w_{ij})\log(1-B_{gh})] + e_{ig}\big)$."""
    return _memberships(w, phi_recv, B.T, expected_log_pi(gamma)[pairs.edges.i])


def update_phi_recv(
    pairs: Measured, w: Tensor, phi_send: Tensor, gamma: Tensor, B: Tensor
) -> Tensor:
    r"""[MMSBM-phi] $\phi^{\gets}_{ij} = \mathrm{softmax}_h\big(\sum_g \phi^{\to}_{ijg}
    [w_{ij}\log B_{gh} + (1-w_{ij})\log(1-B_{gh})] + e_{jh}\big)$."""
    return _memberships(w, phi_send, B, expected_log_pi(gamma)[pairs.edges.j])


def _memberships(w: Tensor, other: Tensor, B: Tensor, e: Tensor) -> Tensor:
    tables = log_B(B)
    off, slope = (other @ torch.cat([tables.off, tables.logit], 1)).chunk(2, -1)
    return (torch.addcmul(off, w[:, None], slope) + e).softmax(-1)


def update_gamma(edges: Edges, alpha: Tensor, phi_send: Tensor, phi_recv: Tensor) -> Tensor:
    r"""[MMSBM-gamma] $\gamma_{ig} = \alpha_g + \sum_{j\ne i} \phi^{\to}_{ijg}
    + \sum_{j \ne i} \phi^{\gets}_{jig}$: i sends along its row, receives along its column."""
    return alpha + edges.row_sums(phi_send) + edges.column_sums(phi_recv)


def update_B(
    w: Tensor, phi_send: Tensor, phi_recv: Tensor, B: Tensor, pseudo_count: float
) -> Tensor:
    r"""[MMSBM-B] $B_{gh} = \sum_{ij} w_{ij}\phi^{\to}_{ijg}\phi^{\gets}_{ijh} / \sum_{ij}
    \phi^{\to}_{ijg}\phi^{\gets}_{ijh}$ over measured pairs, with the pseudo-counts of SBM."""
    on = (w[:, None] * phi_send).T @ phi_recv + pseudo_count
    count = phi_send.T @ phi_recv + 2 * pseudo_count
    return torch.where(count > 1e-12, clip_probability(on / count.clamp(min=1e-12)), B)


def mmsbm_bound(
    pairs: Measured,
    w: Tensor,
    phi_send: Tensor,
    phi_recv: Tensor,
    gamma: Tensor,
    alpha: Tensor,
    B: Tensor,
    temperature: float,
) -> Tensor:
    r"""[MMSBM-elbo] As [SBM-elbo] with a pair of indicators for every pair of clients."""
    tables, e, edges = log_B(B), expected_log_pi(gamma), pairs.edges
    block = w * pair_form(phi_send, phi_recv, tables.on)
    block = block + (1 - w) * pair_form(phi_send, phi_recv, tables.off)
    indicators = (edges.row_sums(phi_send) * e).sum() + (edges.column_sums(phi_recv) * e).sum()
    entropy = categorical_entropy(phi_send).sum() + categorical_entropy(phi_recv).sum()
    return (
        pair_terms(pairs.own, pairs.ratio, w, temperature)
        + block.sum()
        + indicators
        + entropy
        + dirichlet_terms(alpha, gamma)
    )
