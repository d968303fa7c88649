"""Tables: from files and other libraries to pandas, and what a column holds."""

import hashlib
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from numbers import Number
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scool.errors import DataError, first_few, nearest, need

Kind = Literal["number", "switch", "category"]

MOST_CATEGORIES = 200
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{4}")
_COMMA_ENDINGS = (".csv", ".csv.gz", ".csv.zip", ".txt")
_TAB_ENDINGS = (".tsv", ".tsv.gz")
_PARQUET_ENDINGS = (".parquet", ".pq")
TABLE_ENDINGS = (*_COMMA_ENDINGS, *_TAB_ENDINGS, *_PARQUET_ENDINGS)


def read_table(path: str | Path, as_texts: Sequence[str] = ()) -> Any:
    """A CSV, TSV or Parquet file as a pandas table.

    Args:
        path: the file.
        as_texts: columns of a CSV or TSV whose cells stay as they are written, such as 007.

    Raises:
        DataError: it is missing, of an unknown ending, empty, or cannot be read.
    """
    pd = need("pandas", "a table")

    path, name = Path(path), str(path).lower()
    try:
        if name.endswith(_PARQUET_ENDINGS):
            need("pyarrow", "reading Parquet")
            frame = pd.read_parquet(path)
        elif name.endswith((*_COMMA_ENDINGS, *_TAB_ENDINGS)):
            separator = "\t" if name.endswith(_TAB_ENDINGS) else ","
            kinds = dict.fromkeys(as_texts, str)
            frame = pd.read_csv(path, sep=separator, low_memory=False, dtype=kinds)
        else:
            endings = ", ".join(TABLE_ENDINGS)
            raise DataError(f"{path} has an ending that is not known: give a file with {endings}")
    except FileNotFoundError:
        raise DataError(f"{path} is missing: check the path of the table") from None
    except (OSError, ValueError, EOFError) as error:  # of pandas, pyarrow and unpacking
        words = " ".join(str(error).split())[:200]
        remedy = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else "check the file"
        raise DataError(f"{path} cannot be read as a table ({words}): {remedy}") from None
    if not len(frame):
        raise DataError(f"{path} has no rows: give a table with a row per sample")
    if len(frame.columns) == 1 and (found := re.search("[;\t|]", str(frame.columns[0]))):
        raise DataError(
            f"{path} separates its columns by {found.group()!r}: save it with commas, or in Python "
            f"give the table itself, pandas.read_csv(..., sep={found.group()!r})"
        )
    return frame


def digest_of(path: str | Path) -> str:
    """SHA-256 of a file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def as_table(data: Any, as_texts: Sequence[str] = ()) -> Any:
    """A pandas table, its columns called by texts, from pandas, a path, or what offers `to_pandas`
    or an interchange protocol; `as_texts` as in `read_table`."""
    pd = need("pandas", "a table")

    found: Any = None
    if isinstance(data, pd.DataFrame):
        found = data
    elif isinstance(data, str | os.PathLike):
        found = read_table(Path(data), as_texts)
    elif hasattr(data, "to_pandas"):
        found = data.to_pandas()
    if not isinstance(found, pd.DataFrame):
        found = _exchanged(data)
    return found if all(isinstance(name, str) for name in found) else found.rename(columns=str)


def _exchanged(data: Any) -> Any:
    """A pandas table from a table of another library, by a protocol that both speak."""
    pd = need("pandas", "a table")

    if hasattr(data, "__arrow_c_stream__"):
        return need("pyarrow", "this kind of table").table(data).to_pandas()
    if hasattr(data, "__dataframe__"):
        with warnings.catch_warnings():  # pandas prefers Arrow, which this table does not speak
            warnings.simplefilter("ignore", DeprecationWarning)
            return pd.api.interchange.from_dataframe(data)
    raise DataError(
        f"data is a {type(data).__name__}: give a pandas table, the path of a CSV or Parquet file, "
        "or a table that has `to_pandas`, `__arrow_c_stream__` or `__dataframe__`"
    )


def check_columns(frame: Any, names: Iterable[str], what: str) -> None:
    """Refuse names that are not columns, with the nearest that is one."""
    known = [str(name) for name in frame.columns]
    for name in names:
        if name not in known:
            raise DataError(f"{what} {name!r} is not a column of the table: {nearest(name, known)}")
    twice = sorted({name for name in known if known.count(name) > 1})
    if twice:
        raise DataError(f"the table has several columns named {twice[0]!r}: rename one of them")


def is_date(column: Any) -> bool:
    """Whether a column holds dates, as such or as text."""
    pd = need("pandas", "a table")

    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        return True
    if pd.api.types.is_numeric_dtype(column):
        return False
    some = column.dropna().head(20)
    return len(some) > 0 and all(
        hasattr(value, "isoformat") or (isinstance(value, str) and _DATE.match(value))
        for value in some
    )


def kind_of(column: Any, name: str) -> Kind:
    """What a column of features holds.

    Raises:
        DataError: dates, numbers written as text, too many categories, or something else.
    """
    pd = need("pandas", "a table")

    if isinstance(column.dtype, pd.CategoricalDtype):
        return _category(column, name)
    if pd.api.types.is_bool_dtype(column):
        return "switch"
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return "number"
    if is_date(column):
        raise DataError(
            f"column {name!r} holds dates: leave it out with drop, split by it with time, or make "
            "it a number, e.g. days since the first visit"
        )
    known = column.dropna()
    if len(known) and all(isinstance(value, bool | np.bool_) for value in known):
        return "switch"
    if len(known) and all(_is_real(value) for value in known):
        return "number"  # numbers in a column of objects, Decimal among them
    odd = [value for value in known if not isinstance(value, str | int | float | bool)]
    if odd:
        raise DataError(
            f"column {name!r} holds values of type {type(odd[0]).__name__}: give numbers, texts, "
            "True and False, or leave it out with drop"
        )
    _refuse_written_numbers(known, name)
    return _category(column, name)


def _is_real(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool | complex)


def _refuse_written_numbers(known: Any, name: str) -> None:
    """Refuse numbers that became text because some cells hold something else, such as a question
    mark."""
    pd = need("pandas", "a table")

    is_number = pd.to_numeric(known.astype(object), errors="coerce").notna()
    if is_number.mean() >= 0.5:
        others = sorted({str(value) for value in known[~is_number]})
        why = f"because of {int((~is_number).sum())} cells such as {others[0]!r}" if others else ""
        raise DataError(
            f"column {name!r} holds numbers as text {why}".rstrip()
            + ": leave such cells empty in the file, or convert the column; if its values are "
            f"names of categories, say categorical=({name!r},)"
        )


def _category(column: Any, name: str) -> Kind:
    count = column.nunique()
    if count > MOST_CATEGORIES:
        raise DataError(
            f"column {name!r} has {count} different values, and at most {MOST_CATEGORIES} "
            f"categories are possible: leave it out with drop=({name!r},), or merge some"
        )
    return "category"


def texts(column: Any) -> Any:
    """The values of a column as texts (n,), None where missing; whole numbers without a point.

    >>> import pandas as pd
    >>> texts(pd.Series([1.0, None])).tolist()
    ['1', None]
    """

    def text(value: Any) -> str:
        is_whole = isinstance(value, float) and value.is_integer()
        return str(int(value)) if is_whole else str(value)

    missing = column.isna().to_numpy()
    values = column.astype(object).to_numpy()
    out = np.array([None if m else text(v) for v, m in zip(values, missing, strict=True)], object)
    return out


def numbers(column: Any, name: str) -> np.ndarray:
    """The values of a column as float64 (n,), NaN where missing.

    Raises:
        DataError: some are not numbers, or infinite.
    """
    pd = need("pandas", "a table")

    found = pd.to_numeric(column.astype(object).where(column.notna(), np.nan), errors="coerce")
    if pd.api.types.is_complex_dtype(found):
        raise DataError(f"column {name!r} holds complex numbers: give real ones")
    values = found.to_numpy(dtype=np.float64, na_value=np.nan).copy()
    odd = np.flatnonzero(np.isnan(values) & column.notna().to_numpy())
    if len(odd):
        raise DataError(
            f"column {name!r} has {column.iloc[odd[0]]!r:.40} where a number belongs (row "
            f"{odd[0]}): give a number, or leave the cell empty"
        )
    infinite = np.flatnonzero(np.isinf(values)).tolist()
    if infinite:
        raise DataError(
            f"column {name!r} has infinite numbers (rows {first_few(infinite)}): fix them or leave "
            "the cells empty"
        )
    return values


def quoted(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> quoted(["a", "b"])
    "'a', 'b'"
    """
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
