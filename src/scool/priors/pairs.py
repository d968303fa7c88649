"""From evidence to the terms of the bound: which pairs count, and their log-likelihood ratio."""

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from scool.contracts import Evidence, SelfMode
from scool.errors import require

Null: TypeAlias = Literal["uniform", "auto"] | float | tuple[float, ...]
"""log P_0(D_j), what explains D_j without an edge: a number, one number a client, or a name."""


SMALL = 500  # clients up to which lists of pairs save nothing
SPARSE = 0.4  # share of the pairs above which they save nothing
DENSE = 0.6  # share of the pairs from which on groups can be told apart without a hint


class Pairs(NamedTuple):
    """The pairs that enter sums over (i, j); float64 on the CPU."""

    mask: Tensor  # (K, K) bool: measured; the diagonal only where w_ii is inferred
    ratio: Tensor  # (K, K) l_ij - l0_j, tempered; 0 outside the mask
    own: Tensor  # scalar: sum_i l_ii of the data that always counts (tempered); 0 when gated

    @property
    def off(self) -> Tensor:
        """(K, K) bool: the measured pairs i != j."""
        return self.mask & ~torch.eye(len(self.mask), dtype=torch.bool)

    @property
    def is_dense(self) -> bool:
        """Whether most pairs were measured, as in the rounds before the graph gets sparse."""
        return int(self.mask.count_nonzero()) > DENSE * self.mask.numel()


class PairLists(NamedTuple):
    """For each client the pairs i != j that it is part of, in either direction."""

    peer: Tensor  # (pairs,) the other client; the pairs of client 0 first, then of 1, ...
    ends: Tensor  # (K + 1,) where the pairs of each client begin and end
    there: Tensor  # (pairs,) place of (i, j) in a flat K x K matrix
    back: Tensor  # (pairs,) place of (j, i)
    is_there: Tensor  # (pairs,) 1.0 where (i, j) is measured, else 0.0
    is_back: Tensor  # (pairs,) the same of (j, i)


def list_pairs(pairs: Pairs) -> PairLists | None:
    """The pairs as lists; None where there are so many that whole rows are faster."""
    off = pairs.off
    linked = off | off.T
    count = linked.sum(dim=1)
    if len(off) <= SMALL or int(count.sum()) > SPARSE * off.numel():
        return None
    i, j = linked.nonzero().unbind(dim=1)
    there, back = i * len(off) + j, j * len(off) + i
    ends = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return PairLists(j, ends, there, back, off.take(there).double(), off.take(back).double())


def read_pairs(
    evidence: Evidence,
    self_mode: SelfMode,
    null: Tensor | float | tuple[float, ...],
    scale: float = 1.0,
) -> Pairs:
    """Mask, null model, likelihood temperature `scale` and self mode applied to the evidence."""
    seen = evidence.seen.bool().cpu()
    log_lik = torch.where(seen, evidence.log_lik.double().cpu(), 0.0)
    diagonal = torch.eye(len(seen), dtype=torch.bool)
    gated = self_mode == "gated"
    mask = seen if gated else seen & ~diagonal
    l0 = torch.as_tensor(null, dtype=torch.float64).cpu()
    fits = l0.ndim == 0 or len(l0) in (1, len(seen))
    require(fits, "null_loglik", null, f"give one number, or one for each of {len(seen)} clients")
    ratio = torch.where(mask, (log_lik - l0) / scale, 0.0)
    own = torch.zeros((), dtype=torch.float64) if gated else log_lik.diagonal().sum() / scale
    return Pairs(mask, ratio, own)


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
