"""Linear and fully connected networks."""

from collections.abc import Sequence
from math import prod

from torch import nn


def linear(input_shape: Sequence[int], outputs: int) -> nn.Module:
    """Softmax or linear regression: one layer.

    >>> sum(p.numel() for p in linear((8, 8), 10).parameters())
    650
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), outputs))


def mlp(input_shape: Sequence[int], outputs: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Fully connected layers with ReLU between them.

    >>> sum(p.numel() for p in mlp((64,), 10).parameters())
    4810
    """
    layers: list[nn.Module] = [nn.Flatten()]
    width = prod(input_shape)
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, outputs))
