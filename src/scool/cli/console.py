"""Progress on stderr: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, final

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scool.types import Info


def new_folder(name: str) -> Path:
    """A fresh folder under runs/, named by time and method."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = Path("runs") / f"{stamp}-{name}"
    number = 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stamp}-{name}-{number}"
    return path


@final
class Console:
    """A recorder that shows round, loss, score and the time left."""

    def __init__(self, rounds: int, *, quiet: bool = False) -> None:
        self.rounds = rounds
        self.quiet = quiet
        self.method = ""
        self.words = ""
        self._warned: set[str] = set()
        self._line_at = 0.0
        self._began = 0.0
        self._first = 0
        self._console = RichConsole(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=rounds, words="", start=False)

    def __enter__(self) -> "Console":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def start(self, header: Mapping[str, Any], first_round: int) -> None:
        self.method = header["method"]
        self._began = self._line_at = time.monotonic()
        self._first = first_round
        self._progress.reset(
            self._task, completed=first_round, description=self.method, total=self.rounds
        )

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        for client, why in row["quarantined"].items():
            if client not in self._warned:
                self._warned.add(client)
                self._say(f"client {client} is left out from now on: non-finite {why}")
        if row.get("fallback"):
            count = int(row["fallback"])
            if "fallback" not in self._warned:
                self._warned.add("fallback")
                self._say(f"round {row['round']}: {count} clients found no peer to learn from")
        self.words = self._describe(row)
        self._progress.update(self._task, completed=row["round"] + 1, words=self.words)
        self._plain_line(row["round"] + 1)

    def end(self, result: Any) -> None:
        self._warned.clear()

    def _describe(self, row: Mapping[str, Any]) -> str:
        parts = [] if row["train_loss"] is None else [f"loss {row['train_loss']:.3f}"]
        if row.get("accuracy_mean") is not None:
            parts.append(f"accuracy {row['accuracy_mean']:.2f}")
        elif row.get("r2_mean") is not None:
            parts.append(f"R2 {row['r2_mean']:.3f}")
        return "  ".join(parts)

    def _plain_line(self, done: int) -> None:
        """Without a terminal: a line at the end, and one every few seconds before."""
        if self.quiet or self._console.is_terminal:
            return
        now = time.monotonic()
        if done < self.rounds and now - self._line_at < 5:
            return
        self._line_at = now
        spent = now - self._began
        left = spent / max(1, done - self._first) * (self.rounds - done)
        print(
            f"{self.method}  round {done}/{self.rounds}  {self.words}  {spent:.0f} s, "
            f"{left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    def _say(self, words: str) -> None:
        """A warning that stays on the screen."""
        if not self.quiet:
            self._console.print(f"warning: {words}", style="yellow", highlight=False)
