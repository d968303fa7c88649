"""Dropout whose choices belong to the client and the step, so that clients can be vectorised."""

from typing import final

import torch
from torch import Tensor, nn

from scool.randomness import derive, uniform_along

_PER_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@final
class StreamDropout(nn.Module):
    """`nn.Dropout`, or that of whole channels, with numbers hashed from a stream.

    The stream is set around a call (`Functional.drawing`); without one nothing is dropped.
    """

    def __init__(self, p: float, name: str, per_channel: bool) -> None:
        super().__init__()
        self.p, self.per_channel = p, per_channel
        self.key = derive(0, "dropout", name)
        self.stream: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.stream is None or not self.p:
            return x
        shape = x.shape[:2] if self.per_channel else x.shape
        kept = uniform_along(self.stream, self.key, tuple(shape)) >= self.p
        scale = kept.to(x.dtype) / max(1 - self.p, torch.finfo(x.dtype).tiny)
        return x * scale.view(*shape, *[1] * (x.dim() - len(shape)))


def with_streams(module: nn.Module) -> nn.Module:
    """The module with its dropout layers exchanged, in place."""
    for name, layer in list(module.named_modules()):
        for child, inner in layer.named_children():
            per_channel = type(inner) in _PER_CHANNEL
            if type(inner) is nn.Dropout or per_channel:
                full = f"{name}.{child}"
                setattr(layer, child, StreamDropout(inner.p, full, per_channel))  # type: ignore
    return module
