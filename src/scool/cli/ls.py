"""`scool ls DIR`: the runs in a folder with their key figures."""

import json as json_module
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scool.columns import Column, shown
from scool.display.records import RunRecord, find_runs, read_runs
from scool.display.series import figures
from scool.errors import printable
from scool.evaluation.metrics import metric_columns


@dataclass(frozen=True)
class LsCommand:
    """List the runs in a folder, and in folders inside it."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Where to look."""
    json: bool = False
    """Print one JSON object per run."""


def key_figures(record: RunRecord, root: Path) -> dict[str, Any]:
    """One run in a line."""
    found = figures([record])
    inside = record.path.is_relative_to(root) and record.path != root
    return {
        "run": str(record.path.relative_to(root)) if inside else str(record.path),
        "method": record.method,
        "data": record.federation_name,
        "clients": record.num_clients,
        "seed": record.seed,
        "status": record.status,
        "rounds": record.rounds,
        "of": record.header.get("rounds"),
        "score": found["score"],
        "measure": record.score_name,
        **{column.name: found[column.name] for column in (*metrics_of([record]), *shown("ls"))},
        "started": record.header.get("started"),
    }


def metrics_of(records: Sequence[RunRecord]) -> list[Column]:
    """The columns of the metrics that some runs were asked for."""
    return metric_columns(record.evaluated[-1] for record in records if record.evaluated)


def ls(arguments: Sequence[str]) -> int:
    command = tyro.cli(LsCommand, args=list(arguments), prog="scool ls")
    records = read_runs(find_runs([command.folder]))
    rows = [key_figures(record, command.folder) for record in records]
    if command.json:
        for row in rows:
            print(json_module.dumps(row))
        return 0
    table = Table()
    for heading in ("run", "method", "data"):
        table.add_column(heading, overflow="fold")
    columns = [*metrics_of(records), *shown("ls")]
    for heading in ("clients", "seed", "rounds", "score", *(c.words for c in columns)):
        table.add_column(heading, justify="right")
    table.add_column("status")
    for row in rows:
        table.add_row(*(Text(printable(word)) for word in _words(row, columns)))
    console = Console()
    # A file has no edge: there, lines are as long as they need to be.
    (console if console.is_terminal else Console(width=160, soft_wrap=True)).print(table)
    return 0


def _words(row: dict[str, Any], columns: Sequence[Column]) -> list[str]:
    score = "-" if row["score"] is None else f"{row['score']:.2f} %"
    if row["measure"] == "r2" and row["score"] is not None:
        score = f"{row['score']:.3f} R2"
    of = "" if row["of"] in (None, row["rounds"]) else f"/{row['of']}"
    return [
        row["run"],
        row["method"],
        row["data"],
        *("-" if row[name] is None else str(row[name]) for name in ("clients", "seed")),
        f"{row['rounds']}{of}",
        score,
        *(column.text(row.get(column.name)) for column in columns),
        row["status"],
    ]
