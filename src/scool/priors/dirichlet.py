r"""Terms and updates around pi_i ~ Dirichlet(alpha), shared by SBM and MMSBM."""

import torch
from torch import Tensor

NEWTON_STEPS = 20
ALPHA_RANGE = (1e-4, 1e4)  # one draw a client says little about alpha: EM may drift without end


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
