"""Which numbers of a page no record has.

Checked are numbers with a decimal point in table rows, list items and paragraphs: rounded as it
stands there, each must be a number of a method that is named there, ours or the paper's; on pages
about results one of any method where none is named. On pages with options only numbers from 10 on
are checked, because options are smaller. Options in code (`--lr 0.1`) are none, nor
are the tables between markers: tests/reproduction/test_pages.py and `contest_pages.py` make them
again from the records.
A comment exempts numbers of its page and says why:
`<!-- not in the table: 4.4 2.7, differences by seed -->`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
SHORT = {
    "SBM": "scool-sbm",
    "attention": "scool-attention",
    "MMSBM": "scool-mmsbm",
    "drawn peers": "scool-drawn",
    "FOMO": "fedfomo",
}
OPTION = 10.0
"""Smaller numbers are options on a page that has some."""

_DECIMAL = re.compile(r"(?<![\w.#/-])[+\u2212-]?\d[\d,]*\.\d+(?![\w.]*\w)")
_EXEMPT = re.compile(r"<!-- not in the table: (.*?) -->", re.DOTALL)
_FILLED = re.compile(r"<!-- begin (.*?)(?: from .*?)? -->.*?<!-- end \1 -->", re.DOTALL)
_TARGET = re.compile(r"\]\([^)]*\)")
_OPTIONS = re.compile(r"`[^`]*--[^`]*`")


def wrong_numbers(
    text: str,
    rows: Sequence[Row],
    paper: Mapping[str, Sequence[float]],
    titles: Mapping[str, str] | None = None,
    is_about_results: bool = False,
    least: float = 0,
) -> list[str]:
    """Numbers of a page that no row of the methods named beside them has.

    Args:
        titles: what else methods are called.
        is_about_results: where no method is named, the number must be one of any.
        least: smaller numbers are not checked.
    """
    known: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name in row["names"]:
            known[name.lower()] += _values(row)
    for name, values in paper.items():
        known[name] += values
    for title, name in (titles or {}).items():
        known[title.lower()] += known[name]
    names = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
    is_named = re.compile(rf"(?<![\w-])({names})(?![\w-])", re.IGNORECASE)
    every = [value for values in known.values() for value in values] if is_about_results else []
    exempt = {n for words in _EXEMPT.findall(text) for n in _DECIMAL.findall(words)}
    found: list[str] = []
    for part in _parts(_TARGET.sub("]", _EXEMPT.sub("", _FILLED.sub("", text)))):
        own = [v for name in {n.lower() for n in is_named.findall(part)} for v in known[name]]
        numbers = _DECIMAL.findall(_OPTIONS.sub("", part)) if own or every else ()
        found += [
            f"{number} in: {' '.join(part.split())[:90]}"
            for number in numbers
            if _size(number) >= least
            and number not in exempt
            and not _is_among(number, own or every)
        ]
    return found


def _size(number: str) -> float:
    return abs(float(number.strip("+-\u2212").replace(",", "")))


def _is_among(number: str, values: Sequence[float]) -> bool:
    """Whether one of the values is this number, rounded as it is, whatever its sign."""
    value = _size(number)
    near = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9
    return any(abs(abs(one) - value) <= near for one in values)


def _parts(text: str) -> Iterator[str]:
    """Table rows, list items and paragraphs, without blocks of code."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for block in re.split(r"\n\s*\n", text):
        starts = re.split(r"\n(?=[|]|- )", block)
        yield from starts


def _values(row: Row) -> Iterator[float]:
    for name, value in row.items():
        if isinstance(value, float):
            yield value
            if name in ("worse", "clearly_worse", "clearly_better"):
                yield 100 * value
            if name == "bytes":
                yield from (value / 1000**unit for unit in range(1, 5))


def paper_values() -> dict[str, list[float]]:
    """What the paper and its authors state, by row and by method."""
    from scool.reproduction.paper import DATASETS, SETTINGS, reported
    from scool.reproduction.rows import TABLE1

    found: dict[str, list[float]] = defaultdict(list)
    for row in TABLE1:
        said = [reported(row.name, data, setting) for data in DATASETS for setting in SETTINGS]
        values = [v for one in said if one for v in (one.mean, one.std_clients) if v is not None]
        for name in {row.name, row.method, row.title.lower()}:
            found[name] += values
    return found


def titles_of_methods() -> dict[str, str]:
    """What pages call a method, in place of its key."""
    from scool.contest.plan import read_study

    entries = read_study("natural").entries
    return {entry.title: entry.method for entry in entries if not entry.control} | SHORT
