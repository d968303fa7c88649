"""The formulas of SCooL-attention on K x K matrices, and the way back into the encoder."""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from scool.contracts import Evidence, SelfMode
from scool.errors import ScoolError
from scool.priors.pairs import Pairs
from scool.priors.safe_math import categorical_entropy, masked_log_softmax
from scool.types import Difference, Tree


class Scores(NamedTuple):
    """Where rows may put weight, and how likely each choice is; float64 on the CPU."""

    columns: Tensor  # (K, K) bool
    ratio: Tensor  # (K, K) l'_ij / T
    own: Tensor  # scalar, the likelihood that always counts


def read_scores(pairs: Pairs, seen: Tensor, self_mode: SelfMode) -> Scores:
    """`gated`: l'_ii = l_ii; `always`: l'_ii = 0; `exclude`: no column i in row i."""
    columns = seen.bool().cpu() if self_mode == "always" else pairs.mask
    return Scores(columns, pairs.ratio, pairs.own)


def update_log_p(u: Tensor, columns: Tensor) -> Tensor:
    r"""[ATT-p] $p_{ij} = \exp(\langle u_i,u_j\rangle) / \sum_m \exp(\langle u_i,u_m\rangle)$ over
    the columns of row i; returns log p, -inf elsewhere."""
    return masked_log_softmax((u @ u.T).double().cpu(), columns)


def update_w(scores: Scores, log_p: Tensor) -> Tensor:
    r"""[ATT-w] $w_{i\cdot} = \mathrm{softmax}_j(l'_{ij}/T + \log p_{ij})$; a row without columns
    is 0."""
    return masked_log_softmax(scores.ratio + log_p, scores.columns).exp()


def attention_bound(scores: Scores, w: Tensor, log_p: Tensor) -> Tensor:
    r"""[ATT-elbo] $\sum_{ij} w_{ij}(l'_{ij}/T + \log p_{ij} - \log w_{ij})$ and the likelihood that
    always counts; tight after the E-step."""
    gain = torch.where(scores.columns, w * (scores.ratio + log_p), 0.0)
    return scores.own + gain.sum() + categorical_entropy(w).sum()


def embedding_gradient(target: Tensor, log_p: Tensor, u: Tensor) -> Tensor:
    r"""(K, D) $\partial/\partial u \sum_{ij} t_{ij}\log p_{ij} = [(t-p)+(t-p)^\top]\,u$: client i
    enters through its row and through its column."""
    residual = target - log_p.exp()
    return (residual + residual.T).to(u) @ u


def updates_of(evidence: Evidence) -> Tree:
    """The updates, which only this prior asks for."""
    if evidence.updates is None:
        raise ScoolError("the attention prior needs evidence.updates: theta_half - theta0")
    return {name: x.detach() for name, x in evidence.updates.items()}


BLOCK = 2**24  # numbers of updates that are looked at together


def blocks_of(evidence: Evidence) -> Iterator[tuple[slice, Evidence]]:
    """The clients held here some at a time, and the evidence with their updates alone: those of
    all, with what a gradient keeps of them, are as large as all models."""
    updates = evidence.updates
    if not isinstance(updates, Difference):  # they are there already
        yield slice(None), evidence
        return
    size = sum(prod(t.shape[1:]) for t in updates.theta.values())
    held = len(next(iter(updates.theta.values())))
    step = max(1, BLOCK // size)
    for start in range(0, held, step):
        rows = slice(start, start + step)
        yield rows, evidence._replace(updates=updates.rows(rows))


def held_rows(evidence: Evidence) -> Tensor:
    """(n,) which of the K rows are held by this process."""
    return torch.arange(len(evidence.seen)) if evidence.owned is None else evidence.owned
