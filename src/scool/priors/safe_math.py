"""What priors compute with: logarithms that stay finite, entropies, masked softmax, and the terms
and updates around pi_i ~ Dirichlet(alpha), which SBM and MMSBM share."""

from typing import NamedTuple

import torch
from torch import Tensor

NEWTON_STEPS = 20
ALPHA_RANGE = (1e-4, 1e4)  # one draw per client says little about alpha: EM may drift without end
SMALLEST = 1e-6  # B lives in [1e-6, 1 - 1e-6]; at 0 or 1 the bound would be infinite


class LogB(NamedTuple):
    """The two tables of the block term."""

    on: Tensor  # (M, M) log B
    off: Tensor  # (M, M) log(1 - B)

    @property
    def logit(self) -> Tensor:
        """(M, M) log B - log(1 - B)."""
        return self.on - self.off


def clip_probability(B: Tensor) -> Tensor:
    """Keep probabilities away from 0 and 1."""
    return B.clamp(SMALLEST, 1 - SMALLEST)


def log_B(B: Tensor) -> LogB:
    """log B and log(1 - B) of clipped probabilities.

    >>> bool(torch.isfinite(log_B(torch.tensor([[0.0, 1.0]])).logit).all())
    True
    """
    clipped = clip_probability(B)
    return LogB(clipped.log(), torch.log1p(-clipped))


def bernoulli_entropy(w: Tensor) -> Tensor:
    """h(w) = -w log w - (1 - w) log(1 - w), with 0 log 0 = 0.

    >>> bernoulli_entropy(torch.tensor([0.0, 1.0])).tolist()
    [-0.0, -0.0]
    """
    return -torch.xlogy(w, w) - torch.xlogy(1 - w, 1 - w)


def categorical_entropy(q: Tensor) -> Tensor:
    """-sum_g q_g log q_g over the last axis."""
    return -torch.xlogy(q, q).sum(-1)


def masked_log_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """Log softmax of each row over the columns in `mask`, -inf elsewhere; an empty row is all -inf.

    >>> masked_log_softmax(torch.zeros(1, 3), torch.tensor([[True, True, False]])).exp().tolist()
    [[0.5, 0.5, 0.0]]
    """
    # the second filling turns the NaN of an empty row into -inf
    return x.masked_fill(~mask, -torch.inf).log_softmax(-1).masked_fill(~mask, -torch.inf)


def expected_log_pi(gamma: Tensor) -> Tensor:
    r"""$e_{ig} = \psi(\gamma_{ig}) - \psi(\sum_k \gamma_{ik})$, (K, M)."""
    return torch.digamma(gamma) - torch.digamma(gamma.sum(-1, keepdim=True))


def _log_normaliser(gamma: Tensor) -> Tensor:
    """lnGamma(sum_g gamma_g) - sum_g lnGamma(gamma_g)."""
    return torch.lgamma(gamma.sum(-1)) - torch.lgamma(gamma).sum(-1)


def alpha_terms(alpha: Tensor, e: Tensor) -> Tensor:
    r"""$\sum_{ig} (\alpha_g-1) e_{ig} + K \ln\Gamma(\sum\alpha) - K \sum_g \ln\Gamma(\alpha_g)$."""
    return ((alpha - 1) * e).sum() + len(e) * _log_normaliser(alpha)


def dirichlet_terms(alpha: Tensor, gamma: Tensor) -> Tensor:
    """E_q[log P(pi | alpha)] plus the entropy of q(pi)."""
    e = expected_log_pi(gamma)
    return alpha_terms(alpha, e) - ((gamma - 1) * e).sum() - _log_normaliser(gamma).sum()


def alpha_gradient(alpha: Tensor, e: Tensor) -> Tensor:
    r"""[SBM-alpha] $\partial F/\partial\alpha_g = \sum_i e_{ig} - K\psi(\alpha_g)
    + K\psi(\sum_k\alpha_k)$; the paper's extra sum over g is an error."""
    return e.sum(0) + len(e) * (torch.digamma(alpha.sum()) - torch.digamma(alpha))


def update_alpha(alpha: Tensor, e: Tensor) -> Tensor:
    """[SBM-alpha] Newton steps (Minka's O(M) form), halved until the bound does not fall."""
    for _ in range(NEWTON_STEPS):
        step = _newton_direction(alpha, e)
        new = _line_search(alpha, step, e)
        if torch.equal(new, alpha):
            break
        alpha = new
    return alpha


def _newton_direction(alpha: Tensor, e: Tensor) -> Tensor:
    r = alpha_gradient(alpha, e)
    q = -len(e) * torch.polygamma(1, alpha)
    c = len(e) * torch.polygamma(1, alpha.sum())
    if len(alpha) == 1:
        return torch.zeros_like(alpha)  # M = 1: pi = 1 whatever alpha is
    b = (r / q).sum() / (1 / c + (1 / q).sum())
    return -(r - b) / q


def _line_search(alpha: Tensor, step: Tensor, e: Tensor) -> Tensor:
    now = alpha_terms(alpha, e)
    size = 1.0
    while size > 1e-6:
        new = alpha + size * step
        if bool((new > 0).all()):
            new = new.clamp(*ALPHA_RANGE)
            if alpha_terms(new, e) >= now:
                return new
        size /= 2
    return alpha
