"""Losses as minus log-likelihoods, one number a sample."""

from collections.abc import Callable
from typing import TypeAlias

import torch.nn.functional as F
from torch import Tensor

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs (s, C), targets (s, ...)) -> (s,)."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log-probability of the right class, over all C logits."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance: minus a unit-variance Gaussian log-density, less its constant."""
    return 0.5 * (outputs - targets).square().sum(dim=-1)


LOSSES: dict[str, Loss] = {"classification": cross_entropy, "regression": squared_error}
