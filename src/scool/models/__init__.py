"""f(x; theta): the paper's networks by name, and any module of one's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from scool.errors import require, unknown
from scool.models.cnn2 import cnn2
from scool.models.cnn4 import cnn4
from scool.models.mlp import linear, mlp
from scool.models.stack import (
    Functional,
    check_stackable,
    fixed_tensors,
    initial_params,
    parameters_of,
    unstack,
)

__all__ = [
    "Functional",
    "ModelConfig",
    "check_stackable",
    "cnn2",
    "cnn4",
    "fixed_tensors",
    "initial_params",
    "linear",
    "mlp",
    "parameters_of",
    "unstack",
]

NAMES = ("linear", "mlp", "cnn2", "cnn4")


@dataclass(frozen=True)
class ModelConfig:
    """Which network every client trains."""

    model: str = "mlp"
    """linear, mlp, cnn2 (the paper's CIFAR network) or cnn4 (its Mini-ImageNet network)."""
    hidden: tuple[int, ...] = (64,)
    """Widths of the hidden layers of `mlp`."""
    relu_logits: bool = False
    """cnn2: ReLU on the outputs, as in the authors' program."""

    def __post_init__(self) -> None:
        if self.model not in NAMES:
            unknown("model", self.model, NAMES)
        is_wide = all(width >= 1 for width in self.hidden)
        require(is_wide, "hidden", self.hidden, "give widths of at least 1")
        has_effect = self.model == "mlp" or self.hidden == ModelConfig.hidden
        require(has_effect, "hidden", self.hidden, f"{self.model} has no such layers; use mlp")

    def builder(self, input_shape: Sequence[int], outputs: int) -> Callable[[], nn.Module]:
        """A function that builds the module with fresh parameters."""
        builders: dict[str, Callable[[], nn.Module]] = {
            "linear": lambda: linear(input_shape, outputs),
            "mlp": lambda: mlp(input_shape, outputs, self.hidden),
            "cnn2": lambda: cnn2(input_shape, outputs, self.relu_logits),
            "cnn4": lambda: cnn4(input_shape, outputs),
        }
        return builders[self.model]
