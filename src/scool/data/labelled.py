"""A labelled image dataset in memory, and the files it comes from: whole, unaltered, never
unpickled."""

import gzip
import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scool.errors import DataError


class Labelled(NamedTuple):
    """uint8 images (n, channels, height, width) and int64 labels."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...] | None = None


_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def read_npz(path: Path, num_classes: int, shape: tuple[int, ...], remedy: str) -> Labelled:
    """Read `x_train, y_train, x_test, y_test`: uint8 images (n, *shape), labels (n,). The shape of
    an image is (H, W, 3) or (H, W).

    Raises:
        DataError: missing, truncated, altered (the archive's own checksums) or of another form.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
        if bad is not None:
            raise DataError(f"{path} was altered: the checksum of {bad} differs: {remedy}")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in _ARRAYS}
    except FileNotFoundError:
        raise DataError(f"{path} is missing: {remedy}") from None
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): {remedy}") from None
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        check_arrays(f"{path} {part}", x, y, num_classes, remedy)
        if x.shape[1:] != shape:
            words = f"images are {x.shape[1:]}, expected {shape}"
            raise DataError(f"{path} {part}: {words}, channels last: {remedy}")
    return Labelled(
        planes(arrays["x_train"]),
        torch.from_numpy(arrays["y_train"].astype(np.int64)),
        planes(arrays["x_test"]),
        torch.from_numpy(arrays["y_test"].astype(np.int64)),
    )


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write the four arrays; a crash leaves no half-written file under that name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    try:
        np.savez(part, **{name: arrays[name] for name in _ARRAYS})  # pyright: ignore[reportArgumentType]
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check_arrays(where: str, x: Any, y: Any, num_classes: int, remedy: str) -> None:
    """Refuse images that are not uint8, labels that do not fit them or are out of range."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or y.shape != x.shape[:1] or len(y) == 0:
        raise DataError(
            f"{where}: images are {x.dtype} {x.shape} with labels {y.shape}, expected uint8 "
            f"(n, height, width, channels) and (n,): {remedy}"
        )
    if y.dtype.kind not in "iu" or int(y.min()) < 0 or int(y.max()) >= num_classes:
        raise DataError(
            f"{where}: labels run from {y.min()} to {y.max()}, expected 0 to {num_classes - 1}: "
            f"{remedy}"
        )


def planes(images: np.ndarray, rows: np.ndarray | None = None, chunk: int = 1000) -> Tensor:
    """(n, H, W[, C]) to (n, C, H, W), a chunk at a time so that a file on disk may be larger
    than the spare memory."""
    wanted = np.arange(len(images)) if rows is None else rows
    height, width = images.shape[1:3]
    channels = images.shape[3] if images.ndim == 4 else 1
    out = torch.empty(len(wanted), channels, height, width, dtype=torch.uint8)
    for start in range(0, len(wanted), chunk):
        part = np.array(images[wanted[start : start + chunk]]).reshape(-1, height, width, channels)
        out[start : start + chunk] = torch.from_numpy(part).permute(0, 3, 1, 2)
    return out


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset and what it must be."""

    name: str
    size: int | None = None  # bytes
    md5: str | None = None  # of the official file, where one is published


def read_file(
    folder: Path, file: DataFile, remedy: str, *, verify: bool = True, packed: bool = False
) -> bytes:
    """The content of a file that is there and is the official one.

    Args:
        folder: where it lies.
        file: what its content must be.
        remedy: what to do when it is not, the end of every message.
        verify: False reads a file of any size and content.
        packed: it lies there with gzip, as NAME.gz; whoever packed it.

    Raises:
        DataError: it is missing, truncated or altered.
    """
    path = folder / (f"{file.name}.gz" if packed else file.name)
    try:
        content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing: {remedy}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}): {remedy}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    if verify and file.size is not None and len(content) != file.size:
        raise DataError(
            f"{path} is truncated or not the official file: expected {file.size:,} bytes, "
            f"found {len(content):,}: {remedy}"
        )
    if verify and file.md5 is not None:
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != file.md5:
            raise DataError(f"{path} was altered: expected MD5 {file.md5}, found {found}: {remedy}")
    return content
