"""`scool bench engine | scaling | estep`."""

import json as json_module
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from scool.experiment.bench import bench_engine, bench_estep, bench_scaling


@dataclass(frozen=True)
class BenchCommand:
    """Time the engine against the loop over clients, its growth with K, or the E-steps.

    On shared machines compare the ratios, which are measured in one run, not the times.
    """

    what: tyro.conf.Positional[Literal["engine", "scaling", "estep"]]
    """engine: against the per-client loop; scaling: growth with K; estep: SBM and MMSBM."""
    device: str = "auto"
    """auto, cpu or cuda."""
    json: bool = False
    """Print one JSON object a line."""


def bench(arguments: Sequence[str]) -> int:
    command = tyro.cli(BenchCommand, args=list(arguments), prog="scool bench")
    rows: Iterable[Mapping[str, Any]]
    if command.what == "engine":
        rows = bench_engine(command.device)
    else:
        rows = bench_estep() if command.what == "estep" else [bench_scaling(command.device)]
    if command.json:
        for row in rows:
            print(json_module.dumps(row), flush=True)
        return 0
    for row in rows:
        table = Table(show_header=False)
        for name, value in row.items():
            table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
        Console(width=100).print(table)
    return 0
