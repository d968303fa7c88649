"""Losses as minus log-likelihoods, one number a sample."""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
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


def own_loss(outputs: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
    """The loss of training, one number per sample, as a metric of `Engine.measure`."""
    del classes
    return (squared_error if targets.is_floating_point() else cross_entropy)(outputs, targets)


def with_label_noise(loss: Tensor, noise: float, num_classes: int) -> Tensor:
    r"""$-\log\big((1-\epsilon)\,p + \epsilon/C\big)$ from the losses $-\log p$: a label is right
    with probability $1-\epsilon$, else any of the C.

    No sample then costs more than $\log(C/\epsilon)$, so that the mean loss tells the share of
    samples a model understands. The predictor that knows no inputs, $p = 1/C$, keeps its loss.

    >>> with_label_noise(torch.tensor([0.0, 100.0]), 0.1, 10)
    tensor([0.0943, 4.6052])
    """
    if not noise:
        return loss
    floor = math.log(noise) - math.log(num_classes)
    return -torch.logaddexp(math.log1p(-noise) - loss, torch.full_like(loss, floor))


LOSSES: dict[str, Loss] = {"classification": cross_entropy, "regression": squared_error}
