"""Readers of the published image datasets: CIFAR, MNIST, Fashion-MNIST and Mini-ImageNet."""

import csv
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scool.data.labelled import (
    DataFile,
    Labelled,
    check_arrays,
    planes,
    read_file,
    read_npz,
)
from scool.errors import DataError

# CIFAR-10 and CIFAR-100 in the binary layout: label bytes, then red, green and blue planes.
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
    parts = [_read_cifar(folder, file, (10,), remedy, verify) for file in CIFAR10_TRAIN]
    x_test, y_test = _read_cifar(folder, CIFAR10_TEST, (10,), remedy, verify)
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
    x_train, y_train = _read_cifar(folder, CIFAR100_TRAIN, (20, 100), remedy, verify)
    x_test, y_test = _read_cifar(folder, CIFAR100_TEST, (20, 100), remedy, verify)
    return Labelled(x_train, y_train, x_test, y_test)


def _read_cifar(
    folder: Path, file: DataFile, label_ranges: tuple[int, ...], remedy: str, verify: bool
) -> tuple[Tensor, Tensor]:
    """Images and the last of the label bytes."""
    content = read_file(folder, file, remedy, verify=verify)
    return decode_cifar(content, label_ranges, str(folder / file.name), remedy)


def decode_cifar(
    content: bytes, label_ranges: tuple[int, ...], where: str, remedy: str
) -> tuple[Tensor, Tensor]:
    """Records of label bytes (one per range; the last is the class) and 3,072 pixels.

    >>> images, labels = decode_cifar(bytes([7]) + bytes(3072), (10,), "a file", "")
    >>> tuple(images.shape), labels.tolist()
    ((1, 3, 32, 32), [7])
    """
    width = len(label_ranges) + PIXELS
    if not content or len(content) % width:
        raise DataError(
            f"{where} is truncated: {len(content):,} bytes are not a whole number of records of "
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


# MNIST and Fashion-MNIST: the four IDX files, packed (.gz) or not.
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_SIZES = (16 + 60_000 * 784, 8 + 60_000, 16 + 10_000 * 784, 8 + 10_000)

# MD5 of the content, so that a copy packed by somebody else is accepted.
MNIST_MD5 = (
    "6bbc9ace898e44ae57da46a324031adb",
    "a25bea736e30d166cdddb491f175f624",
    "2646ac647ad5339dbf082846283269ea",
    "27ae3e4e09519cfbb04c329615203637",
)
FASHION_MD5 = (
    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "9018921c3c673c538a1fc5bad174d6f9",
    "8181f5470baa50b63fa0f6fddb340f0a",
    "15d484375f8d13e6eb1aabb0c3f46965",
)
FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def read_mnist(root: Path, *, verify: bool = True) -> Labelled:
    """IDX files under root/mnist or root/MNIST/raw (torchvision's place), or root/mnist.npz."""
    names = tuple(str(digit) for digit in range(10))
    return _read_idx_files(root, ("mnist", "MNIST/raw"), MNIST_MD5, verify)._replace(
        class_names=names
    )


def read_fashion_mnist(root: Path, *, verify: bool = True) -> Labelled:
    """IDX files under root/fashion-mnist or root/FashionMNIST/raw, or root/fashion-mnist.npz."""
    places = ("fashion-mnist", "FashionMNIST/raw")
    return _read_idx_files(root, places, FASHION_MD5, verify)._replace(class_names=FASHION_NAMES)


def _read_idx_files(
    root: Path, places: tuple[str, ...], md5: tuple[str, ...], verify: bool
) -> Labelled:
    name = places[0]
    remedy = (
        f"put {', '.join(f'{file}.gz' for file in IDX_FILES)} into {root / name}, "
        f"or run `scool data fetch {name}`"
    )
    folder = next((root / place for place in places if (root / place).exists()), root / name)
    packed = root / f"{name}.npz"
    if packed.exists() and not folder.exists():
        return read_npz(packed, 10, (28, 28), remedy)
    files = map(DataFile, IDX_FILES, _SIZES, md5)
    arrays = [_read_idx(folder, file, remedy, verify) for file in files]
    x_train, y_train, x_test, y_test = (torch.from_numpy(array) for array in arrays)
    for part, x, y in (("train", x_train, y_train), ("t10k", x_test, y_test)):
        if len(x) != len(y) or int(y.max()) > 9:
            raise DataError(
                f"{folder} {part} files do not fit: {len(x)} images, {len(y)} labels up to "
                f"{int(y.max())}: {remedy}"
            )
    return Labelled(x_train[:, None], y_train.long(), x_test[:, None], y_test.long())


def _read_idx(folder: Path, file: DataFile, remedy: str, verify: bool) -> np.ndarray:
    """The file, packed or plain; its content is checked by MD5 and by its header."""
    is_plain = (folder / file.name).exists() and not (folder / f"{file.name}.gz").exists()
    content = read_file(folder, file, remedy, verify=verify, packed=not is_plain)
    return decode_idx(content, 3 if "images" in file.name else 1, str(folder / file.name), remedy)


def decode_idx(content: bytes, dims: int, where: str, remedy: str) -> np.ndarray:
    """An IDX file of bytes: magic number, `dims` big-endian sizes, then the numbers.

    >>> decode_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6]), 1, "a file", "").tolist()
    [5, 6]
    """
    header = 4 * (1 + dims)
    magic = 0x0800 + dims
    if len(content) < header or struct.unpack(">I", content[:4])[0] != magic:
        raise DataError(f"{where} is not an IDX file: it does not begin with {magic}: {remedy}")
    shape = struct.unpack(f">{dims}I", content[4:header])
    expected = header + int(np.prod(shape))
    if len(content) != expected or 0 in shape:
        raise DataError(
            f"{where} is truncated: expected {expected:,} bytes for shape {shape}, "
            f"found {len(content):,}: {remedy}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()


# Mini-ImageNet as ordinary 100-way classification: 500 training and 100 test images per class.
# The few-shot lists of Ravi and Larochelle split by class; for personal models all 100 classes are
# put together and each class is split within. No official checksum exists for the images.
MINI_FOLDER = "mini_imagenet"
MINI_LISTS = ("train.csv", "val.csv", "test.csv")
SIDE = 84
TRAIN_SHARE = 5 / 6  # 500 of 600


def read_mini_imagenet(root: Path, *, verify: bool = True) -> Labelled:
    """Arrays (images.npy, labels.npy, is_train_of_class.npy) or images/ with the three CSV lists.

    Args:
        root: the data root; all lies in root/mini_imagenet.
        verify: refuse anything but 100 classes of 600 images.
    """
    folder = root / MINI_FOLDER
    remedy = (
        f"put images.npy, labels.npy and is_train_of_class.npy into {folder}, or the folder "
        f"images/ with {', '.join(MINI_LISTS)} (columns filename, label)"
    )
    if (folder / "images.npy").exists() or not (folder / MINI_LISTS[0]).exists():
        data = _from_arrays(folder, remedy)
    else:
        data = _from_folder(folder, remedy)
    total = len(data.y_train) + len(data.y_test)
    if verify and total != 60_000:
        raise DataError(
            f"{folder} holds {total:,} images, expected 60,000: {remedy}; "
            "for a subset on purpose pass verify_checksums = False"
        )
    return data


def _from_arrays(folder: Path, remedy: str) -> Labelled:
    images = _load_array(folder / "images.npy", remedy, mmap_mode="r")
    labels = _load_array(folder / "labels.npy", remedy)
    is_train = _load_array(folder / "is_train_of_class.npy", remedy)
    check_arrays(str(folder), images, labels, 100, remedy)
    if is_train.shape != labels.shape or is_train.dtype != np.bool_:
        raise DataError(f"{folder}/is_train_of_class.npy is not one bool per image: {remedy}")
    names_file = folder / "wnids.txt"
    names = tuple(names_file.read_text().split()) if names_file.exists() else None
    return _cut(images, labels, is_train, names)


def _load_array(path: Path, remedy: str, **options: Any) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False, **options)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: {remedy}") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} is truncated or altered ({error}): {remedy}") from None


def _cut(
    images: np.ndarray, labels: np.ndarray, is_train: np.ndarray, names: tuple[str, ...] | None
) -> Labelled:
    train, test = np.flatnonzero(is_train), np.flatnonzero(~is_train)
    y = torch.from_numpy(labels.astype(np.int64))
    return Labelled(planes(images, train), y[train], planes(images, test), y[test], names)


def _from_folder(folder: Path, remedy: str) -> Labelled:
    """Classes are numbered by WordNet id; within a class, in the order of the lists, the first
    five sixths are for training."""
    listed: list[tuple[str, str]] = []
    for name in MINI_LISTS:
        listed.extend(_read_list(folder / name, remedy))
    names = tuple(sorted({label for _, label in listed}))
    number = {label: position for position, label in enumerate(names)}
    labels = np.array([number[label] for _, label in listed])
    is_train = np.zeros(len(labels), dtype=bool)
    for label in range(len(names)):
        own = np.flatnonzero(labels == label)
        is_train[own[: max(1, int(len(own) * TRAIN_SHARE + 1e-9))]] = True
    images = np.stack([_read_image(folder / "images" / file, remedy) for file, _ in listed])
    return _cut(images, labels, is_train, names)


def _read_list(path: Path, remedy: str) -> list[tuple[str, str]]:
    try:
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        found = [(row["filename"], row["label"]) for row in rows]
    except FileNotFoundError:
        raise DataError(f"{path} is missing: {remedy}") from None
    except (KeyError, UnicodeDecodeError, csv.Error):
        raise DataError(f"{path} has no columns filename, label: {remedy}") from None
    if not found or any(not file or not label for file, label in found):
        raise DataError(f"{path} has no images or a row without filename or label: {remedy}")
    return found


def _read_image(path: Path, remedy: str) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError:
        raise DataError("reading image files needs Pillow: pip install 'scool[images]'") from None
    try:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
    except FileNotFoundError:
        raise DataError(f"{path} is missing: {remedy}") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} is truncated or altered ({error}): {remedy}") from None
    if rgb.size != (SIDE, SIDE):
        rgb = rgb.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(rgb)
