"""The paper's network for CIFAR: two convolutions, two linear layers."""

from collections.abc import Sequence

from torch import nn

from scool.errors import ModelError


def cnn2(input_shape: Sequence[int], outputs: int, relu_logits: bool = False) -> nn.Module:
    """conv 5x5 (32) - pool - conv 5x5 (64) - pool - linear 512 - linear C, ReLU between.

    878,538 parameters for 3x32x32 inputs and C = 10. `relu_logits` also puts a ReLU on the
    outputs, as the authors' program does; their temperatures assume it.

    >>> sum(p.numel() for p in cnn2((3, 32, 32), 10).parameters())
    878538
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 16:
        raise ModelError(
            f"cnn2 needs images of at least 16x16 pixels, not inputs of shape "
            f"{tuple(input_shape)}: use mlp"
        )
    channels, height, width = input_shape
    side_h, side_w = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side_h * side_w, 512),
        nn.ReLU(),
        nn.Linear(512, outputs),
    ]
    return nn.Sequential(*layers, nn.ReLU()) if relu_logits else nn.Sequential(*layers)
