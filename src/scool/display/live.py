"""How a run is doing: a live view on a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, final

import torch
from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from torch import Tensor

from scool.columns import human_bytes
from scool.graph.edges import Edges, Matrix
from scool.types import Info

EVERY = 5
"""Seconds between plain lines."""
BARS = "▁▂▃▄▅▆▇█"
SPARKS = 32
"""Characters of a sparkline; longer curves are thinned."""
SHOWN = 4
"""The newest warnings, which stay in view."""


def sparkline(values: Sequence[float | None], width: int = SPARKS) -> str:
    """A curve in one line; a gap is a blank.

    >>> sparkline([0.0, None, 1.0, 2.0])
    '▁ ▅█'
    """
    if len(values) > width:
        values = [values[round(n * (len(values) - 1) / (width - 1))] for n in range(width)]
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return ""
    low, high = min(known), max(known)
    size = (high - low) or 1.0
    return "".join(
        " " if v is None or not math.isfinite(v) else BARS[round((v - low) / size * 7)]
        for v in values
    )


def duration(seconds: float) -> str:
    """A time in the unit a person would use.

    >>> [duration(s) for s in (5.2, 75, 7300)]
    ['5 s', '1 min 15 s', '2 h 1 min']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@dataclass
class View:
    """One run so far, as `rich` draws it."""

    method: str = ""
    rounds: int = 0
    first: int = 0  # rounds done before the view began
    spent: float = 0.0  # seconds since then
    names: Sequence[str] | None = None  # of the clients
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    density: float | None = None  # part of the possible edges that are in use
    warnings: list[str] = field(default_factory=list)
    _warned: set[str] = field(default_factory=set)

    def add(self, row: Mapping[str, Any], graph: Matrix | None) -> list[str]:
        """Add a round; returns the warnings that are new with it."""
        self.rows.append(row)
        if graph is not None:
            self.density = density(graph)
        found = _warnings(row, self.names)
        new = [words for key, words in found.items() if key not in self._warned]
        self._warned |= found.keys()
        self.warnings += new
        return new

    @property
    def done(self) -> int:
        return self.rows[-1]["round"] + 1 if self.rows else self.first

    @property
    def left(self) -> float | None:
        """Seconds that the remaining rounds will take, judged by those so far."""
        mine = self.done - self.first
        return self.spent / mine * (self.rounds - self.done) if mine > 0 else None

    def _last(self, name: str) -> Any:
        found = (row[name] for row in reversed(self.rows) if row.get(name) is not None)
        return next(found, None)

    def words(self) -> str:
        """Loss and score of the last round that has them."""
        parts = [] if self._last("train_loss") is None else [f"loss {self._last('train_loss'):.3f}"]
        if self._last("accuracy_mean") is not None:
            parts.append(f"accuracy {self._last('accuracy_mean'):.2f}")
        elif self._last("r2_mean") is not None:
            parts.append(f"R2 {self._last('r2_mean'):.3f}")
        return "  ".join(parts)

    def line(self) -> str:
        """Everything in one line, for a file."""
        left = "" if self.left is None else f", {self.left:.0f} s left"
        return (
            f"{self.method}  round {self.done}/{self.rounds}  {self.words()}  "
            f"{self.spent:.0f} s{left}"
        )

    def __rich__(self) -> RenderableType:
        left = "" if self.left is None else f"  {duration(self.left)} left"
        head = Table.grid(padding=(0, 1))
        head.add_row(
            ProgressBar(total=max(1, self.rounds), completed=self.done, width=SPARKS),
            Text(f"round {self.done} of {self.rounds}  {duration(self.spent)}{left}"),
        )
        facts = Table.grid(padding=(0, 2))
        for name, value, curve in self._facts():
            facts.add_row(Text(name, style="dim"), Text(value), Text(curve, style="cyan"))
        warned = [Text(f"warning: {words}", style="yellow") for words in self.warnings[-SHOWN:]]
        return Panel(Group(head, facts, *warned), title=Text(self.method), title_align="left")

    def _facts(self) -> list[tuple[str, str, str]]:
        score = "accuracy_mean" if self._last("accuracy_mean") is not None else "r2_mean"
        label, form = ("accuracy", "{:.2f} %") if score == "accuracy_mean" else ("R2", "{:.3f}")
        facts: list[tuple[str, str, str]] = []
        for name, text, pattern in (
            ("train_loss", "loss", "{:.4f}"),
            (score, label, form),
            ("elbo", "bound", "{:.1f}"),
        ):
            if self._last(name) is not None:
                curve = sparkline([row.get(name) for row in self.rows if name in row])
                facts.append((text, pattern.format(self._last(name)), curve))
        if self.density is not None:
            facts.append(("graph", f"{self.density:.0%} of the possible edges", ""))
        if self._last("blocks") is not None:
            facts.append(("blocks", f"{len(set(self._last('blocks')) - {None})} found", ""))
        sent = sum(row.get("bytes") or 0 for row in self.rows)
        facts.append(("sent", human_bytes(sent), ""))
        return facts


def density(graph: Matrix) -> float:
    """The part of the possible edges between clients that carry weight.

    >>> density(torch.eye(3))
    0.0
    """
    if isinstance(graph, Edges):
        used = graph.take((graph.values != 0) & ~graph.is_loop).count
        return used / max(1, len(graph) * (len(graph) - 1))
    others = graph.detach().cpu() != 0
    others &= ~torch.eye(len(others), dtype=torch.bool)
    return float(others.sum()) / max(1, len(others) * (len(others) - 1))


def _warnings(row: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, str]:
    """Warnings about a round, by subject; each is shown once."""
    found: dict[str, str] = {}
    for client, why in (row.get("quarantined") or {}).items():
        who = f"{client} ({names[int(client)]})" if names else client
        found[client] = f"client {who} is left out from now on: non-finite {why}"
    if row.get("fallback"):
        count = int(row["fallback"])
        found["fallback"] = f"round {row['round']}: {count} clients found no peer to learn from"
    if row.get("diverged"):
        stopped = f"round {row['round']}: {int(row['diverged'])} clients diverged and have stopped"
        found["diverged"] = f"{stopped}; lower --lr, or take fewer local steps per round"
    return found


@final
class Console:
    """A recorder that shows on stderr how a run is doing."""

    def __init__(
        self,
        rounds: int,
        *,
        quiet: bool = False,
        drawn: Callable[[], RenderableType] | None = None,
    ) -> None:
        """`drawn` makes another picture for a terminal."""
        self.rounds = rounds
        self.quiet = quiet
        self.view = View()
        self._line_at = 0.0
        self._began = 0.0
        self._console = Terminal(stderr=True)
        self._live = Live(
            console=self._console,
            transient=True,
            refresh_per_second=4,
            get_renderable=drawn or self._drawn,
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
        names = header.get("client_names")
        self.view = View(header["method"], self.rounds, first_round, names=names)

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        graph = info.get("graph")
        for words in self.view.add(row, graph if isinstance(graph, Tensor | Edges) else None):
            self._say(words)
        self._plain_line(row["round"] + 1)

    def end(self, result: Any) -> None:
        """The caller shows the result."""

    def _plain_line(self, done: int) -> None:
        """Print a line every few seconds and one at the end, where there is no terminal."""
        if self.quiet or self.is_live:
            return
        now = time.monotonic()
        if done < self.rounds and now - self._line_at < EVERY:
            return
        self._line_at = now
        self.view.spent = now - self._began
        print(self.view.line(), file=sys.stderr, flush=True)

    def _say(self, words: str) -> None:
        """Show a warning, which stays on the screen; also in quiet mode."""
        self._console.print(f"warning: {words}", style="yellow", highlight=False, markup=False)
