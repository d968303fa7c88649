"""Which kinds of cooperation the held-out samples speak for, and what owners tell of them."""

from typing import NamedTuple

import torch
from torch import Tensor

from scool.algorithms.shared.held_out import TRIED, held_out, numbers_of, of_tried, variances_of
from scool.contracts import Engine
from scool.priors.tracks import (
    gaussian_log_lik,
    mean_responsibilities,
    owner_weights,
    population_weights,
    with_strangers,
)
from scool.types import Tree

ROUNDING = 1e-6  # by which weights that somebody tells may miss a sum of 1


class Evidence(NamedTuple):
    """For A kinds; NaN in the rows of owners that told nothing."""

    weights: Tensor  # (K, A) omega
    population: Tensor  # (A,) pi
    sharpness: Tensor  # (A,) beta
    trust: Tensor  # (A,) lambda
    scores: Tensor  # (K, A), as in `HeldOut`; where owners live apart, of those held here


def from_samples(engine: Engine, thetas: list[Tree], pooling: float) -> Evidence:
    """Where the log-likelihoods of all samples of all owners are in one place."""
    seen = held_out(engine, thetas)
    pi = population_weights(seen.log_lik)
    weights = with_strangers(seen.log_lik, owner_weights(seen.log_lik, pi, pooling))
    return Evidence(weights, pi, seen.sharpness, seen.trust, seen.scores)


def from_sums(engine: Engine, thetas: list[Tree], population: Tensor, pooling: float) -> Evidence:
    r"""Where samples stay with their owners. An owner tells three times a few numbers about its own
    models: the means over its samples of what $\beta$, $\lambda$ or $\sigma^2$ are chosen by; with
    these $\frac{1}{n_i} \sum_s r_{isa}$, from which all take one step of EM for $\pi$, the next in
    the next round; and $\omega_i$."""
    seen = numbers_of(engine, thetas)  # (K, 1 + len(TRIED), S, A)
    right = seen.numbers[:, 0]
    rows = torch.cat([seen.outputs[:, None], seen.numbers.nanmean(dim=2).flatten(1)], dim=1)
    told = told_by_all(engine, rows)
    means = told[:, 1:].view(len(told), 1 + len(TRIED), len(thetas))
    ones = torch.ones(len(thetas), dtype=torch.float64)
    known = seen.outputs if bool(seen.outputs.isfinite().any()) else told[:, 0]
    if outputs := int(known.nan_to_num(0.0).max()):  # as it is here, whatever others tell
        variances = variances_of(-means[:, 0], outputs, engine)
        log_lik = gaussian_log_lik(-right, outputs, variances)
        sharpness, trust = ones, torch.zeros_like(ones)
        scores = right.nanmean(dim=1)
    else:
        best = (-means[:, 1:]).nanmean(dim=0).nan_to_num(-torch.inf).argmax(dim=0)  # (A,)
        tried = [-seen.numbers[:, 1 + int(b), :, a] for a, b in enumerate(best)]
        log_lik = torch.stack(tried, dim=-1)
        sharpness, trust = of_tried(best)
        scores = 100 * right.nanmean(dim=1)
    shares = told_by_all(engine, mean_responsibilities(log_lik, population))
    shares = shares[are_weights(shares)]
    pi = shares.mean(dim=0) if len(shares) else population
    pooled = owner_weights(log_lik, pi, pooling, apart=True)
    weights = told_by_all(engine, with_strangers(log_lik, pooled))
    weights = weights.where(are_weights(weights)[:, None], torch.nan)
    return Evidence(weights, pi, sharpness, trust, scores)


def told_by_all(engine: Engine, rows: Tensor) -> Tensor:
    """Rows (K, m) -> those that the owners tell, each its own; NaN where nobody is."""
    rows = rows.where(engine.active[:, None], torch.nan)
    return engine.gather(rows[engine.owned.cpu()])


def are_weights(rows: Tensor) -> Tensor:
    """(K,) bool: rows of 0 or more that sum to one."""
    return (rows >= 0).all(dim=1) & ((rows.sum(dim=1) - 1).abs() < ROUNDING)
