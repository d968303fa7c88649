"""How a table becomes numbers: fitted on training rows, and kept with the federation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from scool.data.tables import Kind, as_table, kind_of, numbers, quoted, texts
from scool.errors import ConfigError, DataError, first_few, nearest, need

Missing = Literal["refuse", "drop", "client", "common"]
Scale = Literal["common", "client", "none"]
ClassKind = Literal["", "text", "whole", "switch"]


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers: (x - mean) / scale, or a switch per category.

    `fill`, `mean` and `scale` have one entry for all clients, one per client, or none where nothing
    is filled or scaled.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    fill: tuple[float | str, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs that it becomes."""
        return tuple(f"{self.name}={c}" for c in self.categories) or (self.name,)

    def only(self, client: int) -> "Column":
        """The same for one client only."""
        own = {
            name: values[client : client + 1]
            for name in ("fill", "mean", "scale")
            if len(values := getattr(self, name)) > 1
        }
        return replace(self, **own)

    def transform(self, values: Any, client: int) -> np.ndarray:
        """(n, features) of a pandas column; an unknown category is all zeros."""
        raw = texts(values) if self.kind == "category" else numbers(values, self.name)
        absent = values.isna().to_numpy()
        if absent.any():
            self._refuse_missing(np.flatnonzero(absent).tolist())
            raw[absent] = _of(self.fill, client)
        if self.kind == "category":
            return np.stack([raw == category for category in self.categories], axis=1).astype(float)
        if self.mean:
            raw = (raw - _of(self.mean, client)) / _of(self.scale, client)
        return raw[:, None]

    def _refuse_missing(self, rows: list[int]) -> None:
        if not self.fill:
            raise DataError(
                f"column {self.name!r} has {len(rows)} missing cells (rows {first_few(rows)}): "
                "fill them, leave these rows out, or make the federation with missing='common'"
            )


def _of(values: Sequence[Any], client: int) -> Any:
    return values[client if len(values) > 1 else 0]


@dataclass(frozen=True)
class Preprocessing:
    """How rows of a table become inputs, and outputs become answers. Plain values that JSON holds.

    Everything was fitted on training rows: categories, fill values, means and scales.
    """

    columns: tuple[Column, ...]
    label: tuple[str, ...]
    class_names: tuple[str, ...] = ()  # of classification
    class_kind: ClassKind = ""  # what the label's values are; "" in records that do not say it
    target_mean: tuple[float, ...] = ()  # of regression: what was taken off each target ...
    target_scale: tuple[float, ...] = ()  # ... before it was divided by this; empty: nothing

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the inputs, in their order."""
        return tuple(name for column in self.columns for name in column.features)

    def only(self, client: int) -> "Preprocessing":
        """The same for one client only."""
        return replace(self, columns=tuple(column.only(client) for column in self.columns))

    def transform(self, table: Any, client: int = 0) -> np.ndarray:
        """(n, features) float32 inputs of a table with the columns it was fitted on; others are
        not looked at.

        Raises:
            ConfigError: a column is missing.
            DataError: cells are missing or are not numbers.
        """
        frame = as_table(table)
        for column in self.columns:
            if column.name not in frame.columns:
                known = nearest(column.name, map(str, frame.columns))
                raise ConfigError(f"the table has no column {column.name!r}: {known}")
        parts = [column.transform(frame[column.name], client) for column in self.columns]
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")

    def in_unit(self, targets: Tensor) -> Tensor:
        """Targets or outputs (..., outputs) of regression in the unit of the table."""
        if not self.target_scale:
            return targets
        scale, mean = (targets.new_tensor(v) for v in (self.target_scale, self.target_mean))
        return targets * scale + mean

    def answers(self, found: Tensor, table: Any) -> Any:
        """What a model says about the rows of a table, as pandas: names of classes, or targets."""
        import pandas as pd

        values, index = found.cpu().numpy(), as_table(table).index
        if self.class_names:
            return pd.Series(self.class_values[values], index, name=self.label[0])
        if len(self.label) == 1:
            return pd.Series(values[:, 0], index, name=self.label[0])
        return pd.DataFrame(values, index, list(self.label))

    @property
    def class_values(self) -> np.ndarray:
        """The classes as the label has them: texts, whole numbers, or True and False."""
        names = np.array(self.class_names, object)
        if self.class_kind == "switch":
            return np.array([name == "True" for name in names])
        looks_whole = all(name.lstrip("-").isdecimal() for name in self.class_names)
        is_whole = self.class_kind == "whole" or (not self.class_kind and looks_whole)
        return names.astype(int) if is_whole else names

    def shares(self, found: Tensor, table: Any) -> Any:
        """How probable each class is, as pandas: a row per row of the table, a column per class."""
        pd = need("pandas", "a table")
        return pd.DataFrame(found.cpu().numpy(), as_table(table).index, list(self.class_values))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same object back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Preprocessing":
        """The object that `to_dict` described, also after a round trip through JSON."""
        columns = tuple(Column(**_tuples(column, Column)) for column in values["columns"])
        told = _tuples(values, cls)
        told["columns"] = columns
        return cls(**told)


def is_table(x: Any) -> bool:
    """Whether inputs are rows with named columns, or the path of such, rather than numbers."""
    has_columns = any(hasattr(x, name) for name in ("columns", "to_pandas", "__dataframe__"))
    return isinstance(x, str | PathLike) or (not isinstance(x, Tensor | np.ndarray) and has_columns)


def _tuples(values: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """The fields that a dataclass has, lists as tuples."""
    known = {f.name for f in fields(kind)}
    return {n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if n in known}


@dataclass(frozen=True)
class Rows:
    """The client of each row of a table, and which rows are for training."""

    client: np.ndarray  # (n,) number of the client
    is_train: np.ndarray  # (n,) bool
    num_clients: int


def fit_column(
    values: Any, name: str, kind: Kind, rows: Rows, missing: Missing, scale: Scale
) -> tuple[Column, list[int]]:
    """Categories, fill values and scales of one column by its training rows, and the clients that
    have no value of their own to fill with."""
    absent = values.isna().to_numpy()
    known = rows.is_train & ~absent
    if not known.any():
        raise DataError(
            f"column {name!r} has no value in any training row: leave it out with drop=({name!r},)"
        )
    raw = texts(values) if kind == "category" else numbers(values, name)
    lacking = [
        client
        for client in range(rows.num_clients)
        if missing == "client" and not (known & (rows.client == client)).any()
    ]
    categories = tuple(sorted(set(raw[known]), key=_order)) if kind == "category" else ()
    fill = _per_client(raw, known, rows, missing, _usual if kind != "number" else np.mean)
    column = Column(name, kind, categories, fill)
    if kind != "number" or scale == "none":
        return column, lacking
    mean = _per_client(raw, known, rows, scale, np.mean)
    spread = _per_client(raw, known, rows, scale, np.std)
    common = float(np.std(raw[known])) or 1.0
    return replace(column, mean=mean, scale=tuple(s or common for s in spread)), lacking


def _per_client(raw: np.ndarray, known: np.ndarray, rows: Rows, by: str, what: Any) -> Any:
    """A statistic of the training values: one for all, or per client (of all where a client has no
    value)."""
    if by not in ("common", "client"):
        return ()
    common = _plain(what(raw[known]))
    if by == "common":
        return (common,)
    own = [raw[known & (rows.client == client)] for client in range(rows.num_clients)]
    return tuple(_plain(what(values)) if len(values) else common for values in own)


def _plain(value: Any) -> float | str:
    return value if isinstance(value, str) else float(value)


def _usual(values: np.ndarray) -> Any:
    """The most frequent value; of equals the first in order."""
    found, counts = np.unique(
        values.astype(str) if values.dtype == object else values, return_counts=True
    )
    return found[counts.argmax()].item()


def _order(text: str) -> tuple[int, float, str]:
    """Numbers by size, then words by letters."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def ordered(values: Sequence[str]) -> list[str]:
    """Names in the order of classes: numbers by size, then words.

    >>> ordered(["10", "9", "no"])
    ['9', '10', 'no']
    """
    return sorted(values, key=_order)


def fit_columns(
    frame: Any,
    names: Sequence[str],
    categorical: Sequence[str],
    rows: Rows,
    missing: Missing,
    scale: Scale,
) -> tuple[tuple[Column, ...], list[str]]:
    """How the feature columns become numbers, and what a person should know about it."""
    columns: list[Column] = []
    borrowing: dict[str, int] = {}
    for name in names:
        kind = "category" if name in categorical else kind_of(frame[name], name)
        column, lacking = fit_column(frame[name], name, kind, rows, missing, scale)
        columns.append(column)
        if lacking and bool(frame[name].isna().any()):
            borrowing[name] = len(lacking)
    notes: list[str] = []
    if borrowing:
        notes.append(
            f"clients without any value of a column take the common one: {quoted([*borrowing])}"
        )
    switches = [c.name for c in columns if c.kind == "category"]
    if switches:
        notes.append(
            f"columns with categories became a switch per category of the training rows, unknown "
            f"ones all zeros: {quoted(switches)}"
        )
    return tuple(columns), notes


def fit_targets(y: np.ndarray, is_train: np.ndarray, scale: Scale) -> tuple[Any, Any]:
    """Mean and standard deviation of each target over the training rows of all clients."""
    if scale == "none":
        return (), ()
    spread = y[is_train].std(axis=0)
    return tuple(y[is_train].mean(axis=0).tolist()), tuple(float(s) or 1.0 for s in spread)


def as_targets(values: np.ndarray, mean: Sequence[float], spread: Sequence[float]) -> Tensor:
    """(n, outputs) float32 targets, standardised where means and scales are given."""
    scaled = (values - np.array(mean)) / np.array(spread) if spread else values
    return torch.from_numpy(scaled.astype(np.float32))
