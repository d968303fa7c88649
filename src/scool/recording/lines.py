"""What a JSON record must hold, and the lines of a `.jsonl` file up to one that does not."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scool.columns import LAST
from scool.errors import KINDS, RunError
from scool.recording.disk import LARGEST_TEXT, open_plain
from scool.recording.seals import open_line

Kind = tuple[Callable[[Any], bool], str]
"""Whether a value is of a kind, and what the kind is called."""

WHOLE: Kind = KINDS[int]
LARGEST = 2**63
LARGEST_INPUT = 2**31  # numbers in one sample
COUNT: Kind = (lambda v: WHOLE[0](v) and 0 <= v < LARGEST, "a whole number from 0 on")
NUMBER: Kind = (lambda v: KINDS[float][0](v) and abs(v) <= sys.float_info.max, "a finite number")
TEXT: Kind = (lambda v: KINDS[str][0](v) and _is_unicode(v), KINDS[str][1])
RUN: Kind = (lambda v: TEXT[0](v) and bool(_RUN.fullmatch(v)), "the identity of a run")
BOOL: Kind = KINDS[bool]
OBJECT: Kind = (lambda v: isinstance(v, dict), "a JSON object")
LIST: Kind = (lambda v: isinstance(v, list), "a list")
TEXTS: Kind = (lambda v: LIST[0](v) and all(map(TEXT[0], v)), "a list of texts")
NUMBERS: Kind = (lambda v: LIST[0](v) and all(map(NUMBER[0], v)), "a list of finite numbers")
COUNTS: Kind = (lambda v: LIST[0](v) and all(map(COUNT[0], v)), "a list of whole numbers")
SHAPE: Kind = (
    lambda v: LIST[0](v) and all(map(COUNT[0], v)) and math.prod(v) < LARGEST_INPUT,
    "a list of sizes",
)
SCORES: Kind = (
    lambda v: LIST[0](v) and all(s is None or NUMBER[0](s) for s in v),
    "a list of finite numbers and nulls",
)
BLOCKS: Kind = (
    lambda v: LIST[0](v) and all(b is None or COUNT[0](b) for b in v),
    "a list of whole numbers and nulls",
)


_RUN = re.compile("(?:[0-9a-f]{32})?")


def _is_unicode(text: str) -> bool:
    """Whether a text can be written; halves of a character in JSON cannot."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def or_null(kind: Kind) -> Kind:
    return (lambda v: v is None or kind[0](v)), f"{kind[1]} or null"


def check_kinds(values: Any, kinds: Mapping[str, Kind], optional: Iterable[str] = ()) -> None:
    """Look whether a record has its fields, and whether they are what they should be.

    Raises:
        ValueError: it does not; says what is wrong.

    >>> check_kinds({"seed": "0"}, {"seed": WHOLE})
    Traceback (most recent call last):
    ValueError: seed = '0' is not a whole number
    """
    if not isinstance(values, dict):
        raise ValueError("it holds no JSON object")
    for name, (is_of_kind, words) in kinds.items():
        if name not in values:
            if name in optional:
                continue
            raise ValueError(f"it lacks {name!r}")
        if not is_of_kind(values[name]):
            raise ValueError(f"{name} = {values[name]!r:.100} is not {words}")


class Lines(NamedTuple):
    """The lines of a file up to the first that is not what it should be."""

    rows: list[dict[str, Any]]
    flaw: str | None
    """What is wrong with the line after these; None where they are all."""
    is_cut: bool
    """That line is the last and has no end: a kill cut it off."""
    seals: list[str | None]
    """The seal of each line; None in records of versions that sealed nothing."""


def read_lines(path: Path, check: Callable[[Any], None], before: str | None = None) -> Lines:
    """Parse a `.jsonl` file; one that is not there has no lines.

    Args:
        check: raises ValueError for a value that should not be there.
        before: what the seal of the first line builds on; None: seals are not checked.

    Raises:
        RunError: it cannot be opened.
    """
    rows: list[dict[str, Any]] = []
    seals: list[str | None] = []
    try:
        with open_plain(path) as file:
            while line := file.readline(LARGEST_TEXT):
                try:
                    text, seal = open_line(line.rstrip(b"\n"), before)
                    value = json.loads(text.decode())
                    check(value)
                except (ValueError, RecursionError) as error:
                    is_cut = not line.endswith(b"\n") and len(line) < LARGEST_TEXT
                    return Lines(rows, f"line {len(rows) + 1}: {error}", is_cut, seals)
                before = seal if before is not None else None
                rows.append(value)
                seals.append(seal)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    return Lines(rows, None, False, seals)


def _has_numbers(v: Any) -> bool:
    return OBJECT[0](v) and all(NUMBER[0](n) for n in v.values())


def _has_texts(v: Any) -> bool:
    return OBJECT[0](v) and all(TEXT[0](n) for n in v.values())


_ROUND: dict[str, Kind] = {
    **dict.fromkeys(("round", "messages", "bytes"), COUNT),
    **dict.fromkeys(("epochs", "seconds"), NUMBER),
    **dict.fromkeys((*(c.field for c in LAST), "edges", "fallback", "diverged"), or_null(NUMBER)),
    "scores": or_null(SCORES),
    "blocks": or_null(BLOCKS),
    "traffic": (_has_numbers, "a table of numbers"),
    "quarantined": (_has_texts, "a table of texts"),
}


def read_rounds(path: Path, needs: Iterable[str], before: str | None = None) -> Lines:
    """The lines of a file that has one per round, or one for some rounds, in their order. Scores
    are those of the same number of clients."""
    last, clients, optional = -1, 0, set(_ROUND) - {"round", *needs}

    def check(row: Any) -> None:
        nonlocal last, clients
        check_kinds(row, _ROUND, optional)
        means = {name: or_null(NUMBER) for name in row if name.endswith(("_mean", "_std"))}
        check_kinds(row, means)
        if row["round"] <= last:
            raise ValueError(f"round = {row['round']} comes after round {last}")
        last = row["round"]
        if row.get("scores") is not None:
            count = len(row["scores"])
            if clients and count != clients:
                raise ValueError(f"scores has {count} clients, those before have {clients}")
            clients = count

    return read_lines(path, check, before)
