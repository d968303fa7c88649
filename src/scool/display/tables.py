"""Results side by side, as text."""

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scool.columns import Column, shown
from scool.errors import RunError
from scool.evaluation.metrics import metric_columns


def comparison_table(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print one row per method on stdout."""
    print(comparison_text(summaries))


def comparison_text(
    summaries: Sequence[Mapping[str, Any]],
    title: str | None = None,
    notes: Sequence[str] = (),
) -> str:
    """One row per method, and below the table what its spreads mean, and notes."""
    width = 155 + 11 * len(metric_columns(summaries))
    table = _as_text(_comparison(summaries, title), width)
    return "\n".join([table, *_caption(summaries), *notes])


def comparison_columns(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the numbers that the table has."""
    name = _score_name(summaries)
    found = [f"{name}_mean", f"{name}_std"]
    found += ["std_over_seeds"] if _has(summaries, "std_over_seeds") else []
    if _has(summaries, "vs_alone"):
        ends = [f"vs_alone_{end}_over_clients" for end in ("low", "high")]
        found += ["vs_alone_mean", *ends, "worse_off", "compared", "share_worse", "names_worse"]
    if any((s.get("vs_alone") or {}).get("over_seeds") for s in summaries):
        found += [f"vs_alone_{end}_over_seeds" for end in ("low", "high")]
    return [*found, *(column.name for column in _columns(summaries))]


def _has(summaries: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(s.get(name) is not None for s in summaries)


def _columns(summaries: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The metrics and costs; no graph error if the true graph is unknown."""
    known = [column for column in shown("compare") if _has(summaries, column.name)]
    return [*metric_columns(summaries), *known]


def _score_name(summaries: Sequence[Mapping[str, Any]]) -> str:
    return "r2" if any("r2_mean" in summary for summary in summaries) else "accuracy"


def _comparison(summaries: Sequence[Mapping[str, Any]], title: str | None) -> Table:
    name, columns = _score_name(summaries), _columns(summaries)
    digits = 3 if name == "r2" else 2
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    extra = _extra_columns(summaries, digits)
    headings = ["R2" if name == "r2" else "accuracy %", *extra, *(c.words for c in columns)]
    for heading in headings:
        table.add_column(heading, justify="right")
    for row, s in enumerate(summaries):
        mean, std = s.get(f"{name}_mean"), s.get(f"{name}_std")
        table.add_row(
            s["method"],
            _score(mean, std, digits, bool(s.get("diverged"))) + _left_out(s),
            *(texts[row] for texts in extra.values()),
            *(column.text(s.get(column.name)) for column in columns),
        )
    return table


def _extra_columns(summaries: Sequence[Mapping[str, Any]], digits: int) -> dict[str, list[str]]:
    """The spread over seeds and the gain over training alone by heading, where there are any."""
    found: dict[str, list[str]] = {}
    if _has(summaries, "std_over_seeds"):
        values = [s.get("std_over_seeds") for s in summaries]
        found["± seeds"] = ["-" if value is None else f"{value:.{digits}f}" for value in values]
    if alone := _alone(summaries):
        gains = [s.get("vs_alone") or {} for s in summaries]
        found[f"vs {alone} (95 %)"] = [_gain(gain, digits) for gain in gains]
        found["worse off"] = [
            f"{gain['worse']} of {gain['clients']}" if gain.get("clients") else "-"
            for gain in gains
        ]
    return found


def _alone(summaries: Sequence[Mapping[str, Any]]) -> str | None:
    """The method that the others are compared with."""
    return next((s["vs_alone"]["method"] for s in summaries if s.get("vs_alone")), None)


def _gain(gain: Mapping[str, Any], digits: int) -> str:
    if gain.get("mean") is None:
        return "-"
    low, high = gain["over_clients"] or (None, None)
    ends = "" if low is None else f" ({low:+.{digits}f} to {high:+.{digits}f})"
    return f"{gain['mean']:+.{digits}f}{ends}"


def _caption(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the spreads are taken over, in words."""
    has_seeds, alone = _has(summaries, "std_over_seeds"), _alone(summaries)
    lines = _spread_words(has_seeds)
    if alone and not has_seeds:
        lines.append("±: standard deviation over clients")
    if alone:
        lines.append(
            f"vs {alone}: mean of the paired differences, client by client, with its 95 % interval "
            f"over clients; worse off: clients that {alone} serves better"
        )
    return [*lines, *_seed_words(summaries, alone)]


def _seed_words(summaries: Sequence[Mapping[str, Any]], alone: str | None) -> list[str]:
    """The intervals of the gains over training alone over seeds."""
    digits = 3 if _score_name(summaries) == "r2" else 2
    gains = {s["method"]: (s.get("vs_alone") or {}).get("over_seeds") for s in summaries}
    known = {method: ends for method, ends in gains.items() if ends}
    ends = ", ".join(
        f"{m} {low:+.{digits}f} to {high:+.{digits}f}" for m, (low, high) in known.items()
    )
    return [f"vs {alone}, 95 % interval over seeds: {ends}"] if known else []


def _spread_words(has_seeds: bool) -> list[str]:
    words = "±: standard deviation over clients, mean of the seeds; ± seeds: standard deviation "
    return [f"{words}over seeds of the mean over clients"] if has_seeds else []


def _left_out(summary: Mapping[str, Any]) -> str:
    """The number of clients that a score leaves out."""
    count = len(summary.get("quarantined") or {})
    return f" ({count} of {summary['clients']} clients out)" if count else ""


def tuning_text(rows: Sequence[Mapping[str, Any]], score: str, digits: int) -> str:
    """What a search chose, one row per method."""
    table = Table()
    table.add_column("method")
    has_seeds = _has(rows, "std_over_seeds")
    for heading in ("candidates", "runs", score, *(["± seeds"] if has_seeds else [])):
        table.add_column(heading, justify="right")
    table.add_column("chosen", overflow="fold")
    for row in rows:
        mean, std = row["validation_mean"], row["validation_std"]
        found = _score(mean, std, digits, mean is None)
        counts = (str(row["candidates"]), str(row["runs"]))
        apart = row.get("std_over_seeds")
        seeds = ["-" if apart is None else f"{apart:.{digits}f}"] if has_seeds else []
        table.add_row(row["method"], *counts, found, *seeds, row["chosen"])
    return "\n".join([_as_text(table, 130), *_spread_words(has_seeds)])


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


def filled_page(path: Path, name: str, text: str, source: str = "") -> str:
    """The content of a page with this text between its two invisible markers.

    Args:
        name: what the markers are called.
        source: which records the numbers are from, for the first marker.

    Raises:
        RunError: the page cannot be read or has no such markers.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    start = re.escape(begin.removesuffix(" -->"))
    place = re.compile(f"{start}(?: from .*?)? -->.*?{re.escape(end)}", re.DOTALL)
    try:
        page = path.read_text()
    except OSError as error:
        raise RunError(
            f"page = {str(path)!r} cannot be read: {error.strerror}. Give a Markdown page that has "
            f"the lines {begin} and {end}"
        ) from error
    if len(place.findall(page)) != 1:
        raise RunError(f"{path} has no place for this table: add the lines {begin} and {end}")
    first = f"<!-- begin {name} from {source} -->" if source else begin
    return place.sub(lambda _: f"{first}\n\n{text.strip()}\n\n{end}", page)
