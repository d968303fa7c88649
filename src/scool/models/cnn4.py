"""The paper's network for Mini-ImageNet: four convolutions with GroupNorm."""

from collections.abc import Sequence

from torch import nn

from scool.errors import ModelError


def cnn4(input_shape: Sequence[int], outputs: int) -> nn.Module:
    """Four times {conv 3x3 (32) - ReLU - GroupNorm(4) - pool}, then linear; the last pool has
    stride 1.

    108,996 parameters for 3x84x84 inputs and C = 100. The normalisation follows the ReLU, as in
    the authors' program.

    >>> sum(p.numel() for p in cnn4((3, 84, 84), 100).parameters())
    108996
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 32:
        raise ModelError(
            f"cnn4 needs images of at least 32x32 pixels, not inputs of shape "
            f"{tuple(input_shape)}: use cnn2 or mlp"
        )
    width, height, side = input_shape[0], input_shape[1], input_shape[2]
    layers: list[nn.Module] = []
    for stride in (2, 2, 2, 1):
        pool = nn.MaxPool2d(2, stride)
        layers += [nn.Conv2d(width, 32, 3), nn.ReLU(), nn.GroupNorm(4, 32), pool]
        height, side = ((s - 4) // stride + 1 for s in (height, side))
        width = 32
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * height * side, outputs))
