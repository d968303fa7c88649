"""Fetching samples: from the shared pool to network inputs, on the device."""

from typing import final

import torch
from torch import Tensor

from scool.data.federation import Split, are_tokens
from scool.data.transform import ImageTransform
from scool.engine.device import HAS_TRITON
from scool.randomness import uniform


@final
class Samples:
    """One split of the federation as the models see it."""

    def __init__(self, split: Split, transform: ImageTransform | None, dtype: torch.dtype) -> None:
        self.split = split
        self.transform = transform
        self.dtype = dtype
        self.width = split.index.shape[1]
        is_image = transform is not None and split.x.dtype == torch.uint8 and split.x.dim() == 4
        self._has_kernel = (
            is_image
            and split.x.is_cuda
            and split.x.shape[1] in (1, 3)
            and dtype == torch.float32
            and HAS_TRITON
        )

    def fetch(
        self, clients: Tensor, position: Tensor, draws: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets of entries `position` (n, ...) of the clients' (n,) own lists.

        Whole numbers (token ids) stay as they are. `draws` (n, ..., d) are the random numbers of
        the augmentation; without them the inputs are prepared as for evaluation.
        """
        rows = clients.view(-1, *[1] * (position.dim() - 1))
        pool_rows = self.split.index[rows, position]
        y = self.split.y[rows, position]
        if self._has_kernel and self.transform is not None:
            from scool.engine.kernels.images import fetch_images

            return fetch_images(self.split.x, pool_rows, draws, self.transform, self.dtype), y
        x = self.split.x[pool_rows]
        if self.transform is not None:
            x = self.transform.evaluate(x) if draws is None else self.transform.augment(x, draws)
        if y.is_floating_point():
            y = y.to(self.dtype)
        return (x if are_tokens(x) else x.to(self.dtype)), y

    def augmentation(self, key: int, streams: Tensor, shape: torch.Size) -> Tensor | None:
        """Random numbers for `shape` samples of each stream; None where nothing is random."""
        if self.transform is None or not self.transform.num_draws:
            return None
        return uniform(key, streams, (*shape, self.transform.num_draws))
