"""Results side by side, as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def comparison_table(summaries: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print one row a method on stdout."""
    is_regression = any(s.get("r2_mean") is not None for s in summaries)
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    score = "R2" if is_regression else "accuracy %"
    for heading in (score, "graph L1", "ARI", "rounds", "epochs", "sent", "messages", "seconds"):
        table.add_column(heading, justify="right")
    for s in summaries:
        name = "r2" if is_regression else "accuracy"
        digits = 3 if is_regression else 2
        mean, std = s.get(f"{name}_mean"), s.get(f"{name}_std")
        sent, messages = s["bytes_sent"], s["messages"]
        table.add_row(
            s["method"],
            _score(mean, std, digits, bool(s.get("diverged"))) + _left_out(s),
            _number(s.get("graph_l1"), 3),
            _number(s.get("graph_ari"), 2),
            _number(s["rounds"], 0),
            _short(s.get("epochs")),
            "-" if sent is None else human_bytes(sent),
            _short(messages),
            _number(s["seconds"], 1),
        )
    Console(width=130, soft_wrap=True).print(table)


def _left_out(summary: Mapping[str, Any]) -> str:
    """How many clients are not behind a score."""
    count = len(summary.get("quarantined") or {})
    return f" ({count} of {summary['clients']} clients out)" if count else ""


def tuning_table(rows: Sequence[Mapping[str, Any]], score: str, digits: int) -> None:
    """Print what a search chose, one row a method, on stdout."""
    table = Table()
    table.add_column("method")
    for heading in ("candidates", "runs", score):
        table.add_column(heading, justify="right")
    table.add_column("chosen", overflow="fold")
    for row in rows:
        mean, std = row["validation_mean"], row["validation_std"]
        found = _score(mean, std, digits, mean is None)
        table.add_row(row["method"], str(row["candidates"]), str(row["runs"]), found, row["chosen"])
    Console(width=130, soft_wrap=True).print(table)


def _score(mean: float | None, std: float | None, digits: int, diverged: bool) -> str:
    """A method may diverge and still leave models that can be judged."""
    if not diverged:
        return _plus_minus(mean, std, digits)
    return "diverged" if mean is None else f"{_plus_minus(mean, std, digits)} diverged"


def _short(value: float | None) -> str:
    """A count: 1,650 or 2.5."""
    return "-" if value is None else f"{value:,.1f}".removesuffix(".0")


def _plus_minus(mean: float | None, std: float | None, digits: int) -> str:
    if mean is None:
        return "-"
    return f"{mean:.{digits}f} ± {std or 0:.{digits}f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def human_bytes(count: float) -> str:
    """Bytes with a unit.

    >>> human_bytes(46_176_000)
    '46.2 MB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
