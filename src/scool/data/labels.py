"""What is to be learned from a table: the task, the classes and their names."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from scool.data.federation import Task
from scool.data.preprocessing import ClassKind, ordered
from scool.data.tables import quoted, texts
from scool.errors import DataError, need, require, unknown

FEW_CLASSES = 20
"""Up to this many different whole numbers stored as floats are taken for classes."""


def numbered(who: np.ndarray, clients: list[str]) -> np.ndarray:
    number = {name: position for position, name in enumerate(clients)}
    return np.array([number[name] for name in who])


def task_of(frame: Any, labels: tuple[str, ...], task: Task | None) -> tuple[Task, list[str]]:
    """The task: as given, else judged by the labels."""
    pd = need("pandas", "a table")

    if len(labels) != 1:
        require(len(labels) > 0, "label", labels, "give the name of a column")
        if task == "classification":
            raise DataError(f"label = {labels} are several columns: classification takes one")
        return "regression", []
    column = frame[labels[0]]
    if task is None:
        _warn_many_classes(column, labels[0])
    if task == "regression" or not pd.api.types.is_float_dtype(column):
        return task or "classification", []
    is_whole, count = bool((column % 1 == 0).all()), column.nunique()
    if task == "classification":
        if not is_whole:
            raise DataError(
                f"label {labels[0]!r} holds numbers such as {column[column % 1 != 0].iloc[0]}: "
                "classes are texts or whole numbers; give task='regression', or round them"
            )
        return task, []
    if is_whole and count <= FEW_CLASSES:
        warnings.warn(
            f"label {labels[0]!r} holds {count} whole numbers stored with a point and is taken for "
            "classes: give task='classification' to say so, or task='regression'",
            stacklevel=3,
        )
        return "classification", []
    return "regression", [f"label {labels[0]!r} holds {count} different numbers: regression"]


def _warn_many_classes(column: Any, label: str) -> None:
    """Warn that texts or whole numbers, taken for classes, may be quantities."""
    pd = need("pandas", "a table")

    is_number, count = pd.api.types.is_integer_dtype(column), column.nunique()
    is_text = not pd.api.types.is_numeric_dtype(column)
    if count > FEW_CLASSES and (is_number or (is_text and count > len(column) // 2)):
        warnings.warn(
            f"label {label!r} has {count} different values in {len(column)} rows, each a class "
            "of its own: give task='regression' if they are quantities, or "
            "task='classification' to say so",
            stacklevel=4,
        )


def classes_of(
    frame: Any, label: str, positive: str | None
) -> tuple[np.ndarray, tuple[str, ...], list[str]]:
    """(n,) the number of each row's class, the names of the classes in their order, and what a
    person should know about it. Of two classes the positive one is the last."""
    found = texts(frame[label])
    names = ordered(sorted(set(found)))
    if positive is not None:
        if str(positive) not in names:
            unknown("positive", str(positive), names)
        if len(names) > 2:
            raise DataError(
                f"positive = {positive!r} needs two classes, and label {label!r} has {len(names)}: "
                "leave it out; F1 is the mean over the classes then"
            )
        names.sort(key=lambda name: name == str(positive))
    notes: list[str] = []
    is_text = kind_of_classes(frame[label]) == "text"
    if len(names) == 2 and positive is None and is_text:
        notes.append(
            f"F1 counts {names[1]!r} of {label!r} as the positive class; positive={names[0]!r} "
            "makes it the other one"
        )
    return numbered(found, names).astype(np.int64), tuple(names), notes


def kind_of_classes(column: Any) -> ClassKind:
    """What the values of a label are, so that predictions can be compared with it."""
    pd = need("pandas", "a table")

    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.cat.categories.to_series()
    known = column.dropna()
    if all(isinstance(value, bool | np.bool_) for value in known):
        return "switch"
    return "whole" if pd.api.types.is_numeric_dtype(known) else "text"


def check_classes(y: np.ndarray, names: Sequence[str], label: str) -> None:
    """Refuse classes without a training row."""
    unseen = [name for number, name in enumerate(names) if number not in set(y.tolist())]
    if unseen:
        raise DataError(
            f"label {label!r} has {len(unseen)} classes without a training row ({quoted(unseen)}): "
            "give them more rows, leave theirs out, or say task='regression' if these are "
            "quantities"
        )
