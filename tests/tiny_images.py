"""Tiny files in the layout of the image datasets: a faint pattern a class, and noise."""

from pathlib import Path

import numpy as np

from scool.data import images
from scool.data.images import MINI_FOLDER


def _images(labels: np.ndarray, side: int) -> np.ndarray:
    """(n, 3 side side) uint8; the same labels give the same images."""
    rng = np.random.default_rng(len(labels))
    pattern = np.random.default_rng(0).integers(0, 128, (int(labels.max()) + 1, 3 * side * side))
    return (pattern[labels] + rng.integers(0, 128, (len(labels), pattern.shape[1]))).astype("uint8")


def write_cifar10(root: Path, per_class: int = 10, tests: int = 2) -> Path:
    """Five training files and a test file; `per_class` is a multiple of 5."""
    folder = root / images.CIFAR10_FOLDER
    folder.mkdir(parents=True)
    for file in (*images.CIFAR10_TRAIN, images.CIFAR10_TEST):
        count = tests if file is images.CIFAR10_TEST else per_class // 5
        labels = np.repeat(np.arange(10), count)
        records = np.concatenate([labels[:, None], _images(labels, 32)], axis=1)
        (folder / file.name).write_bytes(records.astype(np.uint8).tobytes())
    return root


def write_cifar100(root: Path) -> Path:
    """One image a class in either file, coarse and fine labels."""
    folder = root / images.CIFAR100_FOLDER
    folder.mkdir(parents=True)
    labels = np.arange(100)
    records = np.concatenate([labels[:, None] // 5, labels[:, None], _images(labels, 32)], axis=1)
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(records.astype(np.uint8).tobytes())
    return root


def write_mini_imagenet(root: Path) -> Path:
    """One training image and one test image a class, as arrays."""
    folder = root / MINI_FOLDER
    folder.mkdir(parents=True)
    labels = np.repeat(np.arange(100, dtype=np.uint8), 2)
    np.save(folder / "images.npy", _images(labels, 84).reshape(-1, 84, 84, 3))
    np.save(folder / "labels.npy", labels)
    np.save(folder / "is_train_of_class.npy", np.tile([True, False], 100))
    (folder / "wnids.txt").write_text("".join(f"n{c:08d}\n" for c in range(100)))
    return root
