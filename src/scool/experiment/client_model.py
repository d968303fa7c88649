"""One client's model, ready for prediction."""

from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from scool.data.transform import ImageTransform
from scool.errors import require
from scool.evaluation.accuracy import own_outputs


@final
class ClientModel(nn.Module):
    """One client's model. It takes inputs as the federation holds them (images as uint8, tokens as
    whole numbers), torch or numpy, and knows which classes are the client's own."""

    def __init__(
        self,
        network: nn.Module,
        classes: Tensor | None,
        *,
        input_shape: tuple[int, ...] | None = None,
        transform: ImageTransform | None = None,
        takes_tokens: bool = False,
    ) -> None:
        super().__init__()
        self.network = network
        self.classes = classes  # (C,) bool; None: regression
        self.input_shape = input_shape  # None: not known
        self.transform = transform
        self.takes_tokens = takes_tokens

    def forward(self, x: Tensor | np.ndarray) -> Tensor:
        """The outputs: logits of all classes, or targets."""
        inputs = x if isinstance(x, Tensor) else torch.tensor(np.asarray(x))
        shape = self.input_shape
        if shape is not None:
            is_fit = tuple(inputs.shape[1:]) == shape
            require(
                is_fit,
                "x",
                f"inputs of shape {tuple(inputs.shape)}",
                f"give (n, {', '.join(map(str, shape))})",
            )
        first = next(self.network.parameters())
        if self.takes_tokens:
            is_whole = not inputs.is_floating_point()
            require(is_whole, "x", inputs.dtype, "give whole numbers (tokens)")
            return self.network(inputs.to(first.device, torch.int64))
        if self.transform is not None:
            inputs = self.transform.evaluate(inputs)
        return self.network(inputs.to(first.device, first.dtype))

    @torch.no_grad()
    def predict(self, x: Tensor | np.ndarray) -> Tensor:
        """The class of each sample, among the client's own; for regression the targets."""
        outputs = self(x)
        if self.classes is None:
            return outputs
        return own_outputs(outputs, self.classes.to(outputs.device)).argmax(dim=-1)
