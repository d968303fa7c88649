"""What differs between runs: options by dotted name, and names short enough for a legend."""

from collections.abc import Mapping, Sequence
from typing import Any

from scool.columns import flatten_options
from scool.display.records import RunRecord


def options_of(record: RunRecord) -> dict[str, Any]:
    """Every option of a run by dotted name: method, data, model, rounds, seed."""
    config = record.header.get("config") or {}
    options = {"method": record.method, "data": record.federation_name, "seed": record.seed}
    options |= flatten_options({"algorithm": record.algorithm})
    options |= flatten_options({"settings": config.get("settings") or {}})
    return options


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Names whose values differ, `None` where one has no such option.

    >>> differing({"lr": 0.1, "rounds": 5}, {"lr": 0.2, "rounds": 5, "momentum": 0.9})
    {'lr': (0.1, 0.2), 'momentum': (None, 0.9)}
    """
    names = [*a, *(name for name in b if name not in a)]
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def group_runs(records: Sequence[RunRecord]) -> dict[str, list[int]]:
    """Runs that differ in the seed alone, by a name: the method, and what sets it apart."""
    keys: list[str] = []
    options = [options_of(record) for record in records]
    for mine in options:
        plain = {n: v for n, v in mine.items() if n.split(".")[-1] != "seed"}
        keys.append(repr(sorted(plain.items(), key=lambda item: item[0])))
    groups: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    members = list(groups.values())
    names = [_name(group[0], members, records, options) for group in members]
    doubled = {name for name in names if names.count(name) > 1}
    labels = [
        f"{name} [{records[group[0]].path}]" if name in doubled else name
        for name, group in zip(names, members, strict=True)
    ]
    return dict(zip(labels, members, strict=True))


def _name(
    run: int,
    groups: Sequence[Sequence[int]],
    records: Sequence[RunRecord],
    options: Sequence[Mapping[str, Any]],
) -> str:
    """The method; where another group has the same, also the options that tell them apart."""
    method = records[run].method
    rivals = [group[0] for group in groups if records[group[0]].method == method]
    different: list[str] = []
    for rival in rivals:
        for name in differing(options[run], options[rival]):
            if name.split(".")[-1] != "seed" and name not in different:
                different.append(name)
    words = [f"{name.split('.')[-1]}={options[run].get(name)}" for name in different]
    return f"{method} ({', '.join(words)})" if 0 < len(words) <= 3 else method
