"""The formulas of SCooL-attention over the measured pairs, and its gradient in the encoder."""

from collections.abc import Iterator, Mapping
from math import prod

import torch
from torch import Tensor

from scool.contracts import Evidence, SelfMode
from scool.errors import ScoolError
from scool.graph.edges import Edges
from scool.priors.base import Difference, Measured, categorical_entropy, read_edges
from scool.types import Tree

BLOCK = 2**24  # numbers in the updates that are encoded together


def read_scores(
    evidence: Evidence,
    self_mode: SelfMode,
    null: Tensor | float | tuple[float, ...],
    temperature: float,
) -> Measured:
    """The pairs that a row may put weight on, and l'_ij / T. `gated`: l'_ii = l_ii; `always`:
    l'_ii = 0; `exclude`: not (i, i)."""
    if self_mode != "always":
        return read_edges(evidence, self_mode, null, temperature)
    pairs = read_edges(evidence, "gated", null, temperature)
    own = read_edges(evidence, "always", null, temperature).own
    return Measured(pairs.edges, pairs.ratio.masked_fill(pairs.edges.is_loop, 0.0), own)


def update_log_p(u: Tensor, edges: Edges) -> Tensor:
    r"""[ATT-p] $p_{ij} = \exp(\langle u_i,u_j\rangle) / \sum_m \exp(\langle u_i,u_m\rangle)$ over
    the pairs of row i; returns log p, (E,) float64 on the CPU."""
    return edges.on(edges.forms(u, u).double().cpu()).row_softmax()


def update_w(scores: Measured, log_p: Tensor) -> Tensor:
    r"""[ATT-w] $w_{i\cdot} = \mathrm{softmax}_j(l'_{ij}/T + \log p_{ij})$, (E,)."""
    return scores.edges.on(scores.ratio + log_p).row_softmax().exp()


def attention_bound(scores: Measured, w: Tensor, log_p: Tensor) -> Tensor:
    r"""[ATT-elbo] $\sum_{ij} w_{ij}(l'_{ij}/T + \log p_{ij} - \log w_{ij})$ and the likelihood that
    always counts; tight after the E-step."""
    return scores.own + (w * (scores.ratio + log_p)).sum() + categorical_entropy(w)


def embedding_gradient(edges: Edges, target: Tensor, log_p: Tensor, u: Tensor) -> Tensor:
    r"""(K, D) $\partial/\partial u \sum_{ij} t_{ij}\log p_{ij} = [(t-p)+(t-p)^\top]\,u$: client i
    enters through its row and through its column."""
    residual, i, j = target - log_p.exp(), edges.i, edges.j
    ends = torch.cat([i, j]), torch.cat([j, i])
    both = Edges.gathered(len(edges), *ends, torch.cat([residual, residual]))
    return both.on(both.values.to(u)).sum_rows(u)


def updates_of(evidence: Evidence) -> Mapping[str, Tensor]:
    """The updates, which only this prior asks for."""
    if evidence.updates is None:
        raise ScoolError("the attention prior needs evidence.updates: theta_half - theta0")
    return evidence.updates


def in_blocks(updates: Mapping[str, Tensor]) -> Iterator[tuple[slice, Tree]]:
    """The updates of some clients at a time: those of all, with what a gradient keeps of them, are
    as large as all models."""
    if not isinstance(updates, Difference):  # they are in memory already
        yield slice(None), detached(updates)
        return
    size = sum(prod(t.shape[1:]) for t in updates.theta.values())
    held = len(next(iter(updates.theta.values())))
    step = max(1, BLOCK // size)
    for start in range(0, held, step):
        rows = slice(start, start + step)
        yield rows, detached(updates.rows(rows))


def held_rows(evidence: Evidence) -> Tensor:
    """(n,) which of the K rows are held by this process."""
    return torch.arange(len(evidence.seen)) if evidence.owned is None else evidence.owned


def detached(updates: Mapping[str, Tensor]) -> Tree:
    return {name: x.detach() for name, x in updates.items()}
