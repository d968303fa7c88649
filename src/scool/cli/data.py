"""`scool data list | check | fetch`."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from scool.cli.arguments import peek
from scool.data.catalogue import DATASETS, data_root
from scool.data.inventory import check, fetch, status
from scool.errors import ConfigError, nearest

USAGE = """usage: scool data list                 which datasets there are and whether they are here
       scool data check NAME [NAME ...] verify every file of a dataset
       scool data fetch NAME [NAME ...] get a dataset from the Hugging Face hub

  --data-dir DIR   where data files lie; default: $SCOOL_DATA, else ./data
"""


def _is_folder(words: Sequence[str], at: int) -> bool:
    """Whether a word belongs to --data-dir."""
    return words[at].startswith("--data-dir") or (at > 0 and words[at - 1] == "--data-dir")


def data(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    action, *rest = arguments
    if action not in ("list", "check", "fetch"):
        raise ConfigError(
            f"unknown action {action!r}: {nearest(action, ['list', 'check', 'fetch'])}"
        )
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
