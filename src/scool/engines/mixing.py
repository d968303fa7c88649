"""Weighted sums of many models: a product with a matrix of weights that is mostly zeros, or not."""

from collections.abc import Callable

import torch
from torch import Tensor

LARGE = 1 << 20  # weights from which on it pays to look for zeros: some thousand clients
THIN = 0.02  # share of nonzero weights up to which a sparse product is faster


def mixer(w: Tensor, device: torch.device, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """rows (k, D) -> (m, D) sums weighted by w (m, k)."""
    weights: Tensor = w
    if w.numel() >= LARGE and int((w != 0).sum()) <= THIN * w.numel():
        weights = w.to_sparse()
    weights = weights.to(device, dtype)
    return lambda rows: weights @ rows
