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
    for heading in (score, "graph L1", "ARI", "rounds", "sent", "messages", "seconds"):
        table.add_column(heading, justify="right")
    for s in summaries:
        name = "r2" if is_regression else "accuracy"
        digits = 3 if is_regression else 2
        table.add_row(
            s["method"],
            _plus_minus(s[f"{name}_mean"], s[f"{name}_std"], digits),
            _number(s.get("graph_l1"), 3),
            _number(s.get("graph_ari"), 2),
            str(s["rounds"]),
            human_bytes(s["bytes_sent"]),
            f"{s['messages']:,}",
            _number(s["seconds"], 1),
        )
    Console(width=110, soft_wrap=True).print(table)


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
