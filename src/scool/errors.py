"""Mistakes a person can make. Each message names the field, the value and the remedy."""

import difflib
from collections.abc import Iterable
from typing import NoReturn


class ScoolError(Exception):
    """Base of everything scool raises on purpose; the command line prints it without a trace."""


class ConfigError(ScoolError):
    """An option has a value it cannot have."""


class DataError(ScoolError):
    """A data file or a client's data is missing, altered or unusable."""


class ModelError(ScoolError):
    """A model cannot be trained side by side with its copies."""


class RunError(ScoolError):
    """A run folder or a checkpoint cannot be read, written or continued."""


class QuarantineError(ScoolError):
    """A client produced non-finite numbers and the run was asked to be strict."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name.

    >>> nearest("scool-sbn", ["local", "scool-sbm"])
    "did you mean 'scool-sbm'? Known: local, scool-sbm"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}"


def unknown(what: str, name: str, known: Iterable[str]) -> NoReturn:
    """Refuse a name that nobody knows, naming the nearest one."""
    raise ConfigError(f"unknown {what} {name!r}: {nearest(name, known)}")


def require(condition: bool, field: str, value: object, remedy: str) -> None:
    """Check one option: `require(lr > 0, "lr", lr, "give a positive number")`."""
    if not condition:
        raise ConfigError(f"{field} = {value!r} is not possible: {remedy}")
