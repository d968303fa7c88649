"""`scool diff A B`: what differs between two runs, in options and in results."""

import json as json_module
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scool.columns import flatten_options, shown
from scool.display.differences import differing, options_of
from scool.display.records import RunRecord, check_run, read_run
from scool.display.series import figures, paired_runs
from scool.errors import printable
from scool.evaluation.metrics import metric_columns
from scool.evaluation.paired import listed


@dataclass(frozen=True)
class DiffCommand:
    """Show what differs between two runs: options, program and machine, results."""

    a: tyro.conf.Positional[Path]
    """The folder of a run."""
    b: tyro.conf.Positional[Path]
    """The folder of another."""
    json: bool = False
    """Print one JSON object."""


def compare_runs(a: RunRecord, b: RunRecord) -> dict[str, Any]:
    """Differences by name, each as (of A, of B)."""
    machine = [
        flatten_options({name: record.header.get(name) or {} for name in ("versions", "hardware")})
        for record in (a, b)
    ]
    of_a, of_b = (figures([record]) for record in (a, b))
    metrics = metric_columns(record.evaluated[-1] for record in (a, b) if record.evaluated)
    names = {"score": "score", "worst": "worst client"}
    names |= {column.name: column.words for column in (*metrics, *shown("diff"))}
    return {
        "options": differing(options_of(a), options_of(b)),
        "machine": differing(*machine),
        "results": {words: (of_a.get(n), of_b.get(n)) for n, words in names.items()},
        "clients": client_by_client(a, b),
        "first_different_round": first_difference(a, b),
    }


def client_by_client(a: RunRecord, b: RunRecord) -> dict[str, Any] | None:
    """What each client gains with B over A, as `Paired.to_dict` has it; None for other clients."""
    if not (a.evaluated and b.evaluated and a.same_clients(b)):
        return None
    return paired_runs([(b, a)]).to_dict()


def first_difference(a: RunRecord, b: RunRecord) -> int | None:
    """The first round (from 1) whose records differ; None where all common rounds are equal."""
    for one, other in zip(a.rows, b.rows, strict=False):
        if one != other:
            return one["round"] + 1
    return None


def diff(arguments: Sequence[str]) -> int:
    command = tyro.cli(DiffCommand, args=list(arguments), prog="scool diff")
    for name, path in (("a", command.a), ("b", command.b)):
        check_run(name, path)
    a, b = read_run(command.a), read_run(command.b)
    found = compare_runs(a, b)
    if command.json:
        print(json_module.dumps(found))
        return 0
    console = Console()
    # A file has no edge: there, lines are as long as they need to be.
    console = console if console.is_terminal else Console(width=140, soft_wrap=True)
    for letter, path in (("A", command.a), ("B", command.b)):
        console.print(Text(printable(f"{letter}: {path}")))
    for title in ("options", "machine"):
        if found[title]:
            console.print(_table(f"{title} that differ", found[title]))
        else:
            console.print(f"{title}: no difference")
    console.print(_table("results", found["results"], with_change=True))
    if found["clients"] is not None:
        console.print(Text(printable(_worse(found["clients"]))))
    console.print(_verdict(found["first_different_round"], a, b))
    return 0


def _worse(clients: dict[str, Any]) -> str:
    """What clients gain with B on average, and who loses."""
    mean, ends = clients["mean"], clients["over_clients"]
    sure = f" (95 % over clients: {ends[0]:+.4g} to {ends[1]:+.4g})" if ends else ""
    gain = "" if mean is None else f"With B clients gain {mean:+.4g} on average{sure}. "
    count, names = clients["worse"], clients["names_worse"]
    named = f" ({listed(names)})" if names else ""
    return f"{gain}{count} of {clients['clients']} clients are worse off with B{named}."


def _verdict(first: int | None, a: RunRecord, b: RunRecord) -> str:
    if first is not None:
        return f"The records differ from round {first} on."
    shared = min(len(a.rows), len(b.rows))
    return f"The records of all {shared} rounds that both have are equal, to the bit."


def _table(title: str, pairs: dict[str, tuple[Any, Any]], with_change: bool = False) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", overflow="fold")
    for letter in "AB":
        table.add_column(letter, justify="right", overflow="fold")
    if with_change:
        table.add_column("change", justify="right")
    for name, (one, other) in pairs.items():
        words = [name, _word(one), _word(other)]
        if with_change:
            change = None if one is None or other is None else other - one
            words.append("" if change is None else f"{'+' if change > 0 else ''}{_word(change)}")
        table.add_row(*(Text(printable(word)) for word in words))
    return table


def _word(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.4g}"
    return str(value)
