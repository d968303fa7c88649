r"""The updates of SCooL-MMSBM. Pairs meet only through gamma, so each line may run in parallel.

`phi_send[i, j]` is q of the block client i takes towards j, `phi_recv[i, j]` of the one client j
takes towards i; both (K, K, M), zero for pairs that are not measured.
"""

import torch
from torch import Tensor

from scool.priors.dirichlet import dirichlet_terms, expected_log_pi
from scool.priors.pairs import Pairs
from scool.priors.safe_math import categorical_entropy, clip_probability, log_B
from scool.priors.sbm_updates import pair_terms


def pair_form(phi_send: Tensor, phi_recv: Tensor, table: Tensor) -> Tensor:
    r"""(K, K) $\sum_{gh} \phi^{\to}_{ijg}\,\phi^{\gets}_{ijh}\,A_{gh}$."""
    return ((phi_send @ table) * phi_recv).sum(-1)


def update_w(
    pairs: Pairs, phi_send: Tensor, phi_recv: Tensor, B: Tensor, temperature: float
) -> Tensor:
    r"""[MMSBM-w] $w_{ij} = \sigma\big([\,l_{ij} + \sum_{gh}\phi^{\to}_{ijg}\phi^{\gets}_{ijh}
    (\log B_{gh} - \log(1-B_{gh}))]/T\big)$."""
    logits = pairs.ratio + pair_form(phi_send, phi_recv, log_B(B).logit)
    return torch.where(pairs.mask, torch.sigmoid(logits / temperature), 0.0)


def update_phi_send(pairs: Pairs, w: Tensor, phi_recv: Tensor, gamma: Tensor, B: Tensor) -> Tensor:
    r"""[MMSBM-phi] $\phi^{\to}_{ij} = \mathrm{softmax}_g\big(\sum_h \phi^{\gets}_{ijh}
    [w_{ij}\log B_{gh} + (1-w_{ij})\log(1-B_{gh})] + e_{ig}\big)$."""
    e = expected_log_pi(gamma)[:, None, :]
    return _memberships(pairs, w, phi_recv, B.T, e)


def update_phi_recv(pairs: Pairs, w: Tensor, phi_send: Tensor, gamma: Tensor, B: Tensor) -> Tensor:
    r"""[MMSBM-phi] $\phi^{\gets}_{ij} = \mathrm{softmax}_h\big(\sum_g \phi^{\to}_{ijg}
    [w_{ij}\log B_{gh} + (1-w_{ij})\log(1-B_{gh})] + e_{jh}\big)$."""
    e = expected_log_pi(gamma)[None, :, :]
    return _memberships(pairs, w, phi_send, B, e)


def _memberships(pairs: Pairs, w: Tensor, other: Tensor, B: Tensor, e: Tensor) -> Tensor:
    tables = log_B(B)
    off, slope = (other @ torch.cat([tables.off, tables.logit], 1)).chunk(2, -1)
    scores = torch.addcmul(off, w[..., None], slope) + e
    return scores.softmax(-1) * pairs.mask[..., None]


def update_gamma(alpha: Tensor, phi_send: Tensor, phi_recv: Tensor) -> Tensor:
    r"""[MMSBM-gamma] $\gamma_{ig} = \alpha_g + \sum_{j\ne i} \phi^{\to}_{ijg}
    + \sum_{j \ne i} \phi^{\gets}_{jig}$: i sends along its row, receives along its column."""
    return alpha + phi_send.sum(1) + phi_recv.sum(0)


def update_B(
    w: Tensor, phi_send: Tensor, phi_recv: Tensor, B: Tensor, pseudo_count: float
) -> Tensor:
    r"""[MMSBM-B] $B_{gh} = \sum_{ij} w_{ij}\phi^{\to}_{ijg}\phi^{\gets}_{ijh} / \sum_{ij}
    \phi^{\to}_{ijg}\phi^{\gets}_{ijh}$ over measured pairs, with the pseudo-counts of SBM."""
    send, recv = phi_send.flatten(0, 1), phi_recv.flatten(0, 1)
    edges = (w.reshape(-1, 1) * send).T @ recv + pseudo_count
    count = send.T @ recv + 2 * pseudo_count
    return torch.where(count > 1e-12, clip_probability(edges / count.clamp(min=1e-12)), B)


def mmsbm_bound(
    pairs: Pairs,
    w: Tensor,
    phi_send: Tensor,
    phi_recv: Tensor,
    gamma: Tensor,
    alpha: Tensor,
    B: Tensor,
    temperature: float,
) -> Tensor:
    r"""[MMSBM-elbo] As [SBM-elbo] with a pair of indicators for every pair of clients."""
    tables, e = log_B(B), expected_log_pi(gamma)
    block = w * pair_form(phi_send, phi_recv, tables.on)
    block = block + (1 - w) * pair_form(phi_send, phi_recv, tables.off)
    # phi is zero outside the mask, so these sums run over measured pairs by themselves
    indicators = (phi_send.sum(1) * e).sum() + (phi_recv.sum(0) * e).sum()
    entropy = categorical_entropy(phi_send).sum() + categorical_entropy(phi_recv).sum()
    return (
        pair_terms(pairs.own, pairs.ratio, torch.where(pairs.mask, w, 0.0), temperature)
        + block.sum()
        + indicators
        + entropy
        + dirichlet_terms(alpha, gamma)
    )
