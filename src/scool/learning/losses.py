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


NEVER = -1e9
"""The logit of a class that is not the client's: no probability, and still a number."""


def own_cross_entropy(classes: Tensor) -> Loss:
    r"""Minus the log-probability of the right class among those of the sample's owner,
    $-\log \frac{e^{z_y}}{\sum_{c \in C_j} e^{z_c}}$. Restricted softmax: Li & Zhan, FedRS, KDD 2021.

    A client that has never seen a class then does not teach others to avoid it.

    Args:
        classes: (K, C) bool, $C_j$. Targets are `owner * C + class`, see `with_owner`.
    """
    count = classes.shape[1]

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        outputs = outputs.masked_fill(~classes[targets // count], NEVER)
        return cross_entropy(outputs, targets % count)

    return loss


def with_owner(y: Tensor, num_classes: int) -> Tensor:
    """Class ids (K, N) that also say whose sample it is.

    >>> with_owner(torch.tensor([[0, 2], [1, 0]]), 10)
    tensor([[ 0,  2],
            [11, 10]])
    """
    return y + num_classes * torch.arange(len(y), device=y.device)[:, None]


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance: minus a unit-variance Gaussian log-density, less its constant."""
    return 0.5 * (outputs - targets).square().sum(dim=-1)


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
