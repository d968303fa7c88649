"""`scool data list | check | fetch | describe`."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from scool.cli.arguments import configure, peek
from scool.data.catalogue import DATASETS, DataConfig, data_root, load
from scool.data.inventory import check, fetch, status
from scool.errors import ConfigError, Note, nearest

USAGE = """usage: scool data list                 the datasets, and whether their files are present
       scool data check NAME [NAME ...] verify every file of a dataset
       scool data fetch NAME [NAME ...] get a dataset from the Hugging Face hub
       scool data describe [options]    how many samples each client has; the options of `scool run`
                                        about data, e.g. --data FILE --client SITE --label ILL

  --data-dir DIR   where data files lie; default: $SCOOL_DATA, else ./data
"""


ACTIONS = ("list", "check", "fetch", "describe")


@dataclass(frozen=True)
class DescribeCommand:
    """How many samples of which classes each client has."""

    data: DataConfig
    seed: int = 0
    """Decides the test samples."""


def describe(arguments: Sequence[str]) -> int:
    about = "How many samples of which classes each client has."
    command = configure(arguments, {}, DescribeCommand, "scool data describe", about)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # they are in the table
        print(load(command.data, command.seed).describe())
    return 0


def _is_folder(words: Sequence[str], at: int) -> bool:
    """Whether a word belongs to --data-dir."""
    return words[at].startswith("--data-dir") or (at > 0 and words[at - 1] == "--data-dir")


def data(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    action, *rest = arguments
    if action == "describe":
        return describe(rest)
    if action not in ACTIONS:
        raise ConfigError(f"unknown action {action!r}: {nearest(action, ACTIONS)}")
    folder = peek(rest, "--data-dir")
    root = data_root(folder)
    names = [w for at, w in enumerate(rest) if not _is_folder(rest, at)]
    wrong = [word for word in names if word.startswith("-")]
    if wrong:
        raise ConfigError(f"unknown option {wrong[0]!r} of `scool data`: it knows --data-dir")
    if action == "list":
        table = Table(title=f"datasets (files under {root})", title_justify="left")
        for heading in ("name", "state", "what it is"):
            table.add_column(heading)
        for row in status(root):
            table.add_row(row.name, row.state, row.about)
        Console(width=110).print(table)
        return 0
    if not names:
        raise ConfigError(f"scool data {action} needs a name. Known: {', '.join(DATASETS)}")
    for name in names:
        if action == "check":
            print(check(name, root))
        else:
            path = fetch(name, root)
            print(f"{name}: built in, nothing to fetch" if path is None else f"{name}: {path}")
    return 0
