"""Whether a record is a run of some configuration, also where another version wrote it."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from scool.columns import flatten_options
from scool.run.config import Settings
from scool.run.migrations import modern
from scool.run.options import as_dict, neutral
from scool.run.recipes import METHODS

# These decide where, how fast and how long a run goes, or which seed it is; not which row it is.
_NOT_THE_ROW = (
    "settings.seed",
    "settings.rounds",
    "settings.device",
    "settings.eval_every",
    "settings.checkpoint_every",
    "settings.client_chunk",
    "settings.strict",
    "settings.data.data_dir",
    "settings.data.verify_checksums",
)


def row_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make a run the one it is, by dotted name."""
    options = flatten_options(modern(config))
    options = {n: v for n, v in options.items() if n not in _NOT_THE_ROW}
    dataset = options.get("settings.data.dataset")
    if isinstance(dataset, str):
        options["settings.data.dataset"] = dataset.replace("_", "-")
    return options


def conflicts(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options that differ, with both values.

    One that the record lacks is newer: it was added with a default that changes nothing, and a run
    that sets it is another. One that only the record has is gone; who knows what it did.
    """
    return differing(row_options(recorded), row_options(wanted))


def differing(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """`conflicts` of the `row_options` of both."""
    if mine.get("method") != theirs["method"]:
        return {"method": (mine.get("method"), theirs["method"])}
    start = _defaults(theirs["method"])
    both = {n: (mine.get(n, start.get(n)), theirs.get(n)) for n in {**theirs, **mine}}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


@cache
def _defaults(method: str) -> dict[str, Any]:
    """What a run did before an option was there: not what the method of that name sets now."""
    plain = {"algorithm": neutral(METHODS[method][1]), "settings": as_dict(Settings())}
    return row_options(plain)
