"""f(x; theta): networks by name, and any module that clients can train side by side."""

from scool.models.networks import ModelConfig, cnn2, cnn4, linear, mlp
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
