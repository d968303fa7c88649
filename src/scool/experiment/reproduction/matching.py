"""Whether a record is a run of some configuration, also where another version wrote it."""

from collections.abc import Mapping
from typing import Any

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


def flat_options(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted name.

    >>> flat_options({"algorithm": {"sgd": {"lr": 0.1}}, "method": "local"})
    {'algorithm.sgd.lr': 0.1, 'method': 'local'}
    """
    if not isinstance(values, Mapping):
        return {prefix: values}
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat_options(value, f"{prefix}.{name}" if prefix else str(name))
    return found


def row_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that make a run the one it is, by dotted name."""
    options = {n: v for n, v in flat_options(config).items() if n not in _NOT_THE_ROW}
    dataset = options.get("settings.data.dataset")
    if isinstance(dataset, str):
        options["settings.data.dataset"] = dataset.replace("_", "-")
    return options


def conflicts(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Options that both have and that differ.

    An option that only one of them has belongs to another version: options are added with
    defaults that change nothing.
    """
    mine, theirs = row_options(recorded), row_options(wanted)
    return [name for name in theirs if name in mine and mine[name] != theirs[name]]
