"""Methods of your own for the command line: from a Python file that a person names (`--plugin`),
or from installed packages (entry points in the group `scool.methods`).

A file is executed only if a person has named it in this very command. A record names the file of
its method, too, but a record may come from a stranger: it is compared, never loaded.
"""

import dataclasses
import hashlib
import importlib.metadata
import inspect
import json
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, overload

from scool.algorithms import METHODS
from scool.errors import ConfigError, RunError, ScoolError, require
from scool.run.checks import as_method
from scool.run.options import as_dict, with_options

GROUP = "scool.methods"
BUILT_IN = frozenset(METHODS)
PAGE = "see docs/own-prior-or-method.md"

Source = dict[str, str]
"""Where a method comes from: `file` and its `sha256`; of an installed one also `package`."""

SOURCES: dict[str, Source] = {}
"""Where the methods come from that are not built in."""
_loaded: dict[str, str] = {}  # SHA-256 of each plugin by path
_current: list[Source] = []  # the plugin that is being executed

T = TypeVar("T")


@overload
def register_method(name: str, method: None = None, words: str = "") -> Callable[[T], T]: ...
@overload
def register_method(name: str, method: Any, words: str = "") -> None: ...
def register_method(name: str, method: Any = None, words: str = "") -> Any:
    """Give a method a name, by which `scool run NAME`, `compare` and `tune` know it.

    Args:
        name: lower-case letters, digits and hyphens.
        method: a frozen dataclass with `init` and `step`; its fields become options. Without it,
            the call is a decorator for such a class.
        words: a short description for `scool run --help`; default: the first line of its docstring.
    """
    if method is None:

        def register(kind: Any) -> Any:
            register_method(name, kind(), words)
            return kind

        return register
    is_name = isinstance(name, str) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    require(bool(is_name), "name", name, "give lower-case letters, digits and hyphens: my-method")
    taken = name in BUILT_IN or name == "all"
    require(not taken, "name", name, "scool has a method of that name; choose another one")
    _check_options(name, method)
    first = (inspect.getdoc(type(as_method(method).plain)) or "").partition("\n")[0]
    METHODS[name] = (words or first or "a method of your own", method)
    SOURCES.pop(name, None)
    if _current:
        SOURCES[name] = _current[-1]


def _check_options(name: str, method: Any) -> None:
    """Refuse a method whose options the command line and records cannot hold."""
    as_method(method)
    if not dataclasses.is_dataclass(method):
        kind = type(method).__name__
        raise ConfigError(f"method {name!r}: put @dataclass(frozen=True) before class {kind}")
    try:
        options = json.loads(json.dumps(as_dict(method)))
        with_options(method, options, f"the options of {name}")
    except (ConfigError, NameError, TypeError) as error:
        raise ConfigError(
            f"method {name!r} has an option that cannot be written down ({error}): give it "
            "numbers, words, tuples of these, or dataclasses"
        ) from error


def sources_of(methods: Sequence[str]) -> dict[str, Source]:
    """The sources of the methods that are not built in."""
    return {method: SOURCES[method] for method in methods if method in SOURCES}


def loaded_plugins() -> dict[str, str]:
    """The plugins of this process: SHA-256 by path."""
    return dict(_loaded)


# ---------------------------------------------------------------------- a file


def load_plugin(path: str | Path) -> None:
    """Execute a Python file that a person has named, and register the methods it defines: those in
    its dictionary METHODS, and those it registers itself.

    Raises:
        ConfigError: it cannot be read or executed, or defines nothing.
    """
    path = Path(path).absolute()
    try:
        code = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"plugin = {str(path)!r} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(code).hexdigest()
    if _loaded.get(str(path)) == digest:
        return
    module = ModuleType(f"scool_plugin_{digest[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    with _executing({"file": str(path), "sha256": digest}) as found:
        try:
            exec(compile(code, str(path), "exec"), module.__dict__)
            _register_all(getattr(module, "METHODS", {}))
        except ScoolError as error:
            raise ConfigError(f"plugin = {str(path)!r}: {error}") from error
        except (Exception, SystemExit) as error:
            where = _line_of(error, str(path))
            what = f"{where}{type(error).__name__}: {error}"
            raise ConfigError(f"plugin = {str(path)!r} cannot be executed: {what}") from error
        if not found():
            remedy = 'write METHODS = {"my-method": MyMethod()}'
            raise ConfigError(f"plugin = {str(path)!r} defines no method: {remedy}; {PAGE}")
    _loaded[str(path)] = digest


@contextmanager
def _executing(source: Source) -> Iterator[Callable[[], list[str]]]:
    """Attribute all methods registered inside to this source; yields a function that lists their
    names."""
    _current.append(source)
    try:
        yield lambda: [name for name, known in SOURCES.items() if known == source]
    finally:
        _current.pop()


def _register_all(methods: Any) -> None:
    """The entries of a dictionary METHODS: a method, or a pair of words and a method."""
    is_table = isinstance(methods, Mapping)
    require(is_table, "METHODS", methods, "give a dictionary of names and methods")
    for name, entry in methods.items():
        words, method = entry if isinstance(entry, tuple) else ("", entry)
        register_method(name, method, words)


def _line_of(error: BaseException, path: str) -> str:
    """The line of the file that an error comes from."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"line {error.lineno}: "
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    return f"line {lines[-1]}: " if lines else ""


# ---------------------------------------------------------------------- installed packages


@cache
def load_installed() -> None:
    """Register the methods of installed packages. Warns about one that cannot be loaded."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
        try:
            found = entry.load()
            method = found() if isinstance(found, type) else found
            file = inspect.getfile(type(as_method(method).plain))
            digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            with _executing({"file": file, "sha256": digest, "package": package}):
                register_method(entry.name, method)
        except Exception as error:
            warnings.warn(
                f"method {entry.name!r} of the installed package {package} cannot be used: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )


# ---------------------------------------------------------------------- what records say


def check_sources(recorded: Mapping[str, Source], folder: Path, *, is_new: bool = False) -> None:
    """Compare the plugins that records were made with to those of this process.

    Args:
        recorded: the source of each method, as the records have it.
        is_new: whether all is repeated in a new folder; then a plugin may have changed, with a
            warning.

    Raises:
        RunError: one is missing or has changed.
    """
    for method, then in recorded.items():
        now = SOURCES.get(method)
        if now is None:
            remedy = f"name that file: --plugin {then.get('file')}"
            if "package" in then:
                remedy = f"install {then['package']}"
            raise RunError(
                f"{folder} was made with a method of a plugin, {method!r} of "
                f"{then.get('package') or then.get('file')}: {remedy}"
            )
        if now["sha256"] == then.get("sha256"):
            continue
        words = f"{now['file']}, which defines {method!r}, has changed since {folder} was made"
        if is_new:
            warnings.warn(words, stacklevel=2)
            continue
        raise RunError(
            f"{words} (SHA-256 {str(then.get('sha256'))[:12]}, now {now['sha256'][:12]}): bring "
            "back the old file, or start again in another folder"
        )
