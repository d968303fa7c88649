"""Image networks that other papers compare on: LeNet-5 and ResNet-18."""

from collections.abc import Sequence

from torch import Tensor, nn

from scool.errors import ModelError

GROUPS = 8
"""Groups of GroupNorm, used because batch statistics do not average well over clients."""


def lenet(input_shape: Sequence[int], outputs: int) -> nn.Module:
    """conv 5x5 (6) - pool - conv 5x5 (16) - pool - linear 120 - linear 84 - linear C, ReLU between.

    >>> sum(p.numel() for p in lenet((3, 32, 32), 10).parameters())
    62006
    """
    channels, height, width = _images("lenet", input_shape)
    side_h, side_w = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side_h * side_w, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, outputs),
    )


def resnet18(input_shape: Sequence[int], outputs: int) -> nn.Module:
    """He et al. (CVPR 2016) for small images: a first convolution of 3x3 without a pool, then four
    pairs of blocks with 64, 128, 256 and 512 channels; GroupNorm in place of BatchNorm.

    >>> sum(p.numel() for p in resnet18((3, 32, 32), 10).parameters())
    11173962
    """
    channels = _images("resnet18", input_shape)[0]
    layers: list[nn.Module] = [_conv(channels, 64, 3), nn.GroupNorm(GROUPS, 64), nn.ReLU()]
    width = 64
    for out in (64, 128, 256, 512):
        layers += [Block(width, out, 1 if out == width else 2), Block(out, out, 1)]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs))


class Block(nn.Module):
    """Two convolutions of 3x3, and the input added to what comes out."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            _conv(width, out, 3, stride),
            nn.GroupNorm(GROUPS, out),
            nn.ReLU(),
            _conv(out, out, 3),
            nn.GroupNorm(GROUPS, out),
        )
        is_same = stride == 1 and width == out
        self.beside: nn.Module = (
            nn.Identity()
            if is_same
            else nn.Sequential(_conv(width, out, 1, stride), nn.GroupNorm(GROUPS, out))
        )

    def forward(self, x: Tensor) -> Tensor:
        return (self.inside(x) + self.beside(x)).relu()


def _conv(width: int, out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width, out, size, stride, padding=size // 2, bias=False)


def _images(name: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < 16:
        raise ModelError(
            f"{name} needs images of at least 16x16 pixels, not inputs of shape "
            f"{tuple(input_shape)}: use mlp"
        )
    return input_shape[0], input_shape[1], input_shape[2]
