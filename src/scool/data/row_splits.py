"""Which rows of a client are for training, validation and test: by chance, time, group or given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from scool.data.tables import is_date
from scool.errors import DataError, check_kind, need, require
from scool.randomness import generator

TRAIN, VAL, TEST = 0, 1, 2
_WORDS = {
    "train": TRAIN,
    "training": TRAIN,
    "val": VAL,
    "validation": VAL,
    "valid": VAL,
    "dev": VAL,
    "test": TEST,
}


@dataclass(frozen=True)
class RowSplit:
    """How the rows of each client are split."""

    test_fraction: float = 0.2
    val_fraction: float = 0.0
    seed: int = 0
    time: str | None = None
    group: str | None = None
    given: str | None = None

    def __post_init__(self) -> None:
        check_kind("test_fraction", self.test_fraction, float)
        check_kind("val_fraction", self.val_fraction, float)
        check_kind("seed", self.seed, int)
        require(
            0 <= self.test_fraction < 1,
            "test_fraction",
            self.test_fraction,
            "give a number from 0 to below 1",
        )
        require(
            0 <= self.val_fraction < 1,
            "val_fraction",
            self.val_fraction,
            "give a number from 0 to below 1",
        )
        named = [name for name in ("time", "group") if getattr(self, name)]
        named += ["split"] if self.given else []
        require(len(named) < 2, "time, group and split", tuple(named), "give one of them")

    @property
    def columns(self) -> list[str]:
        """Columns that say how to split, and are not features."""
        return [name for name in (self.time, self.group, self.given) if name]

    def parts(self, frame: Any, client: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
        """(n,) TRAIN, VAL or TEST of each row; a client with a row keeps one for training.

        Args:
            frame: the table.
            client: (n,) the number of each row's client.
            labels: (n,) classes for stratified choices; None: regression.
        """
        part = _given(frame, self.given) if self.given else np.zeros(len(client), int)
        when = _moments(frame, self.time) if self.time else None
        who = _named(frame, self.group) if self.group else None
        for number in range(int(client.max()) + 1):
            rows = np.flatnonzero(client == number)
            if self.given:
                self._set_validation(part, rows, labels, number)
            elif when is not None:
                part[rows[np.argsort(when[rows], kind="stable")]] = self._blocks(len(rows))
            elif who is not None:
                part[rows] = self._by_group(who[rows], number)
            else:
                part[rows[self._order(rows, labels, number, "test")[::-1]]] = self._blocks(
                    len(rows)
                )
        return part

    def _blocks(self, size: int) -> np.ndarray:
        """Training rows, then validation rows, then test rows."""
        test = _share(self.test_fraction, size)
        val = _share(self.val_fraction, size - test)
        return np.repeat([TRAIN, VAL, TEST], [size - test - val, val, test])

    def _order(
        self, rows: np.ndarray, labels: np.ndarray | None, client: int, purpose: str
    ) -> np.ndarray:
        """A random order of a client's rows: every stretch has the classes in about the same
        proportion, and the last ones hold one row of each class."""
        rng = generator(self.seed, "rows", purpose, client)
        order = torch.randperm(len(rows), generator=rng).numpy()
        if labels is None:
            return order
        own = labels[rows][order]
        place = torch.rand(len(rows), generator=rng).numpy()
        for label in np.unique(own):
            of_label = np.flatnonzero(own == label)
            place[of_label] = (place[of_label] + np.arange(len(of_label))) / len(of_label)
            place[of_label[-1]] += 1
        return order[np.argsort(place, kind="stable")]

    def _by_group(self, who: np.ndarray, client: int) -> np.ndarray:
        """Whole groups for the test, then for validation, until each has its share of rows."""
        rng = generator(self.seed, "rows", "group", client)
        names = np.unique(who)
        names = names[torch.randperm(len(names), generator=rng).numpy()]
        part = np.full(len(who), TRAIN)
        wanted = {TEST: _share(self.test_fraction, len(who))}
        wanted[VAL] = _share(self.val_fraction, len(who) - wanted[TEST])
        for name in names[:-1]:  # the last one is for training
            for which in (TEST, VAL):
                if (part == which).sum() < wanted[which]:
                    part[who == name] = which
                    break
        return part

    def _set_validation(
        self, part: np.ndarray, rows: np.ndarray, labels: np.ndarray | None, client: int
    ) -> None:
        """Validation rows out of the training rows where the table names none."""
        own = rows[part[rows] == TRAIN]
        if (part[rows] == VAL).any() or not self.val_fraction or not len(own):
            return
        chosen = self._order(own, labels, client, "val")[: _share(self.val_fraction, len(own))]
        part[own[chosen]] = VAL


def _share(fraction: float, size: int) -> int:
    """The number of rows for a share: at least one if any are wanted, and never all."""
    wanted = max(1, int(fraction * size + 0.5)) if fraction else 0
    return min(wanted, max(size - 1, 0))


def _refuse_empty(frame: Any, name: str, option: str) -> None:
    empty = int(frame[name].isna().sum())
    if empty:
        raise DataError(f"{option} column {name!r} has {empty} empty cells: fill them in")


def _given(frame: Any, name: str) -> np.ndarray:
    _refuse_empty(frame, name, "split")
    words = frame[name].astype(str).str.strip().str.lower()
    odd: Sequence[str] = sorted(set(words) - set(_WORDS))
    if odd:
        raise DataError(f"split column {name!r} has {odd[0]!r}: write train, val or test")
    return words.map(_WORDS).to_numpy().astype(int)


def _moments(frame: Any, name: str) -> np.ndarray:
    """Numbers in the order of time."""
    pd = need("pandas", "a table")

    _refuse_empty(frame, name, "time")
    column = frame[name]
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(dtype=float)
    try:
        if not is_date(column):
            raise ValueError(f"it has {column.iloc[0]!r:.40}")
        return _dates(column).astype("int64").to_numpy()
    except (ValueError, TypeError) as error:
        words = str(error).splitlines()[0][:100]
        raise DataError(
            f"time column {name!r} cannot be read as dates ({words}): give dates such as "
            "2024-05-31, or numbers"
        ) from None


def _dates(column: Any) -> Any:
    """Points in time; of 31.5.2024 and 5/31/2024 the day stands where a number above 12 is found,
    and before a point."""
    pd = need("pandas", "a table")

    if not pd.api.types.is_object_dtype(column) and not pd.api.types.is_string_dtype(column):
        return column
    written = column.astype(str).str.extract(r"^(\d{1,2})([./])(\d{1,2})[./]\d{4}")
    if written.isna().any(axis=None):
        return pd.to_datetime(column.astype(str), format="ISO8601", utc=True)
    first, second = (written[side].astype(int).max() for side in (0, 2))
    is_clear = (written[1] == ".").all() or max(first, second) > 12
    if not is_clear:
        raise ValueError(f"{column.iloc[0]} may begin with the day or with the month")
    if min(first, second) > 12:
        raise ValueError("some begin with the day and others with the month")
    return pd.to_datetime(column, dayfirst=bool(second <= 12), format="mixed")


def _named(frame: Any, name: str) -> np.ndarray:
    _refuse_empty(frame, name, "group")
    return frame[name].astype(str).to_numpy()
