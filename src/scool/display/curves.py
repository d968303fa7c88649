"""Curves and boxes for papers, each with the numbers it shows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scool.columns import COLUMNS
from scool.display.differences import group_runs
from scool.display.matrices import plain
from scool.display.records import RunRecord, are_regression
from scool.display.series import curve, curves, final_scores, local_of
from scool.display.style import COLOURS, Picture, line_style, marker_of, picture, styled
from scool.errors import RunError

Row = Mapping[str, Any]
FEW = 8
"""Lines that can be told apart by colour and still leave room for bands."""


class Plot(NamedTuple):
    """A figure, and the rows of the table beside it."""

    figure: Picture
    rows: list[Row]


def score_words(records: Sequence[RunRecord]) -> str:
    return "test $R^2$" if are_regression(records) else "test accuracy (%)"


def plot_accuracy(records: Sequence[RunRecord], width: float) -> Plot:
    """Mean score over rounds, a line per method, a band over seeds (or over clients)."""
    return _score_over(records, width, "round")


def plot_budget(records: Sequence[RunRecord], width: float) -> Plot:
    """Mean score over the bytes sent by all clients: what accuracy costs."""
    return _score_over(records, width, "bytes")


def _score_over(records: Sequence[RunRecord], width: float, over: str) -> Plot:
    rows: list[Row] = []
    groups = group_runs(records)
    with styled():
        height = 0.58 * width + legend_height(list(groups), width)
        figure, ((axes,),) = picture(width=width, height=height)
        for number, (label, runs) in enumerate(groups.items()):
            line = curves([records[run] for run in runs])["score"]
            if not line["round"]:
                continue
            low, high = ("low", "high") if len(runs) > 1 else ("clients_low", "clients_high")
            sent = np.array([b or 0.0 for b in line["bytes"]]) / 1e6
            x = sent if over == "bytes" else np.array(line["round"]) + 1
            style = line_style(number)
            every = max(1, len(x) // 6)
            mark = {"marker": marker_of(number), "markevery": (number % every, every)}
            axes.plot(x, line["mean"], label=plain(label), **style, **mark)
            if len(groups) <= FEW:  # bands of many lines would hide the lines
                draw_band(axes, x, line[low], line[high], style["color"])
            rows += [
                {
                    "method": label,
                    "seeds": len(runs),
                    "round": t + 1,
                    "bytes": line["bytes"][n],
                    "mean": line["mean"][n],
                    "low": line[low][n],
                    "high": line[high][n],
                    "band": "seeds, min to max" if len(runs) > 1 else "clients, 10 to 90 %",
                }
                for n, t in enumerate(line["round"])
            ]
        need_records(rows, "no evaluated round is recorded")
        words = "sent by all clients (MB)" if over == "bytes" else "round"
        axes.set_xlabel(words)
        axes.set_ylabel(score_words(records))
        legend(figure, [axes], width)
    return Plot(figure, rows)


def plot_graph_error(records: Sequence[RunRecord], width: float) -> Plot:
    """L1 distance to the true graph over rounds; adjusted Rand index where groups are known. Bands
    over the seeds where lines are few."""
    rows: list[Row] = []
    groups = group_runs(records)
    known = [
        column
        for column in COLUMNS
        if column.axis and any(row.get(column.field) is not None for r in records for row in r.rows)
    ]
    need_records(known, "the true graph is not known")
    with styled():
        height = width * (0.2 + 0.4 * len(known)) + legend_height(list(groups), width)
        figure, panels = picture(len(known), 1, width=width, height=height)
        for number, (label, runs) in enumerate(groups.items()):
            mine = [records[run] for run in runs]
            for axes, column in zip(panels.flat, known, strict=True):
                line = curve(mine, column.field)
                x = [t + 1 for t in line["round"]]
                draw_line(axes, x, line, label, number, has_band=len(groups) <= FEW)
                values = zip(x, line["mean"], line["low"], line["high"], strict=True)
                about = {"method": label, "measure": column.field}
                rows += [
                    about | {"round": t, "mean": m, "low": low, "high": high}
                    for t, m, low, high in values
                ]
        need_records(rows, "no round is common to the seeds of a method")
        for axes, column in zip(panels.flat, known, strict=True):
            axes.set_ylabel(column.axis)
            axes.set_ylim(min(0.0, axes.get_ylim()[0]), column.most)
            axes.xaxis.get_major_locator().set_params(integer=True)
        panels.flat[-1].set_xlabel("round")
        legend(figure, [panels.flat[0]], width)
    return Plot(figure, rows)


def gains(records: Sequence[RunRecord]) -> list[Row]:
    """One row per client of a run: its score, and its gain over local learning where known."""
    rows: list[Row] = []
    for label, runs in group_runs(records).items():
        for record in (records[run] for run in runs):
            alone = local_of(record, records)
            nothing = [None] * (record.num_clients or 0)
            before = nothing if alone is None else final_scores(records[alone])
            names = record.clients.client_names if record.clients else None
            for client, score in enumerate(final_scores(record)):
                local = before[client]
                gain = None if score is None or local is None else score - local
                rows.append(
                    {
                        "method": label,
                        "seed": record.seed,
                        "client": client,
                        "name": names[client] if names else "",
                        "score": score,
                        "local": local,
                        "gain": gain,
                    }
                )
    return rows


def plot_gains(records: Sequence[RunRecord], width: float) -> Plot:
    """What each client gained over learning alone, one box per method; scores if there is no local
    run."""
    rows = gains(records)
    known = [row for row in rows if row["gain"] is not None]
    value = "gain" if known else "score"
    alone = {label for label, runs in group_runs(records).items() if records[runs[0]].is_local_only}
    shown = [r for r in rows if r[value] is not None and not (known and r["method"] in alone)]
    shown = shown or known
    need_records(shown, "no evaluated round is recorded")
    labels = list(dict.fromkeys(row["method"] for row in shown))
    with styled():
        more = 0 if len(labels) <= FEW else 0.055 * max(map(len, labels))
        figure, ((axes,),) = picture(width=width, height=0.72 * width + more)
        columns = [[row[value] for row in shown if row["method"] == label] for label in labels]
        boxes = axes.boxplot(
            columns,
            tick_labels=[plain(label) for label in labels],
            patch_artist=True,
            flierprops={"markersize": 2},
            medianprops={"color": "black"},
        )
        for number, box in enumerate(boxes["boxes"]):
            box.set(facecolor=COLOURS[number % 8], alpha=0.45)
        if known:
            axes.axhline(0, color="black", linewidth=0.6)
        unit = "$R^2$" if are_regression(records) else "points"
        axes.set_ylabel(f"gain over local ({unit})" if known else score_words(records))
        axes.set_xlabel("method")
        if len(labels) > 3:
            axes.tick_params(axis="x", rotation=30 if len(labels) <= FEW else 90)
    return Plot(figure, rows)


def draw_line(
    axes: Any, x: Any, line: Mapping[str, Any], label: str, number: int, *, has_band: bool
) -> None:
    """A curve, and its band over the seeds; a single point gets a marker."""
    mark, style = marker_of(number) if len(x) == 1 else None, line_style(number)
    axes.plot(x, line["mean"], label=plain(label), marker=mark, **style)
    if has_band:
        draw_band(axes, x, line["low"], line["high"], style["color"])


def draw_band(axes: Any, x: Any, low: Any, high: Any, colour: str) -> None:
    axes.fill_between(x, low, high, color=colour, alpha=0.13, lw=0)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """As many names side by side as fit: a letter has some 0.05 inches, a line sample 0.4."""
    longest = max(map(len, labels), default=1)
    return max(1, min(4, len(labels), int(width / (0.4 + 0.05 * longest))))


def legend_height(labels: Sequence[str], width: float) -> float:
    """Inches that the legend below a figure takes."""
    return 0.15 + 0.15 * -(-len(labels) // _legend_columns(labels, width))


def legend(figure: Picture, axes: Sequence[Any], width: float) -> None:
    """Of all lines of these axes, below the figure, so that none is hidden."""
    found = [one.get_legend_handles_labels() for one in axes]
    # Of a line with error bars the line alone.
    handles = [h[0] if isinstance(h, tuple) else h for handles, _ in found for h in handles]
    labels = [label for _, labels in found for label in labels]
    columns = _legend_columns(labels, width)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=1)


def need_records(rows: Sequence[object], why: str) -> None:
    if not rows:
        raise RunError(f"this plot is not possible: {why} in these runs")
