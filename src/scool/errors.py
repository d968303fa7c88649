"""Mistakes a person can make. Each message names the field, the value and the remedy."""

import dataclasses
import difflib
import importlib
import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints


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


class Note(UserWarning):
    """Something was done that the user may want to know; the command line prints it as a note."""


class RankLost(RunError):
    """Another process of the run died, hangs or has lost its connection."""


class QuarantineError(ScoolError):
    """A client produced non-finite numbers and the run was asked to be strict."""


MANY = 50
"""Names that a message lists in full; if there are more, only the nearest."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name.

    >>> nearest("scool-sbn", ["local", "scool-sbm"])
    "did you mean 'scool-sbm'? Known: local, scool-sbm"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    if len(names) <= MANY:
        return f"{hint}Known: {', '.join(names)}"
    shown = difflib.get_close_matches(name, names, n=8, cutoff=0.0)
    return f"{hint}Known: {', '.join(shown)} and {len(names) - len(shown)} more"


def unknown(what: str, name: str, known: Iterable[str]) -> NoReturn:
    """Refuse an unknown name, and name the nearest known one."""
    raise ConfigError(f"unknown {what} {name!r}: {nearest(name, known)}")


LONG = 100
"""Characters of a value in a message: it may be somebody's data."""


def require(condition: bool, field: str, value: object, remedy: str) -> None:
    """Check one option: `require(lr > 0, "lr", lr, "give a positive number")`."""
    if not condition:
        text = repr(value)
        text = text if len(text) <= LONG else f"{text[:LONG]}..."
        raise ConfigError(f"{field} = {text} is not possible: {remedy}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


KINDS: dict[Any, tuple[Callable[[object], bool], str]] = {
    int: (lambda value: _is_number(value) and isinstance(value, Integral), "a whole number"),
    float: (_is_number, "a number"),
    str: (lambda value: isinstance(value, str), "a text"),
    bool: (lambda value: isinstance(value, bool), "True or False"),
}
"""Whether a value is of a kind, and what the kind is called."""


def check_kind(field: str, value: object, kind: type) -> None:
    """Check that a value is an int, float (and finite), str or bool, as its option wants.

    >>> check_kind("seed", "1", int)
    Traceback (most recent call last):
    scool.errors.ConfigError: seed = '1' is not possible: give a whole number
    """
    is_right, words = KINDS[kind]
    require(is_right(value), field, value, f"give {words}")
    _check_finite(field, value)


def _check_finite(field: str, value: object) -> None:
    is_finite = not isinstance(value, float) or math.isfinite(value)
    require(is_finite, field, value, "give a finite number")


def check_fields(options: Any) -> None:
    """What every option of a dataclass must satisfy: its type, a known name, a finite number.

    >>> from scool.learning.local_sgd import LocalSGD
    >>> LocalSGD(optimizer="adm")
    Traceback (most recent call last):
    scool.errors.ConfigError: unknown optimizer 'adm': did you mean 'adam'? Known: adam, adamw, sgd
    """
    hints = get_type_hints(type(options))
    for field in dataclasses.fields(options):
        value, hint = getattr(options, field.name), hints[field.name]
        if get_origin(hint) is Literal and value not in get_args(hint):
            unknown(field.name, str(value), map(str, get_args(hint)))
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            require(isinstance(value, hint), field.name, value, f"give {hint.__name__}(...)")
        elif hint in KINDS:
            check_kind(field.name, value, hint)
        else:
            _check_finite(field.name, value)


def printable(text: str) -> str:
    """A text from a file or a folder's name, safe for a terminal: control characters are shown as
    what they are, and do nothing. Lines stay lines.

    >>> printable("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    return "".join(c if c == "\n" or _is_harmless(c) else ascii(c)[1:-1] for c in text)


def _is_harmless(character: str) -> bool:
    """Not a control character, a surrogate, or one that changes the direction of the text."""
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def first_few(numbers: Sequence[int]) -> str:
    """Five of many.

    >>> first_few(range(7))
    '0, 1, 2, 3, 4, ...'
    """
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")


def need(module: str, what: str) -> Any:
    """A package that only some features use, or words on how to get it.

    >>> need("no_such_package", "to_pandas")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    scool.errors.ScoolError: to_pandas needs no_such_package, which is not installed: ...
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ScoolError(
            f"{what} needs {package}, which is not installed: pip install {package}"
        ) from error
