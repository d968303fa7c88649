"""Mini-ImageNet as ordinary 100-way classification: 500 training and 100 test images a class.

The few-shot lists of Ravi and Larochelle split by class; for personal models all 100 classes are
put together and each class is split within. No official checksum exists for the images.
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scool.data.labelled import Labelled, check_arrays, planes
from scool.errors import DataError

FOLDER = "mini_imagenet"
LISTS = ("train.csv", "val.csv", "test.csv")
SIDE = 84
TRAIN_SHARE = 5 / 6  # 500 of 600


def read_mini_imagenet(root: Path, *, verify: bool = True) -> Labelled:
    """Arrays (images.npy, labels.npy, is_train_of_class.npy) or images/ with the three CSV lists.

    Args:
        root: the data root; all lies in root/mini_imagenet.
        verify: refuse anything but 100 classes of 600 images.
    """
    folder = root / FOLDER
    remedy = (
        f"put images.npy, labels.npy and is_train_of_class.npy into {folder}, or the folder "
        f"images/ with {', '.join(LISTS)} (columns filename, label)"
    )
    if (folder / "images.npy").exists() or not (folder / LISTS[0]).exists():
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
    images = _load(folder / "images.npy", remedy, mmap_mode="r")
    labels = _load(folder / "labels.npy", remedy)
    is_train = _load(folder / "is_train_of_class.npy", remedy)
    check_arrays(str(folder), images, labels, 100, remedy)
    if is_train.shape != labels.shape or is_train.dtype != np.bool_:
        raise DataError(f"{folder}/is_train_of_class.npy is no bool for every image: {remedy}")
    names_file = folder / "wnids.txt"
    names = tuple(names_file.read_text().split()) if names_file.exists() else None
    return _cut(images, labels, is_train, names)


def _load(path: Path, remedy: str, **options: Any) -> np.ndarray:
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
    for name in LISTS:
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
