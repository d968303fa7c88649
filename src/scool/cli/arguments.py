"""Options that commands share, and how the words typed become a command."""

import importlib.metadata
import time
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import tyro

from scool.cli.help import printed_plainly, short_help
from scool.data.catalogue import DataConfig
from scool.data.own_table import looked_at
from scool.errors import ConfigError
from scool.run.options import with_options
from scool.run.plugins import GROUP, load_installed, load_plugin

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How a command shows what it does."""

    json: bool = False
    """Print JSON instead of a table: one object per line."""
    quiet: bool = False
    """No progress on stderr."""


@dataclass(frozen=True, kw_only=True)
class Plugged(Shown):
    """A command that runs methods, including those of your own files."""

    plugin: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """A Python file with METHODS of your own, which is executed; repeat the option for several."""


@dataclass(frozen=True, kw_only=True)
class Recorded(Plugged):
    """A command that makes records, with options from a file."""

    out: Path | None = None
    """Folder for the records; default: a new one under runs/."""
    config: Path | None = None
    """A TOML file with options; flags override it."""

    def folder(self, name: str) -> Path:
        """The folder asked for, or a new one under runs/ that is named by the time."""
        if self.out is not None:
            return self.out
        path = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
        return first_free(path, path) if path.exists() else path


def first_free(path: Path, stem: Path) -> Path:
    """The first of STEM-1, STEM-2, ... that does not exist."""
    number = 1
    while (candidate := path.with_name(f"{stem.name}-{number}")).exists():
        number += 1
    return candidate


def peek(arguments: Sequence[str], option: str) -> str | None:
    """The value of `--option value` or `--option=value`, without parsing the rest."""
    for position, word in enumerate(arguments):
        if word == option and position + 1 < len(arguments):
            return arguments[position + 1]
        if word.startswith(option + "="):
            return word.split("=", 1)[1]
    return None


def take_plugins(arguments: Sequence[str]) -> None:
    """Load every file of `--plugin`, before anything asks for the names of methods."""
    words = iter(arguments)
    for word in words:
        if word == "--plugin":
            load_plugin(next(words, ""))
        elif word.startswith("--plugin="):
            load_plugin(word.partition("=")[2])
    if importlib.metadata.entry_points(group=GROUP):
        load_installed()


def _anywhere(options: Mapping[str, Any], name: str) -> Any:
    """The value of an option, at the top level or in a table: `[data]`, `[settings.data]`."""
    if name in options:
        return options[name]
    tables = [value for value in options.values() if isinstance(value, Mapping)]
    found = (_anywhere(table, name) for table in tables)
    return next((value for value in found if value is not None), None)


def peek_data(arguments: Sequence[str], options: Mapping[str, Any]) -> DataConfig:
    """Which data, from the flags or the file: it decides the defaults of everything else."""
    names = ("dataset", "partition", "task", "data", "client")
    found = {name: peek(arguments, f"--{name}") or _anywhere(options, name) for name in names}
    given: dict[str, Any] = {n: value for n, value in found.items() if isinstance(value, str)}
    if labels := _words_of(arguments, "--label") or _anywhere(options, "label"):
        given["label"] = labels
    data = with_options(DataConfig(), given, "the options")
    if not data.data:
        return data
    table, task = looked_at(data.data, data.table, data.task if "task" in given else None)
    return replace(data, table=table, task=task)


def _words_of(arguments: Sequence[str], option: str) -> list[str]:
    """The values of an option that takes several, without parsing the rest."""
    first = peek(arguments, option)
    if first is None or option not in arguments:
        return [] if first is None else [first]
    after = arguments[arguments.index(option) + 1 :]
    return list(takewhile(lambda word: not word.startswith("--"), after))


def read_toml(path: str | None) -> dict[str, Any]:
    """Options from a file; `--config` sets defaults and flags override them."""
    if path is None:
        return {}
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"config = {path!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config = {path!r} is not valid TOML: {error}") from error


def configure(
    arguments: Sequence[str],
    options: Mapping[str, Any],
    default_on: Callable[[DataConfig], T],
    prog: str,
    description: str,
) -> T:
    """A command with every option resolved: the defaults that suit the data, then those of the
    configuration file, then flags. Every field of a nested dataclass is one flat option."""
    if "plugin" in options:  # a file of options may come from anybody
        raise ConfigError("plugin in the configuration file is not possible: give --plugin FILE")
    default = default_on(peek_data(arguments, options))
    default = with_options(default, options, "the configuration file")
    flat = (
        tyro.conf.OmitArgPrefixes,
        tyro.conf.AvoidSubcommands,
        tyro.conf.OmitSubcommandPrefixes,
    )
    words = ["--help" if word == "--help-all" else word for word in arguments]
    if words == list(arguments) and {"-h", "--help"} & {*arguments}:
        print(short_help(default, prog, description))
        raise SystemExit(0)

    def parse() -> T:
        with warnings.catch_warnings():  # a prior of a plugin is none of the union, and need not be
            warnings.filterwarnings("ignore", ".* does not match any type in Union")
            return tyro.cli(
                type(default),
                args=words,
                default=default,
                prog=prog,
                description=description,
                config=flat,
            )

    return parse() if words == list(arguments) else printed_plainly(parse)
