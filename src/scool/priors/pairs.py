"""From evidence to the terms of the bound: which pairs count, and their log-likelihood ratio."""

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from scool.contracts import Evidence, SelfMode
from scool.errors import require
from scool.graph.edges import Edges, unique

Null: TypeAlias = Literal["uniform", "auto"] | float | tuple[float, ...]
"""log P_0(D_j), what explains D_j without an edge: a number, one number per client, or a name."""

SMALL = 500  # clients up to which lists of pairs save nothing
SPARSE = 0.4  # share of the pairs above which they save nothing
DENSE = 0.6  # share of the pairs from which on groups can be told apart without a hint


class Measured(NamedTuple):
    """The pairs that enter sums over (i, j), as edges; float64 on the CPU."""

    edges: Edges  # a set; loops only where w_ii is inferred
    ratio: Tensor  # (E,) l_ij - l0_j, tempered
    own: Tensor  # scalar: sum_i l_ii of the data that always counts (tempered); 0 when gated

    @property
    def is_dense(self) -> bool:
        """Whether most pairs were measured, as in the rounds before the graph gets sparse."""
        return self.edges.count > DENSE * len(self.edges) ** 2


class PairLists(NamedTuple):
    """For each client the pairs i != j that it is part of, in either direction."""

    peer: Tensor  # (pairs,) the other client; the pairs of client 0 first, then of 1, ...
    ends: Tensor  # (K + 1,) where the pairs of each client begin and end
    there: Tensor  # (pairs,) place of (i, j) among the edges; any where it is not measured
    back: Tensor  # (pairs,) place of (j, i)
    is_there: Tensor  # (pairs,) 1.0 where (i, j) is measured, else 0.0
    is_back: Tensor  # (pairs,) the same of (j, i)


def list_pairs(edges: Edges) -> PairLists | None:
    """The pairs as lists; None where there are so many that whole rows are faster."""
    k = len(edges)
    if k <= SMALL:
        return None
    off = edges.take(~edges.is_loop)
    linked: Tensor = unique(torch.cat([off.keys, off.j * k + off.i]))
    if len(linked) > SPARSE * k**2:
        return None
    i, j = linked // k, linked % k
    count = i.bincount(minlength=k)
    ends = torch.cat([count.new_zeros(1), count.cumsum(0)])
    (there, is_there), (back, is_back) = edges.find_keys(linked), edges.find_keys(j * k + i)
    return PairLists(j, ends, there, back, is_there.double(), is_back.double())


def read_edges(
    evidence: Evidence,
    self_mode: SelfMode,
    null: Tensor | float | tuple[float, ...],
    scale: float = 1.0,
) -> Measured:
    """Pairs, null model, likelihood temperature `scale` and self mode applied to the evidence."""
    found = evidence.pairs
    l0 = _null_of_each(null, len(found))
    gated = self_mode == "gated"
    own = torch.zeros((), dtype=torch.float64) if gated else found.loop_values().sum() / scale
    edges = found if gated else found.take(~found.is_loop)
    of_source = l0 if l0.ndim == 0 else l0.expand(len(found))[edges.j]
    return Measured(edges, (edges.values - of_source) / scale, own)


def _null_of_each(null: Tensor | float | tuple[float, ...], clients: int) -> Tensor:
    l0 = torch.as_tensor(null, dtype=torch.float64).cpu()
    fits = l0.ndim == 0 or len(l0) in (1, clients)
    require(fits, "null_loglik", null, f"give one number, or one for each of {clients} clients")
    return l0


def resolve_null(
    null: Null, evidence: Evidence, learned: bool
) -> Tensor | float | tuple[float, ...]:
    """`uniform` is -log C; `auto` is `uniform` where B is learned (without it B and w collapse
    to 0), else 0 as in the paper."""
    if isinstance(null, str):
        return evidence.uniform if null == "uniform" or learned else 0.0
    return null


def check_null(null: Null) -> None:
    """Refuse names other than the two."""
    require(
        not isinstance(null, str) or null in ("uniform", "auto"),
        "null_loglik",
        null,
        "give a number, 'uniform' or 'auto'",
    )
