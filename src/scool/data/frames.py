"""From a table with a column that names each row's client (pandas, CSV or Parquet) to a
federation."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from scool.data.arrays import from_arrays
from scool.data.federation import Federation, Task
from scool.data.labels import check_classes, classes_of, kind_of_classes, numbered, task_of
from scool.data.preprocessing import (
    Missing,
    Preprocessing,
    Rows,
    Scale,
    as_targets,
    fit_columns,
    fit_targets,
    ordered,
)
from scool.data.row_splits import TEST, TRAIN, VAL, RowSplit
from scool.data.table_doubts import warn_alike, warn_ids, warn_shared_groups
from scool.data.tables import as_table, check_columns, numbers, quoted, texts
from scool.data.usable_rows import without_gaps, without_small
from scool.errors import DataError, check_kind, require, unknown

_PARTS = {"train": TRAIN, "val": VAL, "test": TEST}


def from_frame(
    data: Any,
    client: str,
    label: str | Sequence[str],
    *,
    task: Task | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: Missing = "refuse",
    min_rows: int = 1,
    scale: Scale = "common",
    time: str | None = None,
    group: str | None = None,
    split: str | None = None,
    test_fraction: float = 0.2,
    val_fraction: float = 0.0,
    seed: int = 0,
    classes: Tensor | Literal["all", "own"] | None = None,
    positive: str | None = None,
    name: str | None = None,
) -> Federation:
    """A federation from one table in which a column names each row's client.

    What was fitted on the training rows (categories, fill values, means and scales) is kept in
    `Federation.preprocessing`, so that `Result.predict(client, table)` takes tables of the same
    form. `Federation.notes` describes in sentences what was done.

    Args:
        data: a pandas table, the path of a CSV or Parquet file, or a table of another library that
            has `to_pandas` or the interchange protocol.
        client: the column that names each row's client.
        label: the column to predict; several for regression with several targets.
        task: `classification` or `regression`; default: regression for numbers with a fraction.
        features: the columns to learn from; default: all others.
        drop: columns to leave out.
        categorical: columns of numbers that are names of categories; texts always are.
        missing: empty cells: `refuse` them, `drop` their rows, or fill them with the mean (or the
            most frequent category) of the `client`'s own or of the `common` training rows.
        min_rows: clients with fewer rows are left out.
        scale: numbers get mean 0 and standard deviation 1 over the `common` training rows or those
            of the `client`, or stay as they are (`none`). Targets of regression are scaled by the
            common training rows unless it is `none`; scores and predictions are in their unit.
        time: a column of dates or numbers: the last rows of each client are its test rows.
        group: a column such as the patient: no group is in two parts.
        split: a column with train, val or test.
        test_fraction: share of each client's rows for the test; of classes about equal shares.
        val_fraction: share of the remaining rows for validation.
        seed: for the choice of these rows.
        classes: which classes a client's model may answer with: `all` (default), its `own`, or
            (K, C) bool.
        positive: of two classes the one that F1 counts; default: the last by number or letter.
        name: what reports call it; default: the name of the file.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"site": list("aabb") * 5, "age": [40, 50] * 10, "ill": [0, 1] * 10})
    >>> from_frame(table, client="site", label="ill").train.sizes.tolist()
    [8, 8]
    """
    check_kind("client", client, str)
    check_kind("min_rows", min_rows, int)
    require(min_rows >= 1, "min_rows", min_rows, "give 1 (all clients) or more")
    _check_options(task, missing, scale)
    how = RowSplit(test_fraction, val_fraction, seed, time, group, split)
    if name is None:
        name = Path(data).name.split(".")[0] if isinstance(data, str | Path) else "table"
    labels = (label,) if isinstance(label, str) else tuple(label)
    frame, names, notes = _chosen(
        as_table(data, [client]), client, labels, features, drop, categorical, how
    )
    frame, more = without_gaps(frame, client, labels, names, missing)
    frame, small = without_small(frame, client, min_rows)
    notes += [*more, *small]
    who = texts(frame[client])
    clients = list(ordered(sorted(set(who))))
    ids = np.array([clients.index(w) for w in who]) if len(clients) < 50 else numbered(who, clients)
    chosen, because = task_of(frame, labels, task)
    notes += because
    y, class_names = None, ()
    if chosen == "classification":
        y, class_names, more = classes_of(frame, labels[0], positive)
        notes += more
    elif positive is not None:
        raise DataError(f"positive = {positive!r} is a class, and this is regression: leave it out")
    part = how.parts(frame, ids, y)
    rows = Rows(ids, part == TRAIN, len(clients))
    _check_training(rows, clients)
    if y is not None:
        check_classes(y[rows.is_train], class_names, labels[0])
    columns, more = fit_columns(frame, names, categorical, rows, missing, scale)
    _warn_doubts(frame, clients, ids, class_names, names, group)
    kind = kind_of_classes(frame[labels[0]]) if class_names else ""
    prepared = Preprocessing(columns, labels, class_names, class_kind=kind)
    if y is None:
        values = np.stack([numbers(frame[target], target) for target in labels], axis=1)
        mean, spread = fit_targets(values, rows.is_train, scale)
        prepared = replace(prepared, target_mean=mean, target_scale=spread)
        targets = as_targets(values, mean, spread)
    else:
        targets = torch.from_numpy(y)
    x = torch.from_numpy(_inputs(prepared, frame, ids))
    own = [_of_client(x, targets, part, ids == number) for number in range(len(clients))]
    federation = from_arrays(
        own,
        name=name,
        task=chosen,
        num_classes=len(class_names) or None,
        classes=classes,
        test_fraction=test_fraction if not (time or group or split) else 0,
        client_names=clients,
        class_names=class_names or None,
    )
    return replace(federation, preprocessing=prepared, notes=(*notes, *more))


def _check_options(task: Any, missing: str, scale: str) -> None:
    for field, value, known in (
        ("task", task, (None, "classification", "regression")),
        ("missing", missing, ("refuse", "drop", "client", "common")),
        ("scale", scale, ("common", "client", "none")),
    ):
        if value not in known:
            unknown(field, str(value), [k for k in known if k])


def _chosen(
    frame: Any,
    client: str,
    labels: tuple[str, ...],
    features: Sequence[str] | None,
    drop: Sequence[str],
    categorical: Sequence[str],
    how: RowSplit,
) -> tuple[Any, list[str], list[str]]:
    """The table with its columns by name, and those of the features."""
    for field, value in (("features", features), ("drop", drop), ("categorical", categorical)):
        if isinstance(value, str):
            raise DataError(f"{field} = {value!r} is a text: give a list of columns, [{value!r}]")
    if not len(frame):
        raise DataError("the table has no rows: give one with a row per sample")
    check_columns(frame, [client], "client")
    check_columns(frame, labels, "label")
    check_columns(frame, how.columns, "the column to split by,")
    check_columns(frame, [*(features or ()), *drop, *categorical], "column")
    roles = [client, *labels, *how.columns]
    if twice := [c for c in roles if roles.count(c) > 1]:
        raise DataError(
            f"column {twice[0]!r} cannot be two of client, label, time, group and split: name "
            "another one"
        )
    taken = set(roles)
    if features is None:
        names = [str(c) for c in frame.columns if c not in taken and c not in drop]
    else:
        names = [c for c in features if c not in drop]
        if both := [c for c in names if c in (client, *labels)]:
            raise DataError(
                f"column {both[0]!r} is the client or the label: take it out of features"
            )
    if not names:
        raise DataError("no column is left to learn from: name some in features")
    return frame.reset_index(drop=True), names, []


def _warn_doubts(
    frame: Any,
    clients: Sequence[str],
    ids: np.ndarray,
    class_names: Sequence[str],
    names: Sequence[str],
    group: str | None,
) -> None:
    warn_alike(clients, "clients")
    warn_alike(class_names, "classes")
    warn_ids(frame, names)
    if group is not None:
        warn_shared_groups(frame, ids, group)


def _check_training(rows: Rows, clients: list[str]) -> None:
    """A given split may leave a client without training rows."""
    sizes = np.bincount(rows.client[rows.is_train], minlength=len(clients))
    if (sizes == 0).any():
        none = [name for name, size in zip(clients, sizes, strict=True) if not size]
        raise DataError(
            f"clients {quoted(none)} have no training row: mark some as train, or leave them out"
        )


def _inputs(prepared: Preprocessing, frame: Any, ids: np.ndarray) -> np.ndarray:
    """(n, features): every row in the numbers of its client."""
    out = np.empty((len(frame), len(prepared.features)), dtype=np.float32)
    if all(len(v) <= 1 for c in prepared.columns for v in (c.fill, c.mean)):
        return prepared.transform(frame)
    for client in range(int(ids.max()) + 1):
        rows = ids == client
        out[rows] = prepared.transform(frame[rows], client)
    return out


def _of_client(x: Tensor, y: Tensor, part: np.ndarray, mine: np.ndarray) -> dict[str, Tensor]:
    """The three parts of a client, some of them empty."""
    out: dict[str, Tensor] = {}
    for word, number in _PARTS.items():
        rows = torch.from_numpy(np.flatnonzero(mine & (part == number)))
        out[f"x_{word}"], out[f"y_{word}"] = x[rows], y[rows]
    return out
