"""How the methods of a table converge: test accuracy and training loss over local epochs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scool.drawing.matrices import plain
from scool.drawing.style import line_style, marker_of, picture, styled
from scool.experiment.reproduction.keeping import thin
from scool.experiment.reproduction.rows import TABLE1
from scool.report.lines import common_rounds, curve
from scool.report.plots import FEW, Plot, Row, legend, legend_height, need_records
from scool.report.records import RunRecord
from scool.report.reproduced import Measured


def plot_convergence(rows: Sequence[Measured], width: float) -> Plot:
    """A line a row, a band over the seeds where lines are few.

    Where they are many, SCooL and the true graph have axes of their own, with the same scales. The
    scale of the accuracy begins where the end of every line can be told from the others: half of
    what the ends span below the lowest. A row looks the same in all pictures, whichever others are
    there.
    """
    rows = [row for row in rows if row.scored]
    need_records(rows, "no evaluated round is recorded")
    parts = _parts(rows)
    table: list[Row] = []
    with styled():
        names = [row.row.title for part in parts.values() for row in part]
        height = (0.42 if len(parts) == 1 else 0.62) * width + legend_height(names, width)
        figure, grid = picture(len(parts), 2, width=width, height=height)
        for (left, right), (title, part) in zip(grid, parts.items(), strict=True):
            for row in part:
                table += _draw(left, "accuracy_mean", row, has_band=len(part) <= FEW)
                table += _draw(right, "train_loss", row, has_band=len(part) <= FEW)
            left.set(title=title, ylabel="test accuracy (%)")
            right.set(ylabel="training loss", yscale="log")
        need_records(table, "no evaluated round is recorded")
        for axes in grid.flat:
            axes.set_xlim(left=0)
        for axes in grid[-1]:
            axes.set_xlabel("local epochs of a client")
        scores = {r["row"]: r["mean"] for r in table if r["measure"] == "accuracy_mean"}
        ends = list(scores.values())  # of each row the last
        _share_scale(grid[:, 0], least=min(ends) - (max(ends) - min(ends)) / 2)
        _share_scale(grid[:, 1])
        legend(figure, list(grid[:, 0]), width)
    return Plot(figure, table)


def _parts(rows: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The rows of each line of axes, by title."""
    if len(rows) <= FEW:
        return {"": list(rows)}
    ours = [row for row in rows if row.row.method.startswith(("scool", "truth"))]
    others = [row for row in rows if row not in ours]
    parts = {"methods SCooL is compared with": others, "SCooL, and the true graph": ours}
    return {title: part for title, part in parts.items() if part}


def _draw(axes: Any, name: str, measured: Measured, *, has_band: bool) -> list[Row]:
    """One line, and the rows of its table."""
    number = next(n for n, row in enumerate(TABLE1) if row.name == measured.row.name)
    line = curve(between_evaluations(measured.scored), name)
    x = [local_epochs(measured) * (t + 1) for t in line["round"]]
    mark, style = marker_of(number) if len(x) == 1 else None, line_style(number)
    axes.plot(x, line["mean"], label=plain(measured.row.title), marker=mark, **style)
    if has_band:
        axes.fill_between(x, line["low"], line["high"], color=style["color"], alpha=0.13, lw=0)
    return [
        {
            "row": measured.row.name,
            "measure": name,
            "seeds": len(measured.scored),
            "round": t + 1,
            "local_epochs": x[n],
            "mean": line["mean"][n],
            "low": line["low"][n],
            "high": line["high"][n],
        }
        for n, t in enumerate(line["round"])
    ]


def _share_scale(column: Sequence[Any], least: float = 0.0) -> None:
    """The same limits for all axes of a column, from `least` on."""
    limits = [axes.get_ylim() for axes in column]
    low, high = min(low for low, _ in limits), max(high for _, high in limits)
    for axes in column:
        axes.set_ylim(max(low, least), high)


def local_epochs(measured: Measured) -> float:
    """Passes over its own data that a client takes in a round, on average: the paper's axis. The
    common model of Ditto and gradients taken for neighbours are not in it."""
    algorithm: Any = measured.config.algorithm
    sgd = algorithm.sgd
    clients = measured.records[0].clients
    samples = 500.0 if clients is None else float(clients.counts["train"].sum(1).float().mean())
    passes = sgd.steps * sgd.batch_size / samples if sgd.steps else sgd.epochs
    return passes * getattr(algorithm, "participation", 1.0)


def between_evaluations(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The rounds in which all of these runs were evaluated, each with the mean training loss since
    the one before: where few clients train in a round, its own loss is that of chance."""
    kept = set(common_rounds(records, lambda row: row.get("scores") is not None))
    return [replace(record, rows=thin(record.rows, kept)) for record in records]
