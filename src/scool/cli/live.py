"""How a run is doing, as something to look at: bars and sparklines, or one plain line."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from scool.columns import human_bytes
from scool.graph.edges import Edges, Matrix

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 32
"""Letters of a sparkline; more rounds are thinned."""
SHOWN = 4
"""Warnings that stay in view; the newest."""


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
    """One run so far. Filled by whoever follows it; drawn by rich."""

    method: str = ""
    rounds: int = 0
    first: int = 0  # rounds done before we looked
    spent: float = 0.0  # seconds since then
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    density: float | None = None  # part of the possible edges that are in use
    warnings: list[str] = field(default_factory=list)
    _warned: set[str] = field(default_factory=set)

    def add(self, row: Mapping[str, Any], graph: Matrix | None) -> list[str]:
        """Take a round in; the warnings that are new with it."""
        self.rows.append(row)
        if graph is not None:
            self.density = density(graph)
        new = [w for key, w in _warnings(row).items() if key not in self._warned]
        self._warned |= _warnings(row).keys()
        self.warnings += new
        return new

    @property
    def done(self) -> int:
        return self.rows[-1]["round"] + 1 if self.rows else self.first

    @property
    def left(self) -> float | None:
        """Seconds that the rest will take, judged by the rounds so far."""
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


def _warnings(row: Mapping[str, Any]) -> dict[str, str]:
    """What a person should know of a round, by what it is about: each is said once."""
    found = {
        client: f"client {client} is left out from now on: non-finite {why}"
        for client, why in (row.get("quarantined") or {}).items()
    }
    if row.get("fallback"):
        count = int(row["fallback"])
        found["fallback"] = f"round {row['round']}: {count} clients found no peer to learn from"
    if row.get("diverged"):
        stopped = f"round {row['round']}: {int(row['diverged'])} clients diverged and have stopped"
        found["diverged"] = f"{stopped}; lower --lr, or take fewer local steps a round"
    return found
