"""A K x K matrix from a person's file."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scool.errors import ConfigError


def read_matrix(path: str) -> Tensor:
    """The numbers of a file, float64.

    Args:
        path: `.npy` as `numpy.save` writes it; `.csv` or `.txt` with a line per row, commas or
            spaces between the numbers.

    Raises:
        ConfigError: the file is missing, of another kind, or holds something else than numbers.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".npy", ".csv", ".txt"):
        raise ConfigError(f"matrix = {path!r} is not possible: give a .npy, .csv or .txt file")
    try:
        return _read_npy(path) if kind == ".npy" else _read_lines(path)
    except OSError as error:
        raise ConfigError(f"matrix = {path!r} cannot be read: {error.strerror}") from error
    except (ValueError, EOFError) as error:
        raise ConfigError(
            f"matrix = {path!r} is not a table of numbers ({error}): give K rows of K numbers"
        ) from error


def _read_npy(path: str) -> Tensor:
    values = np.load(path, allow_pickle=False)
    if values.dtype.kind not in "fiu":
        raise ValueError(f"its entries are of type {values.dtype}")
    return torch.tensor(values.astype(np.float64))


def _read_lines(path: str) -> Tensor:
    lines = Path(path).read_text().replace(",", " ").splitlines()
    rows = [[float(word) for word in line.split()] for line in lines if line.strip()]
    if len({len(row) for row in rows}) > 1:
        raise ValueError("its rows differ in length")
    return torch.tensor(rows, dtype=torch.float64)
