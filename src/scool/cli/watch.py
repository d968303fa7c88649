"""`scool watch DIR`: follow a run, or a comparison, of another process."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console as RichConsole
from rich.live import Live

from scool.display.live import View, density
from scool.display.records import RunRecord, find_runs, missing_methods, read_run, read_runs
from scool.errors import printable, require


@dataclass(frozen=True)
class WatchCommand:
    """Follow a run or a comparison that another process is doing, until it ends."""

    folder: tyro.conf.Positional[Path]
    """The folder of the run or of the comparison."""
    every: float = 1.0
    """Seconds between looks."""
    once: bool = False
    """Print the state once and exit."""


def newest(folder: Path) -> Path:
    """The run that was written to last."""

    def touched(run: Path) -> float:
        files = [run / name for name in ("metrics.jsonl", "run.json")]
        return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)

    return max(find_runs([folder]), key=touched)


def view_of(record: RunRecord) -> View:
    """A run as its folder shows it now."""
    wanted = record.header.get("rounds") or record.rounds
    view = View(printable(record.method), wanted, spent=sum(record.seconds.values()))
    found = record.last_graph()
    for row in record.rows:
        view.add(row, None)
    view.density = None if found is None else density(found[1])
    return view


def has_ended(folder: Path, record: RunRecord) -> bool:
    """Whether the run or comparison is over."""
    if record.status in ("interrupted", "failed", "killed", "unknown"):
        return True
    is_comparison = (folder / "compare.json").is_file()
    waiting = is_comparison and bool(missing_methods(folder))
    records = read_runs(find_runs([folder])) if is_comparison else [record]
    return not waiting and all(r.status != "running" for r in records)


def watch(arguments: Sequence[str]) -> int:
    command = tyro.cli(WatchCommand, args=list(arguments), prog="scool watch")
    require(command.every > 0, "every", command.every, "give a positive number of seconds")
    console = RichConsole()
    last = ""
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            record = read_run(newest(command.folder))
            view = view_of(record)
            if console.is_terminal:
                live.update(view, refresh=True)
            elif printable(view.line()) != last:
                last = printable(view.line())
                print(last, flush=True)
            if command.once or has_ended(command.folder, record):
                break
            time.sleep(command.every)
    if record.status != "running":
        go_on = (
            f"; `scool resume {command.folder}` continues it" if record.status == "killed" else ""
        )
        why = f": {record.header.get('reason')}" if record.status == "failed" else ""
        words = printable(f"{record.path}: {record.status}{why}{go_on}")
        print(words, file=sys.stderr)
    return 0
