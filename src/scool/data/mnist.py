"""MNIST and Fashion-MNIST: the four IDX files, packed (.gz) or not."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from scool.data.files import DataFile, read_file
from scool.data.labelled import Labelled, read_npz
from scool.errors import DataError

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_RAW_SIZES = (16 + 60_000 * 784, 8 + 60_000, 16 + 10_000 * 784, 8 + 10_000)

# MD5 of the .gz files, as torchvision and the publishers list them.
MNIST_MD5 = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_MD5 = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def read_mnist(root: Path, *, verify: bool = True) -> Labelled:
    """IDX files under root/mnist or root/MNIST/raw (torchvision's place), or root/mnist.npz."""
    names = tuple(str(digit) for digit in range(10))
    return _read(root, ("mnist", "MNIST/raw"), MNIST_MD5, verify)._replace(class_names=names)


def read_fashion_mnist(root: Path, *, verify: bool = True) -> Labelled:
    """IDX files under root/fashion-mnist or root/FashionMNIST/raw, or root/fashion-mnist.npz."""
    places = ("fashion-mnist", "FashionMNIST/raw")
    return _read(root, places, FASHION_MD5, verify)._replace(class_names=FASHION_NAMES)


def _read(root: Path, places: tuple[str, ...], md5: tuple[str, ...], verify: bool) -> Labelled:
    name = places[0]
    remedy = (
        f"put {', '.join(f'{file}.gz' for file in FILES)} into {root / name}, "
        f"or run `scool data fetch {name}`"
    )
    folder = next((root / place for place in places if (root / place).exists()), root / name)
    packed = root / f"{name}.npz"
    if packed.exists() and not folder.exists():
        return read_npz(packed, 10, (28, 28), remedy)
    arrays = []
    for file, size, checksum in zip(FILES, _RAW_SIZES, md5, strict=True):
        arrays.append(_read_idx(folder, file, size, checksum, remedy, verify))
    x_train, y_train, x_test, y_test = (torch.from_numpy(array) for array in arrays)
    for part, x, y in (("train", x_train, y_train), ("t10k", x_test, y_test)):
        if len(x) != len(y) or int(y.max()) > 9:
            raise DataError(
                f"{folder} {part} files do not fit: {len(x)} images, {len(y)} labels up to "
                f"{int(y.max())}: {remedy}"
            )
    return Labelled(x_train[:, None], y_train.long(), x_test[:, None], y_test.long())


def _read_idx(
    folder: Path, name: str, size: int, md5: str, remedy: str, verify: bool
) -> np.ndarray:
    """The packed file is checked by MD5, the plain one by size; both by their header."""
    if (folder / f"{name}.gz").exists() or not (folder / name).exists():
        content = read_file(folder, DataFile(f"{name}.gz", md5=md5), remedy, verify=verify)
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{folder / name}.gz cannot be unpacked ({error}): {remedy}") from None
    else:
        content = read_file(folder, DataFile(name, size), remedy, verify=verify)
    return decode(content, 3 if "images" in name else 1, str(folder / name), remedy)


def decode(content: bytes, dims: int, where: str, remedy: str) -> np.ndarray:
    """An IDX file of bytes: magic number, `dims` big-endian sizes, then the numbers.

    >>> decode(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6]), 1, "a file", "").tolist()
    [5, 6]
    """
    header = 4 * (1 + dims)
    magic = 0x0800 + dims
    if len(content) < header or struct.unpack(">I", content[:4])[0] != magic:
        raise DataError(f"{where} is no IDX file: it does not begin with {magic}: {remedy}")
    shape = struct.unpack(f">{dims}I", content[4:header])
    expected = header + int(np.prod(shape))
    if len(content) != expected or 0 in shape:
        raise DataError(
            f"{where} is truncated: expected {expected:,} bytes for shape {shape}, "
            f"found {len(content):,}: {remedy}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()
