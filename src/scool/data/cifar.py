"""CIFAR-10 and CIFAR-100 in the binary layout: label bytes, then red, green and blue planes."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scool.data.files import DataFile, read_file
from scool.data.labelled import Labelled, read_npz
from scool.errors import DataError

PIXELS = 3 * 32 * 32
CIFAR10_FOLDER = "cifar-10-batches-bin"
CIFAR100_FOLDER = "cifar-100-binary"
CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_BATCH = 10_000 * (1 + PIXELS)
CIFAR10_TRAIN = (
    DataFile("data_batch_1.bin", _BATCH, "5dd7e06a14cb22eb9f671a540d1b7c25"),
    DataFile("data_batch_2.bin", _BATCH, "5ea93a67294ea407fff1d09f752e9692"),
    DataFile("data_batch_3.bin", _BATCH, "942cd6a4bcdd0dd3c604fbe906cb4421"),
    DataFile("data_batch_4.bin", _BATCH, "ae636b3ba5c66a11e91e8cb52e771fcb"),
    DataFile("data_batch_5.bin", _BATCH, "53f37980c15c3d472c316c40844f3f0d"),
)
CIFAR10_TEST = DataFile("test_batch.bin", _BATCH, "803d5f7f4d78ea53de84dbe85f74fb6d")

# The publisher lists a checksum of the archive only, so these are checked by size and labels.
CIFAR100_TRAIN = DataFile("train.bin", 50_000 * (2 + PIXELS))
CIFAR100_TEST = DataFile("test.bin", 10_000 * (2 + PIXELS))


def read_cifar10(root: Path, *, verify: bool = True) -> Labelled:
    """The six official .bin files under root/cifar-10-batches-bin, or root/cifar10.npz.

    Args:
        root: the data root.
        verify: check sizes and MD5 sums against the official files.
    """
    folder = root / CIFAR10_FOLDER
    remedy = (
        f"unpack cifar-10-binary.tar.gz (MD5 c32a1d4ab5d03f1284b67883e8d87530) into {root}, "
        f"so that {folder}/data_batch_1.bin exists, or run `scool data fetch cifar10`"
    )
    packed = root / "cifar10.npz"
    if packed.exists() and not folder.exists():
        return read_npz(packed, 10, (32, 32, 3), remedy)._replace(class_names=CIFAR10_NAMES)
    parts = [_read(folder, file, (10,), remedy, verify) for file in CIFAR10_TRAIN]
    x_test, y_test = _read(folder, CIFAR10_TEST, (10,), remedy, verify)
    x_train, y_train = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    return Labelled(x_train, y_train, x_test, y_test, CIFAR10_NAMES)


def read_cifar100(root: Path, *, verify: bool = True) -> Labelled:
    """train.bin and test.bin under root/cifar-100-binary (fine labels), or root/cifar100.npz."""
    folder = root / CIFAR100_FOLDER
    remedy = (
        f"unpack cifar-100-binary.tar.gz (MD5 03b5dce01913d631647c71ecec9e9cb8) into {root}, "
        f"so that {folder}/train.bin exists, or run `scool data fetch cifar100`"
    )
    packed = root / "cifar100.npz"
    if packed.exists() and not folder.exists():
        return read_npz(packed, 100, (32, 32, 3), remedy)
    x_train, y_train = _read(folder, CIFAR100_TRAIN, (20, 100), remedy, verify)
    x_test, y_test = _read(folder, CIFAR100_TEST, (20, 100), remedy, verify)
    return Labelled(x_train, y_train, x_test, y_test)


def _read(
    folder: Path, file: DataFile, label_ranges: tuple[int, ...], remedy: str, verify: bool
) -> tuple[Tensor, Tensor]:
    """Images and the last of the label bytes."""
    content = read_file(folder, file, remedy, verify=verify)
    return decode(content, label_ranges, str(folder / file.name), remedy)


def decode(
    content: bytes, label_ranges: tuple[int, ...], where: str, remedy: str
) -> tuple[Tensor, Tensor]:
    """Records of label bytes (one a range; the last is the class) and 3,072 pixels.

    >>> images, labels = decode(bytes([7]) + bytes(3072), (10,), "a file", "")
    >>> tuple(images.shape), labels.tolist()
    ((1, 3, 32, 32), [7])
    """
    width = len(label_ranges) + PIXELS
    if not content or len(content) % width:
        raise DataError(
            f"{where} is truncated: {len(content):,} bytes are no whole number of records of "
            f"{width:,}: {remedy}"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, width)
    for column, high in enumerate(label_ranges):
        found = int(records[:, column].max())
        if found >= high:
            raise DataError(
                f"{where} was altered: label {found}, expected 0 to {high - 1}: {remedy}"
            )
    images = torch.from_numpy(records[:, len(label_ranges) :].copy()).view(-1, 3, 32, 32)
    return images, torch.from_numpy(records[:, len(label_ranges) - 1].astype(np.int64))
