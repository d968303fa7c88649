"""Networks by name: linear and fully connected ones, and the paper's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from torch import nn

from scool.errors import ModelError, require, unknown
from scool.models.residual import lenet, resnet18

NAMES = ("linear", "mlp", "tokens", "cnn2", "cnn4", "lenet", "resnet18")


@dataclass(frozen=True)
class ModelConfig:
    """Which network every client trains."""

    model: str = "mlp"
    """linear, mlp, tokens (embeds characters, then mlp), cnn2 (the paper's CIFAR network), cnn4
    (its Mini-ImageNet network), lenet or resnet18."""
    hidden: tuple[int, ...] = (64,)
    """Widths of the hidden layers of `mlp` and `tokens`."""
    relu_logits: bool = False
    """cnn2: ReLU on the outputs, as in the authors' program."""

    def __post_init__(self) -> None:
        if self.model not in NAMES:
            unknown("model", self.model, NAMES)
        is_wide = all(width >= 1 for width in self.hidden)
        require(is_wide, "hidden", self.hidden, "give widths of at least 1")
        has_effect = self.model in ("mlp", "tokens") or self.hidden == ModelConfig.hidden
        require(has_effect, "hidden", self.hidden, f"{self.model} has no such layers; use mlp")

    def builder(self, input_shape: Sequence[int], outputs: int) -> Callable[[], nn.Module]:
        """A function that builds the module with fresh parameters."""
        builders: dict[str, Callable[[], nn.Module]] = {
            "linear": lambda: linear(input_shape, outputs),
            "mlp": lambda: mlp(input_shape, outputs, self.hidden),
            "tokens": lambda: tokens(input_shape, outputs, self.hidden),
            "cnn2": lambda: cnn2(input_shape, outputs, self.relu_logits),
            "cnn4": lambda: cnn4(input_shape, outputs),
            "lenet": lambda: lenet(input_shape, outputs),
            "resnet18": lambda: resnet18(input_shape, outputs),
        }
        return builders[self.model]


def linear(input_shape: Sequence[int], outputs: int) -> nn.Module:
    """Softmax or linear regression: one layer.

    >>> sum(p.numel() for p in linear((8, 8), 10).parameters())
    650
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), outputs))


def mlp(input_shape: Sequence[int], outputs: int, hidden: Sequence[int] = (64,)) -> nn.Sequential:
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


def tokens(input_shape: Sequence[int], outputs: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Next-token model: tokens of the same alphabet as the classes, embedded, then `mlp`.

    >>> sum(p.numel() for p in tokens((20,), 77).parameters())
    15925
    """
    width = 8  # of an embedding
    rest = mlp((prod(input_shape) * width,), outputs, hidden)
    return nn.Sequential(nn.Embedding(outputs, width), *rest)


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
