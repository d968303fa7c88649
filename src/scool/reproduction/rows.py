"""The rows of the paper's table, of its budget figure and of the ablations: `rows.toml`, read."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Row:
    """One named run: a method, what departs from its recipe, and why."""

    name: str
    """The folder of its records, and what --methods takes."""
    title: str
    """What tables call it."""
    method: str
    """A key of `recipes.METHODS`."""
    about: str = ""
    """The protocol in words, where the recipe does not say it all."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that depart from the recipe."""
    rounds: int = 100
    family: str = ""
    """For ablations: the question that it answers."""
    against: str = ""
    """The row that it is compared with, seed by seed."""


def _read() -> dict[str, tuple[Row, ...]]:
    """The rows of each target."""
    text = (files("scool.reproduction") / "rows.toml").read_text(encoding="utf-8")
    families = tomllib.loads(text)["family"]
    places = {entry["name"]: (f, entry) for f in reversed(families) for entry in f["rows"]}
    found: dict[str, list[Row]] = {}
    for family in families:
        rows = [_row(family, entry, places) for entry in family["rows"]]
        found.setdefault(family["target"], []).extend(rows)
    return {target: tuple(rows) for target, rows in found.items()}


def _row(family: Mapping[str, Any], entry: Mapping[str, Any], places: Mapping[str, Any]) -> Row:
    """One row; that of an ablation starts from the row that it is compared with."""
    against = entry.get("against", family.get("against", ""))
    values = {"against": "" if against == entry["name"] else against, **entry}
    if question := family.get("name", ""):
        its_family, its_entry = places[against]
        base = _row(its_family, its_entry, places)
        about = base.about if family.get("keeps_about") else ""
        values = {"method": base.method, "rounds": base.rounds, "about": about, **values}
        values["options"] = {**base.options, **entry.get("options", {})}
    return Row(family=question, **values)


_ROWS = _read()
TABLE1, BUDGET, ABLATIONS = _ROWS["table1"], _ROWS["budget"], _ROWS["ablations"]
BUDGETS = (2, 5, 8, 10)
"""Percent of the clients that a client talks to."""
GRAPHS: tuple[Row, ...] = tuple(r for r in TABLE1 if r.name in ("scool-sbm", "scool-attention"))
