"""One client's model, ready for prediction."""

from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from scool.data.preprocessing import Preprocessing, is_table
from scool.data.transform import ImageTransform
from scool.errors import ConfigError, first_few, require
from scool.evaluation.scores import own_outputs

BATCH = 4096
"""Samples that a model answers at a time."""


@final
class ClientModel(nn.Module):
    """One client's model. It takes inputs as the federation holds them (images as uint8, tokens as
    whole numbers), torch or numpy, or as rows of a table where the federation was made of one, and
    knows which classes it may answer with."""

    def __init__(
        self,
        network: nn.Module,
        classes: Tensor | None,
        *,
        input_shape: tuple[int, ...] | None = None,
        transform: ImageTransform | None = None,
        takes_tokens: bool = False,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.classes = classes  # (C,) bool; None: regression
        self.input_shape = input_shape  # None: unknown
        self.transform = transform
        self.takes_tokens = takes_tokens
        self.preprocessing = preprocessing  # of this client alone

    def forward(self, x: Any) -> Tensor:
        """The outputs: logits of all classes, or targets."""
        inputs, first = self._fitting(x), next(self.network.parameters())
        if self.takes_tokens:
            is_whole = not inputs.is_floating_point()
            require(is_whole, "x", inputs.dtype, "give whole numbers (tokens)")
            return self.network(inputs.to(first.device, torch.int64))
        if self.transform is not None:
            inputs = self.transform.evaluate(inputs)
        return self.network(inputs.to(first.device, first.dtype))

    def predict(self, x: Any, batch: int = BATCH) -> Any:
        """The class of each sample, among those it may answer with; for regression the targets, in
        their own unit. For a table: names of classes, or targets, as pandas has them.

        Args:
            x: samples, first axis first.
            batch: how many are computed at a time.

        Raises:
            ConfigError: some samples are not finite, so that no answer would mean anything.
        """
        outputs, told = self.own_outputs(x, batch), self.preprocessing
        found = outputs if self.classes is None else outputs.argmax(dim=-1)
        return told.answers(found, x) if told is not None and is_table(x) else found

    def predict_proba(self, x: Any, batch: int = BATCH) -> Any:
        """(n, C) how probable each class is, by the softmax of the outputs; 0 for classes that the
        client never answers with. For a table: a pandas table, a column per class.

        Raises:
            ConfigError: some samples are not finite, or this is regression.
        """
        remedy = "a regression has no probabilities; `predict` gives the targets"
        require(self.classes is not None, "predict_proba", "regression", remedy)
        found, told = self.own_outputs(x, batch).softmax(dim=-1), self.preprocessing
        return told.shares(found, x) if told is not None and is_table(x) else found

    @torch.no_grad()
    def own_outputs(self, x: Any, batch: int = BATCH) -> Tensor:
        """The outputs as they are judged: minus infinity for classes that the client never answers
        with; for regression the targets in their own unit."""
        require(batch >= 1, "batch", batch, "give at least 1")
        inputs = self._fitting(x)
        self._check_finite(inputs)
        outputs = torch.cat([self(part) for part in inputs.split(batch)])
        if self.classes is None:
            return self.preprocessing.in_unit(outputs) if self.preprocessing else outputs
        return own_outputs(outputs, self.classes.to(outputs.device))

    def _fitting(self, x: Any) -> Tensor:
        """The inputs as a tensor of the right shape."""
        if is_table(x):
            remedy = "give arrays: this federation was not made of a table"
            require(self.preprocessing is not None, "x", f"a {type(x).__name__}", remedy)
            assert self.preprocessing is not None
            return torch.from_numpy(self.preprocessing.transform(x))
        inputs = x if isinstance(x, Tensor) else _as_tensor(x)
        is_plain = inputs.layout == torch.strided and not inputs.is_complex()
        remedy = "give real numbers in a dense array"
        require(is_plain, "x", f"a {inputs.layout} array of {inputs.dtype}", remedy)
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


def _as_tensor(x: Any) -> Tensor:
    """Arrays and lists of numbers.

    Raises:
        ConfigError: they hold something else.
    """
    try:
        return torch.tensor(np.asarray(x))
    except (TypeError, ValueError):
        raise ConfigError(
            f"x is not an array of numbers (a {type(x).__name__}): give as many numbers for each "
            "sample, or a table where the federation was made of one"
        ) from None
