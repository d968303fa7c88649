"""How the methods of a table converge: test accuracy and training loss over local epochs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scool.display.curves import (
    FEW,
    Plot,
    Row,
    draw_line,
    legend,
    legend_height,
    need_records,
)
from scool.display.records import RunRecord
from scool.display.series import common_rounds, curve
from scool.display.style import WIDE, picture, styled
from scool.reproduction.light_records import thin
from scool.reproduction.measured import Measured
from scool.reproduction.rows import TABLE1


def plot_convergence(rows: Sequence[Measured]) -> Plot:
    """A line a row, a band over the seeds where lines are few.

    Where they are many, SCooL and the true graph have axes of their own, with the same scales, and
    that of the accuracy begins where the ends of all lines can be told apart: half of what they
    span below the lowest. A row looks the same in all pictures, whichever others are there.
    """
    rows = [row for row in rows if row.scored]
    need_records(rows, "no finished run is there")
    parts = _parts(rows)
    is_split = len(parts) > 1
    table: list[Row] = []
    with styled():
        names = [row.row.title for part in parts.values() for row in part]
        height = (0.62 if is_split else 0.42) * WIDE + legend_height(names, WIDE)
        figure, grid = picture(len(parts), 2, width=WIDE, height=height)
        for (left, right), (title, part) in zip(grid, parts.items(), strict=True):
            for row in part:
                table += _draw_row(row, left, right, has_band=not is_split)
            left.set(title=title, ylabel="test accuracy (%)")
            right.set(ylabel="training loss", yscale="log")
        for axes in grid.flat:
            axes.set_xlim(left=0)
        for axes in grid[-1]:
            axes.set_xlabel("local epochs of a client")
        if is_split:
            ends = [value for row in rows for value in row.accuracies.values()]
            _share_scale(grid[:, 0], least=min(ends) - max(2.0, (max(ends) - min(ends)) / 2))
            _share_scale(grid[:, 1])
        legend(figure, list(grid[:, 0]), WIDE)
    return Plot(figure, table)


def _parts(rows: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The rows of each line of axes, by title."""
    ours = [row for row in rows if _is_ours(row)]
    others = [row for row in rows if not _is_ours(row)]
    if len(rows) <= FEW or not ours or not others:
        return {"": list(rows)}
    return {"methods SCooL is compared with": others, "SCooL, and the true graph": ours}


def _is_ours(row: Measured) -> bool:
    return row.row.method.startswith(("scool", "truth"))


def _draw_row(measured: Measured, left: Any, right: Any, *, has_band: bool) -> list[Row]:
    """The two lines of a row, and their numbers."""
    number = [row.name for row in TABLE1].index(measured.row.name)
    runs, step = between_evaluations(measured.scored), local_epochs(measured)
    found: list[Row] = []
    for axes, name in ((left, "accuracy_mean"), (right, "train_loss")):
        line = curve(runs, name)
        x = [step * (t + 1) for t in line["round"]]
        draw_line(axes, x, line, measured.row.title, number, has_band=has_band)
        found += [
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
    return found


def _share_scale(column: Sequence[Any], least: float | None = None) -> None:
    """The same limits for all axes of a column, from `least` on."""
    limits = [axes.get_ylim() for axes in column]
    low, high = min(low for low, _ in limits), max(high for _, high in limits)
    for axes in column:
        axes.set_ylim(low if least is None else max(low, least), high)


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
