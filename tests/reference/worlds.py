"""Small problems the tests of the priors share."""

import math

import torch

from reference.as_matrices import dense_state
from scool.contracts import Evidence

UNIFORM = -math.log(10)


def planted(K=60, groups=5, seed=0, inside=0.4, outside=4.0):
    """Evidence of planted groups with lognormal noise, and the (K, K) truth."""
    rng = torch.Generator().manual_seed(seed)
    z = torch.arange(K) % groups
    same = z[:, None] == z[None, :]
    noise = torch.exp(0.3 * torch.randn(K, K, generator=rng, dtype=torch.float64))
    loss = torch.where(same, inside, outside).double() * noise
    return Evidence(-loss, torch.ones(K, K, dtype=torch.bool), UNIFORM), same


def noise(K=8, seed=0, density=1.0, scale=3.0):
    """Structureless evidence; pairs are missing (NaN) where density < 1."""
    rng = torch.Generator().manual_seed(seed)
    log_lik = -scale * torch.rand(K, K, generator=rng, dtype=torch.float64)
    seen = torch.rand(K, K, generator=rng) < density
    if density >= 1:
        seen[:] = True
    return Evidence(torch.where(seen, log_lik, torch.nan), seen, UNIFORM)


def recovered(blocks, same):
    """Whether blocks equal the planted groups up to their names."""
    return bool(((blocks[:, None] == blocks[None, :]) == same).all())


def rounds(prior, evidence, count=5, seed=0, theta0=None):
    """State after `count` rounds of E-step and M-step on the same evidence."""
    state = prior.init(len(evidence.seen), theta0 or {}, seed)
    for t in range(count):
        evidence = evidence._replace(round=t, seed=seed)
        state = prior.m_step(prior.e_step(state, evidence), evidence)
    return state


def seen_rounds(*args, **options):
    """The same with matrices for edges, to look at."""
    return dense_state(rounds(*args, **options))
