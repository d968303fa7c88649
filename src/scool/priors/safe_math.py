"""Logarithms that stay finite: clipped block probabilities, entropies, masked softmax."""

from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST = 1e-6  # B lives in [1e-6, 1 - 1e-6]; at 0 or 1 the bound would be infinite


class LogB(NamedTuple):
    """The two tables of the block term."""

    on: Tensor  # (M, M) log B
    off: Tensor  # (M, M) log(1 - B)

    @property
    def logit(self) -> Tensor:
        """(M, M) log B - log(1 - B)."""
        return self.on - self.off


def clip_probability(B: Tensor) -> Tensor:
    """Keep probabilities away from 0 and 1."""
    return B.clamp(SMALLEST, 1 - SMALLEST)


def log_B(B: Tensor) -> LogB:
    """log B and log(1 - B) of clipped probabilities.

    >>> bool(torch.isfinite(log_B(torch.tensor([[0.0, 1.0]])).logit).all())
    True
    """
    clipped = clip_probability(B)
    return LogB(clipped.log(), torch.log1p(-clipped))


def bernoulli_entropy(w: Tensor) -> Tensor:
    """h(w) = -w log w - (1 - w) log(1 - w), with 0 log 0 = 0.

    >>> bernoulli_entropy(torch.tensor([0.0, 1.0])).tolist()
    [-0.0, -0.0]
    """
    return -torch.xlogy(w, w) - torch.xlogy(1 - w, 1 - w)


def categorical_entropy(q: Tensor) -> Tensor:
    """-sum_g q_g log q_g over the last axis."""
    return -torch.xlogy(q, q).sum(-1)


def masked_log_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """Log softmax of each row over the columns in `mask`, -inf elsewhere; an empty row is all -inf.

    >>> masked_log_softmax(torch.zeros(1, 3), torch.tensor([[True, True, False]])).exp().tolist()
    [[0.5, 0.5, 0.0]]
    """
    # the second filling turns the NaN of an empty row into -inf
    return x.masked_fill(~mask, -torch.inf).log_softmax(-1).masked_fill(~mask, -torch.inf)
