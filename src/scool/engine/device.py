"""Where tensors live, and what is installed there."""

from importlib.util import find_spec

import torch

from scool.errors import ConfigError

HAS_TRITON = find_spec("triton") is not None


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one; asking for what is absent is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"device = {name!r} is not possible: use auto, cpu or cuda")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device = {name!r} is not a device: use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device = {name!r} is not possible: this torch ({torch.__version__}) sees no CUDA "
            "device. Use --device cpu, or install a CUDA build of torch"
        )
    return device
