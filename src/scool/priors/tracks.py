r"""Which kind of cooperation explains an owner's samples: a latent variable per sample.

Every owner i has A models $\theta_{ia}$, one per kind of cooperation (alone, a shared body, the
graph, one common model). A sample s that none of them was trained on is explained by one of them:

$z_{is} \sim \mathrm{Cat}(\omega_i)$, $\quad y_{is} \sim p(y \mid x_{is}; \theta_{i z_{is}})$,
$\quad \omega_i \sim \mathrm{Dir}(1 + \kappa\pi)$,

so that what an owner answers is the average of its models with weights $\omega_i$ (Bayesian
stacking). Owners share $\pi$: it is what suits the population, and it decides for an owner with few
samples, as if that owner had seen $\kappa$ samples more; unless the owner is a stranger, to whom
$\pi$ says nothing. Everything here is a function of the log-likelihoods
$\ell_{isa} = \log p(y_{is} \mid x_{is}; \theta_{ia})$, with NaN where an owner has no further
sample.
"""

import math
from itertools import product

import torch
from torch import Tensor

STEPS = 200
TOLERANCE = 1e-9
STRANGERS = 0.1  # rho: how often an owner is unlike all others
GRID = 4  # steps from 0 to 1 of a stranger's weights
NOISE_POOLING = 2.0  # nu: numbers of its own that weigh as much as the usual variance
SMALLEST = 1e-30  # variance of targets, whatever their unit


def responsibilities(log_lik: Tensor, weights: Tensor) -> Tensor:
    r"""[TRACK-r] $r_{isa} \propto \omega_{ia} \exp \ell_{isa}$, (K, S, A); 0 where no sample is."""
    log_r = log_lik + weights.clamp_min(1e-300).log()[:, None, :]
    return log_r.softmax(dim=-1).nan_to_num(0.0)


def population_weights(log_lik: Tensor) -> Tensor:
    r"""[TRACK-pi] (A,) the maximiser of $\sum_i \frac1{n_i} \sum_s \log \sum_a \pi_a \exp
    \ell_{isa}$ by EM from equal weights; every owner with samples counts alike."""
    counts = _counts(log_lik)
    pi = log_lik.new_full((log_lik.shape[-1],), 1 / log_lik.shape[-1])
    owners = (counts > 0).sum().clamp_min(1)
    for _ in range(STEPS):
        r = responsibilities(log_lik, pi.expand(len(log_lik), -1)).sum(dim=1)
        new = (r / counts.clamp_min(1)[:, None]).sum(dim=0) / owners
        if not bool(counts.any()):
            return pi
        pi, moved = new, float((new - pi).abs().max())
        if moved < TOLERANCE:
            break
    return pi


def mean_responsibilities(log_lik: Tensor, pi: Tensor) -> Tensor:
    r"""(K, A) $\frac{1}{n_i} \sum_s r_{isa}$ under common weights, whose mean over owners is one
    step of EM for [TRACK-pi]; NaN without samples."""
    r = responsibilities(log_lik, pi.expand(len(log_lik), -1)).sum(dim=1)
    return r / _counts(log_lik)[:, None]


def owner_weights(log_lik: Tensor, pi: Tensor, pooling: float, apart: bool = False) -> Tensor:
    r"""[TRACK-w] (K, A) the maximiser $\omega_i$ of [TRACK-bound] by EM from $\pi$:
    $\omega_{ia} = (\sum_s r_{isa} + \kappa \pi_a) / (n_i + \kappa)$. `apart`: the steps of an owner
    end when its own weights are still, not those of all."""
    counts = _counts(log_lik)[:, None]
    weights = pi.expand(len(log_lik), -1)
    moves = torch.ones_like(counts, dtype=torch.bool)
    for _ in range(STEPS):
        r = responsibilities(log_lik, weights).sum(dim=1)
        new = (r + pooling * pi) / (counts + pooling)
        new = torch.where(counts + pooling > 0, new, pi)
        new = torch.where(moves, new, weights)
        change = (new - weights).abs()
        weights = new
        if float(change.max()) < TOLERANCE:
            break
        if apart:
            moves = moves & (change.amax(dim=1, keepdim=True) >= TOLERANCE)
    return weights


def with_strangers(log_lik: Tensor, weights: Tensor) -> Tensor:
    r"""[TRACK-stranger] (K, A) weights of owners that may be unlike all others. With probability
    $\rho = 1/10$ owner i is a stranger, to whom $\pi$ says nothing: any g of a grid G of weights is
    as likely as another. With the [TRACK-w] weights $\omega_i^\circ$ and
    $P_i(\omega) = \prod_s \sum_a \omega_a \exp \ell_{isa}$ it is one by

    $\alpha_i = \rho \bar P_i / (\rho \bar P_i + (1 - \rho) P_i(\omega_i^\circ))$,
    $\quad \bar P_i = \frac{1}{|G|} \sum_g P_i(g)$,

    and its weights are the posterior mean, $\omega_i = (1 - \alpha_i)\, \omega_i^\circ +
    \alpha_i \sum_g g\, P_i(g) / \sum_g P_i(g)$. `weights` without samples."""
    grid = _grid(log_lik.shape[-1]).to(log_lik)
    every = torch.stack([_explained(log_lik, g.expand_as(weights)) for g in grid], dim=1)  # (K, G)
    stranger = every.logsumexp(dim=1) - math.log(len(grid))
    odds = stranger - _explained(log_lik, weights) + math.log(STRANGERS / (1 - STRANGERS))
    alpha = odds.sigmoid().where(_counts(log_lik) > 0, 0.0)[:, None]
    return (1 - alpha) * weights + alpha * (every.softmax(dim=1) @ grid)


def _explained(log_lik: Tensor, weights: Tensor) -> Tensor:
    r"""(K,) $\sum_s \log \sum_a \omega_{ia} \exp \ell_{isa}$."""
    here = log_lik.isfinite().all(dim=-1)
    known = log_lik.where(here[..., None], 0.0)
    log_w = weights.clamp_min(1e-300).log()
    return torch.logsumexp(known + log_w[:, None, :], dim=-1).where(here, 0.0).sum(dim=1)


def _grid(kinds: int) -> Tensor:
    """(G, A) all weights of A kinds that are multiples of 1 / GRID."""
    shares = product(range(GRID + 1), repeat=kinds)
    return torch.tensor([s for s in shares if sum(s) == GRID], dtype=torch.float64) / GRID


def mean_log_lik(log_lik: Tensor) -> Tensor:
    """(A,) mean over owners with samples of the mean over their samples."""
    counts = _counts(log_lik)
    means = log_lik.nan_to_num(0.0).sum(dim=1) / counts.clamp_min(1)[:, None]
    return means.sum(dim=0) / (counts > 0).sum().clamp_min(1)


def track_bound(log_lik: Tensor, weights: Tensor, pi: Tensor, pooling: float) -> Tensor:
    r"""[TRACK-bound] (K,) $\sum_s \log \sum_a \omega_{ia} \exp \ell_{isa} + \kappa \sum_a \pi_a
    \log \omega_{ia}$, which no step of EM lowers."""
    log_w = weights.clamp_min(1e-300).log()
    return _explained(log_lik, weights) + pooling * (pi * log_w).sum(dim=-1)


def owner_variances(errors: Tensor, counts: Tensor) -> Tensor:
    r"""[TRACK-sigma] (K,) $\sigma_i^2 = (n_i v_i + \nu v) / (n_i + \nu)$: what an owner's best kind
    leaves unexplained, $v_i$ `errors` (K,) over its $n_i$ `counts` (K,), and $\nu = 2$ more of
    what is usual. $v = K / \sum_i \sigma_i^{-2}$, by EM from the prior $\sigma_i^2 \sim
    \mathrm{Inv\text{-}Gamma}(\nu/2, \nu v/2)$. So every owner has a unit and a noise of its own;
    $v$ where it has no sample."""
    known = (counts > 0) & errors.isfinite()
    own = errors.where(known, 0.0).clamp_min(SMALLEST)
    counts = counts.where(known, 0.0)

    def pooled(usual: Tensor) -> Tensor:
        return (counts * own + NOISE_POOLING * usual) / (counts + NOISE_POOLING)

    usual = own[known].mean() if bool(known.any()) else own.new_ones(())
    for _ in range(STEPS if bool(known.any()) else 0):
        new = 1 / (1 / pooled(usual)[known]).mean()
        usual, moved = new, float((new / usual - 1).abs())
        if moved < TOLERANCE:
            break
    return pooled(usual)


def gaussian_log_lik(squared_error: Tensor, outputs: int, variances: Tensor) -> Tensor:
    r"""$\ell_{isa} = -\frac{e_{isa}}{2\sigma_i^2} - \frac d2 \log(2\pi\sigma_i^2)$ of squared
    errors $e$ (K, S, A) in d outputs, with the $\sigma_i^2$ `variances` (K,) of their owners."""
    own = variances[:, None, None]
    return -squared_error / (2 * own) - 0.5 * outputs * torch.log(2 * math.pi * own)


def _counts(log_lik: Tensor) -> Tensor:
    """(K,) samples of each owner."""
    return log_lik.isfinite().all(dim=-1).sum(dim=1).to(log_lik.dtype)
