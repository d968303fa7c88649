"""Progress on stderr: a live view on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, final

from rich.console import Console as RichConsole
from rich.live import Live
from torch import Tensor

from scool.cli.live import View
from scool.graph.edges import Edges
from scool.types import Info

EVERY = 5
"""Seconds between plain lines."""


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
    """A recorder that shows how a run is doing: `rich` draws it on a terminal."""

    def __init__(self, rounds: int, *, quiet: bool = False) -> None:
        self.rounds = rounds
        self.quiet = quiet
        self.view = View()
        self._line_at = 0.0
        self._began = 0.0
        self._console = RichConsole(stderr=True)
        self._live = Live(
            console=self._console, transient=True, refresh_per_second=4, get_renderable=self._drawn
        )

    @property
    def is_live(self) -> bool:
        return not self.quiet and self._console.is_terminal

    def _drawn(self) -> View:
        if self._began:
            self.view.spent = time.monotonic() - self._began
        return self.view

    def __enter__(self) -> "Console":
        if self.is_live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def start(self, header: Mapping[str, Any], first_round: int) -> None:
        self._began = self._line_at = time.monotonic()
        self.view = View(header["method"], self.rounds, first_round)

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        graph = info.get("graph")
        for words in self.view.add(row, graph if isinstance(graph, Tensor | Edges) else None):
            self._say(words)
        self._plain_line(row["round"] + 1)

    def end(self, result: Any) -> None:
        """The table of the results says the rest."""

    def _plain_line(self, done: int) -> None:
        """Without a terminal: a line at the end, and one every few seconds before."""
        if self.quiet or self.is_live:
            return
        now = time.monotonic()
        if done < self.rounds and now - self._line_at < EVERY:
            return
        self._line_at = now
        self.view.spent = now - self._began
        print(self.view.line(), file=sys.stderr, flush=True)

    def _say(self, words: str) -> None:
        """A warning, which stays on the screen; nobody is spared it."""
        self._console.print(f"warning: {words}", style="yellow", highlight=False, markup=False)
