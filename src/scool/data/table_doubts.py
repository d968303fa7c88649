"""What is possible in a table, but seldom meant: said once, with the remedy."""

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from scool.data.tables import quoted, texts
from scool.errors import need


def _warn(words: str) -> None:
    warnings.warn(words, stacklevel=4)  # where `from_frame` was called


def warn_ids(frame: Any, names: Sequence[str]) -> None:
    """Columns that nobody means to learn from."""
    pd = need("pandas", "a table")

    for name in names:
        column = frame[name]
        is_id = len(column) >= 20 and not pd.api.types.is_float_dtype(column)
        if is_id and column.nunique() == len(column):
            _warn(
                f"column {name!r} has another value in every row, as an id has, and is learned "
                f"from: leave it out with drop=({name!r},) if it is one"
            )


def warn_alike(names: Sequence[str], what: str) -> None:
    """Names of clients or classes that are probably one, spelled in two ways."""
    plain = [" ".join(name.split()).casefold() for name in names]
    counts = Counter(plain)
    alike = [name for name, spelled in zip(names, plain, strict=True) if counts[spelled] > 1]
    if alike:
        _warn(
            f"{what} {quoted(alike)} differ in spaces or capitals alone, and are taken for "
            "different ones: spell them alike if they are the same"
        )


def warn_shared_groups(frame: Any, client: np.ndarray, group: str) -> None:
    """Patients of several hospitals: each hospital splits its own rows."""
    pairs = {*zip(texts(frame[group]), client.tolist(), strict=True)}
    owners = Counter(name for name, _ in pairs)
    shared = sorted(name for name, count in owners.items() if count > 1)
    if shared:
        _warn(
            f"{len(shared)} values of group {group!r} ({quoted(shared)}) have rows of several "
            "clients, and each client splits its own: if they are the same, a client may learn "
            "from others what it is tested on. Say the parts in a column then (split=)"
        )
