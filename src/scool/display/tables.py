"""Results side by side, as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from scool.columns import shown
from scool.evaluation.metrics import metric_columns


def comparison_table(summaries: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print one row a method on stdout."""
    is_regression = any(s.get("r2_mean") is not None for s in summaries)
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    score = "R2" if is_regression else "accuracy %"
    table.add_column(score, justify="right")
    metrics = metric_columns(summaries)
    columns = [*metrics, *shown("compare")]
    for column in columns:
        table.add_column(column.words, justify="right")
    for s in summaries:
        name = "r2" if is_regression else "accuracy"
        digits = 3 if is_regression else 2
        mean, std = s.get(f"{name}_mean"), s.get(f"{name}_std")
        table.add_row(
            s["method"],
            _score(mean, std, digits, bool(s.get("diverged"))) + _left_out(s),
            *(column.text(s.get(column.name)) for column in columns),
        )
    Console(width=130 + 11 * len(metrics), soft_wrap=True).print(table)


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


def _plus_minus(mean: float | None, std: float | None, digits: int) -> str:
    if mean is None:
        return "-"
    return f"{mean:.{digits}f} ± {std or 0:.{digits}f}"
