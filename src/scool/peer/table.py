"""Tables of owners that never see each other's: columns, categories and classes are agreed, so that
the same number means the same to all; means and scales are each owner's own."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scool.data.arrays import from_arrays
from scool.data.federation import Federation
from scool.data.preprocessing import Column, Preprocessing
from scool.data.row_splits import TEST, TRAIN, RowSplit
from scool.data.tables import check_columns, numbers, quoted, read_table, texts
from scool.errors import ConfigError, DataError, nearest

ENDINGS = (".csv", ".tsv", ".parquet")
FIELDS = ("label", "classes", "numbers", "categories")


def check_table(table: Mapping[str, Any]) -> None:
    """Refuse an agreement on columns that no table can keep.

    Raises:
        ConfigError: names the field.
    """
    if not isinstance(table, Mapping):
        raise ConfigError('table is not possible: write [table], and label = "..." below it')
    for name in table:
        if name not in FIELDS:
            raise ConfigError(f"unknown option {name!r} in [table]: {nearest(name, FIELDS)}")
    if not isinstance(table.get("label"), str):
        raise ConfigError('[table] lacks the column to predict: write label = "..."')
    lists = [table.get("classes", []), table.get("numbers", [])]
    categories = table.get("categories", {})
    if not isinstance(categories, Mapping):
        raise ConfigError('categories in [table] is not possible: write sex = ["f", "m"] below it')
    for values in [*lists, *categories.values()]:
        if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
            raise ConfigError(f"{values!r} in [table] is not possible: give a list of texts")
        if len(set(values)) < len(values):
            raise ConfigError(f"{values!r} in [table] is not possible: name each once")
    _check_columns(table)
    if not features_of(table):
        raise ConfigError("[table] has no column to learn from: name some in numbers or categories")


def _check_columns(table: Mapping[str, Any]) -> None:
    """Refuse a column with two meanings, and a single class."""
    columns = [table["label"], *table.get("numbers", []), *table.get("categories", {})]
    twice = [name for place, name in enumerate(columns) if name in columns[:place]]
    if twice:
        raise ConfigError(
            f"column {twice[0]!r} stands twice in [table]: it is the label, a number or a category"
        )
    if len(table.get("classes", [])) == 1:
        raise ConfigError("classes in [table] is not possible: give two or more, or none at all")


def features_of(table: Mapping[str, Any]) -> list[str]:
    """The inputs that the columns become, in their order."""
    categories = sorted(table.get("categories", {}).items())
    return [
        *table.get("numbers", []),
        *(f"{n}={value}" for n, all_ in categories for value in all_),
    ]


def read_own_table(
    path: Path, table: Mapping[str, Any], name: str, test_fraction: float, seed: int
) -> Federation:
    """A federation of one client. Numbers get mean 0 and deviation 1 by the own training rows, in
    which an empty cell becomes the mean; an empty category is none of the agreed ones.

    Raises:
        DataError: a column is not there, or holds what was not agreed on.
    """
    if not table:
        raise ConfigError(
            f"{path} is a table, and the agreement does not say what its columns are: give arrays "
            "(.npz) or module:function, or make an agreement with [table]"
        )
    if not path.exists():
        raise DataError(f"{path} is missing: put it there, or name another in peer.toml (data = )")
    frame = read_table(path).rename(columns=str)
    label, classes = table["label"], list(table.get("classes", []))
    categories = dict(sorted(table.get("categories", {}).items()))
    check_columns(frame, [label, *table.get("numbers", []), *categories], "the agreed column")
    frame = frame[frame[label].notna()].reset_index(drop=True)
    if not len(frame):
        raise DataError(f"{path} has no row with a {label!r}")
    y = _labels(frame[label], label, classes)
    mine = np.zeros(len(frame), int)
    part = RowSplit(test_fraction, 0.0, seed).parts(frame, mine, y if classes else None)
    columns = [_number(frame[n], n, part == TRAIN) for n in table.get("numbers", [])]
    columns += [_category(frame[n], n, list(known)) for n, known in categories.items()]
    prepared = Preprocessing(tuple(columns), (label,), tuple(classes))
    x, arrays = prepared.transform(frame), {}
    for word, number in (("train", TRAIN), ("test", TEST)):
        rows = part == number
        arrays |= {f"x_{word}": torch.from_numpy(x[rows]), f"y_{word}": torch.from_numpy(y[rows])}
    own = from_arrays(
        [arrays],
        name=name,
        task="classification" if classes else "regression",
        num_classes=len(classes) or None,
        class_names=classes or None,
    )
    return replace(own, preprocessing=prepared)


def _labels(column: Any, label: str, classes: list[str]) -> np.ndarray:
    """Numbers of the agreed classes, or targets."""
    if not classes:
        return numbers(column, label).astype(np.float32)
    found = texts(column)
    if odd := sorted(set(found) - set(classes)):
        raise DataError(
            f"label {label!r} has {quoted(odd)}, which are not among the agreed classes: "
            f"{quoted(classes)}"
        )
    return np.array([classes.index(value) for value in found], dtype=np.int64)


def _number(values: Any, name: str, is_train: np.ndarray) -> Column:
    found = numbers(values, name)
    known = found[is_train & ~np.isnan(found)]
    mean, scale = (float(known.mean()), float(known.std()) or 1.0) if len(known) else (0.0, 1.0)
    return Column(name, "number", fill=(mean,), mean=(mean,), scale=(scale,))


def _category(values: Any, name: str, known: list[str]) -> Column:
    found = {value for value in texts(values) if value is not None}
    if odd := sorted(found - set(known)):
        raise DataError(
            f"column {name!r} has {quoted(odd)}, which are not among the agreed categories: "
            f"{quoted(known)}"
        )
    return Column(name, "category", categories=tuple(known), fill=("",))
