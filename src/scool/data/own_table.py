"""The options of a table of your own on the command line, and the federation they make."""

import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import Annotated

import tyro

from scool.data.federation import Federation, Task
from scool.data.frames import from_frame
from scool.data.labels import task_of
from scool.data.preprocessing import Missing, Scale
from scool.data.tables import check_columns, digest_of, read_table, texts
from scool.errors import ConfigError, DataError, Note


@dataclass(frozen=True)
class TableOptions:
    """What the columns of the file of --data mean."""

    client: str = ""
    """For --data: the column that names each row's client."""
    label: tuple[str, ...] = ()
    """For --data: the column to predict; several for regression with several targets."""
    features: tuple[str, ...] = ()
    """For --data: the columns to learn from; default: all others."""
    drop: tuple[str, ...] = ()
    """For --data: columns to leave out."""
    categorical: tuple[str, ...] = ()
    """For --data: columns of numbers that are names of categories; texts always are."""
    missing: Missing = "refuse"
    """For --data: refuse empty cells, drop their rows, or fill them by client or common rows."""
    min_rows: int = 1
    """For --data: clients with fewer rows are left out."""
    scale: Scale = "common"
    """For --data: standardise numbers by the common training rows, by the client's, or not."""
    time: str = ""
    """For --data: a column of dates or numbers; the last rows of each client are its test rows."""
    group: str = ""
    """For --data: a column such as the patient; no group is in two parts."""
    split: str = ""
    """For --data: a column with train, val or test."""
    positive: str = ""
    """For --data: of two classes the one that F1 counts; default: the last by number or letter."""
    test_fraction: Annotated[float, tyro.conf.Suppress] = 0.0
    """As in `DataConfig`; older records have it here."""
    sha256: Annotated[str, tyro.conf.Suppress] = ""
    """SHA-256 of the file when the run began: a run is not continued with another file."""
    count: Annotated[int, tyro.conf.Suppress] = 0
    """Clients in the file."""


def looked_at(path: str, table: TableOptions, task: Task | None) -> tuple[TableOptions, Task]:
    """The options completed by what the file says, with the task if it was not given.

    Raises:
        ConfigError: an option is missing.
        DataError: the file cannot be used.
    """
    _check_named(path, table)
    digest = digest_of(path)
    frame = read_table(path, [table.client])
    check_columns(frame, [table.client], "client")
    check_columns(frame, table.label, "label")
    sizes = Counter(texts(frame[table.client].dropna()))
    count = sum(size >= table.min_rows for size in sizes.values())
    found, notes = task_of(frame[list(table.label)].dropna(), table.label, task)
    for words in notes:
        warnings.warn(words, Note, stacklevel=2)
    return replace(table, sha256=digest, count=count), found


def _check_named(path: str, table: TableOptions) -> None:
    for field in ("client", "label"):
        if not getattr(table, field):
            known = ", ".join(map(str, read_table(path).columns))
            raise ConfigError(
                f"{field} is missing: say which column of {path} it is with --{field} COLUMN; it "
                f"has {known}"
            )


def load_table(
    path: str,
    table: TableOptions,
    task: Task,
    val_fraction: float,
    test_fraction: float,
    seed: int,
) -> Federation:
    """The federation of a file; what was done to its rows is said as notes.

    Raises:
        DataError: the file is missing, or is not the one that the options were made for.
    """
    _check_named(path, table)
    if table.sha256 and (found := digest_of(path)) != table.sha256:
        raise DataError(
            f"{path} has changed: its SHA-256 begins with {found[:12]}, and that of the file of "
            f"this record with {table.sha256[:12]}; bring back that file, or start a new run"
        )
    federation = from_frame(
        path,
        table.client,
        table.label[0] if len(table.label) == 1 else table.label,
        task=task,
        features=table.features or None,
        drop=table.drop,
        categorical=table.categorical,
        missing=table.missing,
        min_rows=table.min_rows,
        scale=table.scale,
        time=table.time or None,
        group=table.group or None,
        split=table.split or None,
        positive=table.positive or None,
        test_fraction=test_fraction or table.test_fraction or 0.2,
        val_fraction=val_fraction,
        seed=seed,
    )
    for words in federation.notes:
        warnings.warn(words, Note, stacklevel=2)
    return federation
