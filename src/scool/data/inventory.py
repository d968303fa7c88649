"""Which datasets are present, whether their files are whole, and how to fetch missing ones."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scool.data.catalogue import DATASETS, Dataset, find, spelled
from scool.data.labelled import write_npz
from scool.data.owners import OWNERS
from scool.errors import DataError


class Status(NamedTuple):
    """One row of `scool data list`."""

    name: str
    state: str  # "built in", "present" or "missing"
    place: str  # the files, under the data root
    about: str


def status(root: Path) -> list[Status]:
    """Every dataset and whether its files are there (by name only; see `check`).

    >>> status(Path("nowhere"))[0].state
    'built in'
    """
    rows = []
    for name, dataset in DATASETS.items():
        if not dataset.files:
            rows.append(Status(name, "built in", "", dataset.about))
            continue
        present = all((root / file).exists() for file in dataset.files) or any(
            (root / file).exists() for file in dataset.instead
        )
        state = "present" if present else "missing"
        rows.append(Status(name, state, ", ".join(dataset.files), dataset.about))
    return rows


def check(name: str, root: Path) -> str:
    """Read and verify every file of a dataset; a line for a person when all is well.

    Raises:
        DataError: a file is missing, truncated or altered.
    """
    dataset = find(name)
    if not dataset.files:
        return f"{name}: built in, nothing to check"
    if dataset.read is None:
        federation = OWNERS[spelled(name)].load(root)
        samples = sum(int(getattr(federation, part).mask.sum()) for part in ("train", "test"))
        return f"{name}: ok, {samples:,} samples of {federation.num_clients} clients"
    data = dataset.read(root, verify=True)
    total = len(data.y_train) + len(data.y_test)
    part = "" if total == dataset.num_images else f"; the published set has {dataset.num_images:,}"
    return (
        f"{name}: ok, {len(data.y_train):,} training and {len(data.y_test):,} test images of "
        f"{tuple(data.x_train.shape[1:])}, {dataset.num_classes} classes{part}"
    )


def fetch(name: str, root: Path, load: Callable[[str], Any] | None = None) -> Path | None:
    """Get a dataset from the Hugging Face hub into root/NAME.npz.

    Args:
        name: of the dataset.
        root: the data root.
        load: what turns a hub path into {"train": rows, "test": rows}; default: the `datasets`
            library (extra `hub`).

    Returns:
        The file written, or None for a dataset that is built in.

    Raises:
        DataError: no library, no network, no room on the disk, or no copy on the hub; the message
            says which file to put where.
    """
    dataset = find(name)
    if not dataset.files:
        return None
    if dataset.hub is None:
        entry = OWNERS.get(spelled(name))
        source = f"; it is {entry.source}" if entry else ""
        raise DataError(f"{name} cannot be fetched: {_by_hand(dataset, root)}{source}")
    if load is None:
        try:
            from datasets import load_dataset as load  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
        except ImportError:
            raise DataError(
                f"fetching {name} needs the Hugging Face library: pip install 'scool[hub]', "
                f"or {_by_hand(dataset, root)}"
            ) from None
    assert load is not None
    try:
        splits = load(dataset.hub.path)
    except Exception as error:  # the library has no common type; each means "not from here"
        raise DataError(
            f"{name} could not be fetched ({error}): {_by_hand(dataset, root)}"
        ) from error
    target = root / f"{name}.npz"
    arrays = convert(splits, dataset.hub.image, dataset.hub.label)
    try:
        write_npz(target, arrays)
    except OSError as error:
        raise DataError(
            f"{target} cannot be written ({error.strerror}): free space or choose another data_dir"
        ) from None
    return target


def convert(
    splits: Mapping[str, Iterable[Mapping[str, Any]]], image: str, label: str
) -> dict[str, np.ndarray]:
    """Rows of images and labels as the arrays of an .npz that the readers accept.

    >>> rows = [{"img": np.zeros((2, 2, 3), np.uint8), "label": 1}]
    >>> convert({"train": rows, "test": rows}, "img", "label")["x_train"].shape
    (1, 2, 2, 3)
    """
    arrays: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        if part not in splits:
            raise DataError(f"the dataset on the hub has no part {part!r}: it is another dataset")
        images: list[np.ndarray] = []
        labels: list[int] = []
        for row in splits[part]:
            if image not in row or label not in row:
                raise DataError(
                    f"rows on the hub have columns {', '.join(row)}, expected {image} and {label}"
                )
            images.append(np.asarray(row[image], dtype=np.uint8))
            labels.append(int(row[label]))
        arrays[f"x_{part}"] = np.stack(images)
        arrays[f"y_{part}"] = np.array(labels, dtype=np.uint8)
    return arrays


def _by_hand(dataset: Dataset, root: Path) -> str:
    files = ", ".join(str(root / file) for file in dataset.files)
    other = ", ".join(str(root / file) for file in dataset.instead)
    return f"put the files {files} there by hand (or {other})"
