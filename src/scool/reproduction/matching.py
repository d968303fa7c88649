"""The options of a run: how tables describe them, and whether a record matches a configuration,
even one of another version."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from scool.algorithms import METHODS
from scool.columns import flatten_options
from scool.reproduction.rows import Row
from scool.run.config import RunConfig, Settings
from scool.run.identity import modern
from scool.run.options import as_dict, neutral

# These decide where, how fast, how long and with which seed a run goes, not which row it is.
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
    """The options that identify the row of a run, by dotted name."""
    options = flatten_options(modern(config))
    options = {n: v for n, v in options.items() if n not in _NOT_THE_ROW}
    dataset = options.get("settings.data.dataset")
    if isinstance(dataset, str):
        options["settings.data.dataset"] = dataset.replace("_", "-")
    return options


def conflicts(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options that differ, with both values.

    One that the record lacks is newer: it was added with a default that changes nothing, and a run
    that sets it is another. One that only the record has was removed; its effect is unknown.
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
    """The defaults of a run before an option existed, which the method of that name may set
    differently now."""
    plain = {"algorithm": neutral(METHODS[method][1]), "settings": as_dict(Settings())}
    return row_options(plain)


def stated_options(config: RunConfig, row: Row) -> dict[str, Any]:
    """What a table must say of a run: SGD, what the row is about, and all that departs from the
    method's own defaults."""
    mine = flatten_options(as_dict(config.algorithm))
    plain = flatten_options(as_dict(METHODS[config.method][1]))
    sgd = config.algorithm.sgd
    work = {"steps": sgd.steps} if sgd.steps else {"epochs": sgd.epochs}
    stated: dict[str, Any] = {"lr": sgd.lr, "batch_size": sgd.batch_size, **work}
    stated["weight_decay"] = sgd.weight_decay
    for name, value in mine.items():
        short = name.rpartition(".")[2]
        if (plain.get(name) != value or short in row.options) and short not in stated:
            stated[short] = value
    stated |= {name: value for name, value in config.settings.between.items() if value}
    stated["model"] = config.settings.model.model
    if config.settings.model.relu_logits:
        stated["relu_logits"] = True
    stated["augment"] = config.settings.data.augment
    return stated
