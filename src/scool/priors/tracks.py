r"""Which kind of cooperation explains an owner's samples: a latent variable per sample.

Every owner i has A models $\theta_{ia}$, one per kind of cooperation (alone, a shared body, the
graph, one common model). A sample s that none of them was trained on is explained by one of them:

$z_{is} \sim \mathrm{Cat}(\omega_i)$, $\quad y_{is} \sim p(y \mid x_{is}; \theta_{i z_{is}})$,
$\quad \omega_i \sim \mathrm{Dir}(1 + \kappa\pi)$,

so that what an owner answers is the average of its models with weights $\omega_i$ (Bayesian
stacking). Owners share $\pi$: it is what suits the population, and it decides for an owner with few
samples, as if that owner had seen $\kappa$ samples more. Everything here is a function of the
log-likelihoods $\ell_{isa} = \log p(y_{is} \mid x_{is}; \theta_{ia})$, with NaN where an owner has
no further sample.
"""

import math

import torch
from torch import Tensor

STEPS = 200
TOLERANCE = 1e-9


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


def mean_log_lik(log_lik: Tensor) -> Tensor:
    """(A,) mean over owners with samples of the mean over their samples."""
    counts = _counts(log_lik)
    means = log_lik.nan_to_num(0.0).sum(dim=1) / counts.clamp_min(1)[:, None]
    return means.sum(dim=0) / (counts > 0).sum().clamp_min(1)


def track_bound(log_lik: Tensor, weights: Tensor, pi: Tensor, pooling: float) -> Tensor:
    r"""[TRACK-bound] (K,) $\sum_s \log \sum_a \omega_{ia} \exp \ell_{isa} + \kappa \sum_a \pi_a
    \log \omega_{ia}$, which no step of EM lowers."""
    log_w = weights.clamp_min(1e-300).log()
    here = log_lik.isfinite().all(dim=-1)
    known = log_lik.where(here[..., None], 0.0)
    samples = torch.logsumexp(known + log_w[:, None, :], dim=-1).where(here, 0.0)
    return samples.sum(dim=1) + pooling * (pi * log_w).sum(dim=-1)


def gaussian_log_lik(squared_error: Tensor, outputs: int, least: Tensor | None = None) -> Tensor:
    r"""$\ell_{isa} = -\frac{e_{isa}}{2\sigma^2} - \frac d2 \log(2\pi\sigma^2)$ of squared errors
    $e$ (K, S, A) in d outputs; $\sigma^2$ is the mean error per output of the best kind, `least`
    that of all its outputs where it is known."""
    least = squared_error.nanmean(dim=(0, 1)).min() if least is None else least
    variance = least.clamp_min(1e-12) / outputs
    return -squared_error / (2 * variance) - 0.5 * outputs * torch.log(2 * math.pi * variance)


def _counts(log_lik: Tensor) -> Tensor:
    """(K,) samples of each owner."""
    return log_lik.isfinite().all(dim=-1).sum(dim=1).to(log_lik.dtype)
