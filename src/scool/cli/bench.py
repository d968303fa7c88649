"""`scool bench engine | scaling | estep | scale-out | checkpoints`."""

import json as json_module
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from scool.bench.checkpoints import bench_checkpoints
from scool.bench.engine import bench_engine, bench_estep, bench_scaling
from scool.bench.rounds import CLIENTS as OF_ROUNDS
from scool.bench.rounds import bench_rounds
from scool.bench.scale_out import CLIENTS, RANKS, bench_scale_out


@dataclass(frozen=True)
class BenchCommand:
    """Time the engine against the loop over clients, its growth with K, or the E-steps.

    On shared machines compare the ratios, which are measured in one run, not the times.
    """

    what: tyro.conf.Positional[Literal["engine", "scaling", "estep", "scale-out", "checkpoints"]]
    """engine: against the per-client loop; scaling: growth with K, of a local phase and of whole
    rounds of SCooL-SBM; estep: SBM and MMSBM;
    scale-out: rounds of several ranks on this machine's CPU, and their efficiency; checkpoints: a
    run with one every ten rounds against one with none."""
    device: str = "auto"
    """auto, cpu or cuda (engine, scaling, checkpoints)."""
    clients: tuple[int, ...] = ()
    """Numbers of clients: 100, 1,000 and 10,000 for scale-out, 1,000, 2,000 and 4,000 for the
    rounds of scaling."""
    ranks: tuple[int, ...] = RANKS
    """scale-out: numbers of ranks; efficiency compares with the first."""
    json: bool = False
    """Print one JSON object per line."""


def _scaling(command: BenchCommand) -> Iterator[Mapping[str, Any]]:
    yield bench_scaling(command.device)
    yield bench_rounds(command.clients or OF_ROUNDS, command.device)


def bench(arguments: Sequence[str]) -> int:
    command = tyro.cli(BenchCommand, args=list(arguments), prog="scool bench")
    rows: Iterable[Mapping[str, Any]]
    if command.what == "engine":
        rows = bench_engine(command.device)
    elif command.what == "scale-out":
        rows = bench_scale_out(command.clients or CLIENTS, command.ranks)
    elif command.what == "checkpoints":
        rows = bench_checkpoints(command.device)
    elif command.what == "estep":
        rows = bench_estep()
    else:
        rows = _scaling(command)
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
