"""Words typed by a person: what has to be known before the options can be parsed."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from scool.data.catalogue import DataConfig
from scool.errors import ConfigError
from scool.run.options import with_options

T = TypeVar("T")


def peek(arguments: Sequence[str], option: str) -> str | None:
    """The value of `--option value` or `--option=value`, without parsing the rest."""
    for position, word in enumerate(arguments):
        if word == option and position + 1 < len(arguments):
            return arguments[position + 1]
        if word.startswith(option + "="):
            return word.split("=", 1)[1]
    return None


def _anywhere(options: Mapping[str, Any], name: str) -> Any:
    """The value of an option, also where it stands in a table: `[data]`, `[settings.data]`."""
    if name in options:
        return options[name]
    tables = [value for value in options.values() if isinstance(value, Mapping)]
    found = (_anywhere(table, name) for table in tables)
    return next((value for value in found if value is not None), None)


def peek_data(arguments: Sequence[str], options: Mapping[str, Any]) -> DataConfig:
    """Which data, from the flags or the file: it decides the defaults of everything else."""
    names = ("dataset", "partition", "task")
    found = {name: peek(arguments, f"--{name}") or _anywhere(options, name) for name in names}
    given = {name: value for name, value in found.items() if value is not None}
    return with_options(DataConfig(), given, "the options")


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


def parse(default: T, arguments: Sequence[str], prog: str, description: str) -> T:
    """Flags over defaults: every field of a nested dataclass becomes one flat option."""
    return tyro.cli(
        type(default),
        args=list(arguments),
        default=default,
        prog=prog,
        description=description,
        config=(
            tyro.conf.OmitArgPrefixes,
            tyro.conf.AvoidSubcommands,
            tyro.conf.OmitSubcommandPrefixes,
        ),
    )
