"""Results side by side, as text."""

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from scool.columns import shown
from scool.evaluation.metrics import metric_columns


def comparison_table(summaries: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print one row per method on stdout."""
    print(comparison_text(summaries, title))


def comparison_text(summaries: Sequence[Mapping[str, Any]], title: str | None = None) -> str:
    """One row per method."""
    width = 130 + 11 * len(metric_columns(summaries))
    return _as_text(_comparison(summaries, title), width)


def comparison_columns(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the numbers that the table has."""
    name = _score_name(summaries)
    columns = [*metric_columns(summaries), *shown("compare")]
    return [f"{name}_mean", f"{name}_std", *(column.name for column in columns)]


def _score_name(summaries: Sequence[Mapping[str, Any]]) -> str:
    return "r2" if any(s.get("r2_mean") is not None for s in summaries) else "accuracy"


def _comparison(summaries: Sequence[Mapping[str, Any]], title: str | None) -> Table:
    name = _score_name(summaries)
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    table.add_column("R2" if name == "r2" else "accuracy %", justify="right")
    columns = [*metric_columns(summaries), *shown("compare")]
    for column in columns:
        table.add_column(column.words, justify="right")
    for s in summaries:
        mean, std = s.get(f"{name}_mean"), s.get(f"{name}_std")
        table.add_row(
            s["method"],
            _score(mean, std, 3 if name == "r2" else 2, bool(s.get("diverged"))) + _left_out(s),
            *(column.text(s.get(column.name)) for column in columns),
        )
    return table


def _left_out(summary: Mapping[str, Any]) -> str:
    """How many clients are not behind a score."""
    count = len(summary.get("quarantined") or {})
    return f" ({count} of {summary['clients']} clients out)" if count else ""


def tuning_text(rows: Sequence[Mapping[str, Any]], score: str, digits: int) -> str:
    """What a search chose, one row per method."""
    table = Table()
    table.add_column("method")
    for heading in ("candidates", "runs", score):
        table.add_column(heading, justify="right")
    table.add_column("chosen", overflow="fold")
    for row in rows:
        mean, std = row["validation_mean"], row["validation_std"]
        found = _score(mean, std, digits, mean is None)
        table.add_row(row["method"], str(row["candidates"]), str(row["runs"]), found, row["chosen"])
    return _as_text(table, 130)


def _as_text(table: Table, width: int) -> str:
    file = StringIO()
    Console(width=width, soft_wrap=True, file=file).print(table)
    return file.getvalue().rstrip()


def _score(mean: float | None, std: float | None, digits: int, diverged: bool) -> str:
    """A method may diverge and still leave models that can be judged."""
    if not diverged:
        return _plus_minus(mean, std, digits)
    return "diverged" if mean is None else f"{_plus_minus(mean, std, digits)} diverged"


def _plus_minus(mean: float | None, std: float | None, digits: int) -> str:
    if mean is None:
        return "-"
    return f"{mean:.{digits}f} ± {std or 0:.{digits}f}"
