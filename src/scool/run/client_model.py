"""One client's model, ready for prediction."""

from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from scool.data.transform import ImageTransform
from scool.errors import ConfigError, first_few, require
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
        inputs, first = self._fitting(x), next(self.network.parameters())
        if self.takes_tokens:
            is_whole = not inputs.is_floating_point()
            require(is_whole, "x", inputs.dtype, "give whole numbers (tokens)")
            return self.network(inputs.to(first.device, torch.int64))
        if self.transform is not None:
            inputs = self.transform.evaluate(inputs)
        return self.network(inputs.to(first.device, first.dtype))

    @torch.no_grad()
    def predict(self, x: Tensor | np.ndarray) -> Tensor:
        """The class of each sample, among the client's own; for regression the targets.

        Raises:
            ConfigError: some samples are not finite, so that no answer would mean anything.
        """
        inputs = self._fitting(x)
        self._check_finite(inputs)
        outputs = self(inputs)
        if self.classes is None:
            return outputs
        return own_outputs(outputs, self.classes.to(outputs.device)).argmax(dim=-1)

    def _fitting(self, x: Tensor | np.ndarray) -> Tensor:
        """The inputs as a tensor of the right shape."""
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
        return inputs

    def _check_finite(self, inputs: Tensor) -> None:
        """Refuse samples that are not finite, or would not be in the numbers of the model."""
        if not inputs.is_floating_point():
            return
        dtype = next(self.network.parameters()).dtype
        is_odd = ~inputs.to(dtype).isfinite()
        if not bool(is_odd.any()):
            return
        rows = is_odd.reshape(len(inputs), -1).any(dim=1).nonzero()[:, 0].tolist()
        raise ConfigError(
            f"x has {len(rows)} of {len(inputs)} rows that are not finite as {dtype} (rows "
            f"{first_few(rows)}): fix these samples, or leave them out"
        )
