"""SCooL-SBM as the authors' program computes it (compat="released")."""

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from scool.contracts import Evidence
from scool.priors.blocks import expected_log_pi

if TYPE_CHECKING:
    from scool.priors.sbm import SBMState

SMALL = 1e-6  # added inside every log and to the normaliser of Omega
SWEEPS = 2


def released_w(
    state: "SBMState", evidence: Evidence, temperature: float, rng: torch.Generator
) -> "SBMState":
    """A new state every round, two sweeps, rows normalised over all columns, then over N_i.

    The second normalisation undoes the first, so only the second is computed, in log space: a row
    whose weights all underflow is still the limit of the formula. Pairs that are not neighbours
    enter the sweeps with log-likelihood 0, the largest there is.
    """
    pairs = evidence.pairs
    log_w, omega = released_sweeps(pairs.dense(), state.alpha, state.B, temperature, rng)
    w = pairs.on(pairs.on(log_w[pairs.i, pairs.j]).row_softmax().exp())
    started = torch.ones_like(state.started)
    return state._replace(w=w, omega=omega, gamma=state.alpha + omega, started=started)


def released_sweeps(
    log_lik: Tensor, alpha: Tensor, B: Tensor, temperature: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """log w before row normalisation, and Omega whose rows need not sum to one.

    w is the one computed at the start of the last sweep; j = i is a column like any other in w and
    is left out of Omega.
    """
    K, M = len(log_lik), len(alpha)
    gamma = 1 - torch.rand(K, M, dtype=torch.float64, generator=rng)  # U(0, 1]
    draws = _gamma_draws(gamma, rng).clamp(min=torch.finfo(gamma.dtype).tiny)
    omega = draws / draws.sum(1, keepdim=True)
    on, off = (B + SMALL).log(), (1 - B + SMALL).log()
    logits = log_lik
    for _ in range(SWEEPS):
        logits = (log_lik + omega @ (on - off) @ omega.T) / temperature
        w = logits.sigmoid()
        for i in map(int, torch.randperm(K, generator=rng)):
            omega[i] = _omega_row(i, w, omega, gamma[i], on, off)
            gamma[i] = alpha + omega[i]
    return F.logsigmoid(logits), omega


def _gamma_draws(shape: Tensor, rng: torch.Generator) -> Tensor:
    """Gamma variates; torch has no public sampler that takes a generator."""
    seed = int(torch.randint(2**62, (), generator=rng))
    return torch.as_tensor(np.random.default_rng(seed).standard_gamma(shape.numpy()))


def _omega_row(
    i: int, w: Tensor, omega: Tensor, gamma_i: Tensor, on: Tensor, off: Tensor
) -> Tensor:
    """exp(s) / (sum exp(s) + 1e-6) without subtracting the maximum: for K = 100 it is nearly 0."""
    others = torch.arange(len(w)) != i
    out, back, rest = w[i, others], w[others, i], omega[others]
    scores = (out @ rest) @ on.T + ((1 - out) @ rest) @ off.T
    scores = scores + (back @ rest) @ on + ((1 - back) @ rest) @ off
    weights = (scores + expected_log_pi(gamma_i)).exp()
    return weights / (weights.sum() + SMALL)
