"""The paper's figures from measured rows, by the plots that all reports share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from scool.display.curves import (
    FEW,
    Plot,
    Row,
    draw_line,
    legend,
    legend_height,
    need_records,
    plot_graph_error,
)
from scool.display.figure import as_csv
from scool.display.graphs import Panel, client_order, draw_panels, strongest_edges
from scool.display.matrices import plain
from scool.display.records import RunRecord
from scool.display.series import common_rounds, cumulative, curve
from scool.display.style import COLUMN, WIDE, line_style, marker_of, picture, styled
from scool.errors import RunError
from scool.recording.disk import write_bytes
from scool.recording.folder import RunFolder, make_folder
from scool.reproduction.light_records import GRAPH_ERROR, thin
from scool.reproduction.measured import Measured, mean, noise
from scool.reproduction.rows import BUDGET, BUDGETS, TABLE1
from scool.run.progress import EARLY


def figures_of(target: str, rows: Sequence[Measured]) -> dict[str, Plot]:
    """The figures of a target by name; none for a table.

    Raises:
        RunError: the records lack what a figure shows.
    """
    if target == "convergence":
        return {"convergence": plot_convergence(rows)}
    if target == "graphs":
        return {f"graphs-{row.row.name}": plot_rounds(row) for row in rows if row.records}
    if target == "graph-error":
        return {"graph-error": plot_early_error(rows)}
    return {"budget": plot_budgets(rows)} if target == "budget" else {}


def write_figures(plots: dict[str, Plot], folder: Path, ending: str) -> list[Path]:
    """Each as PDF and PNG, with its numbers as CSV."""
    if plots:
        make_folder(folder)
    paths: list[Path] = []
    for name, plot in plots.items():
        files = {kind: plot.figure.render(kind, dpi=200) for kind in ("pdf", "png")}
        files["csv"] = as_csv(plot.rows).encode()
        for kind, content in files.items():
            paths.append(folder / f"{name}-{ending}.{kind}")
            write_bytes(paths[-1], content)
    return paths


def plot_rounds(row: Measured) -> Plot:
    """The mixing weights of one row over rounds, the true graph first."""
    panels: list[Panel] = []
    table: list[Row] = []
    found = [(record, _graphs(record)) for record in row.scored or row.records]
    record, graphs = max(found, key=lambda pair: len(pair[1]))
    if not graphs:
        raise RunError(
            f"the graphs of {row.row.name} cannot be drawn: its records have no graphs/ that can "
            "be read. Bring the folder along with run.json, or run it once more"
        )
    order, by = client_order(record, graphs[max(graphs)])
    truth = record.clients.truth if record.clients else None
    if truth is not None:
        panels.append(Panel("true graph", truth, order, by))
        table += strongest_edges("true graph", None, None, truth)
    for t, w in graphs.items():
        panels.append(Panel(f"round {t + 1}", w, order, by))
        table += strongest_edges(row.row.name, record.seed, t + 1, w)
    return Plot(draw_panels(panels, WIDE, f"{row.row.title}, seed {record.seed}"), table)


def _graphs(record: RunRecord) -> dict[int, Tensor]:
    """Those that can be read, by round."""
    return {t: w for t in sorted(record.graph_files) if (w := record.graph(t)) is not None}


def plot_early_error(rows: Sequence[Measured]) -> Plot:
    """L1 distance to the true graph (and adjusted Rand index) over the first rounds."""
    records: list[RunRecord] = []
    for row in rows:
        for record in row.scored:
            whole = with_graph_error(record)
            early = [line for line in whole.rows if line["round"] < EARLY]
            records.append(named(replace(whole, rows=early), row.row.title))
    if not records:
        raise RunError("the graph error cannot be drawn: no finished run is there")
    return plot_graph_error(records, COLUMN)


def plot_budgets(rows: Sequence[Measured]) -> Plot:
    """Accuracy over the peers that a client may talk to, and over what it sends in all rounds, of
    the seeds that all points of a line have; bars: seed noise."""
    table: list[Row] = []
    labels = {row.method: row.title.rpartition(", ")[0] for row in BUDGET}
    with styled():
        height = 0.42 * WIDE + legend_height(list(labels.values()), WIDE)
        figure, ((left, right),) = picture(1, 2, width=WIDE, height=height)
        for number, (method, title) in enumerate(labels.items()):
            line = [row for row in rows if row.row.method == method and row.scored]
            if not line:
                continue
            common = set.intersection(*(set(row.accuracies) for row in line))
            points = [_budget_point(row, common or set(row.accuracies)) for row in line]
            table += points
            bars = [math.nan if point["noise"] is None else point["noise"] for point in points]
            style = {**line_style(number), "marker": marker_of(number), "capsize": 2}
            for axes, name, unit in ((left, "percent", 1), (right, "bytes_of_a_client", 1e9)):
                x = [point[name] / unit for point in points]
                y = [point["accuracy"] for point in points]
                axes.errorbar(x, y, yerr=bars, label=plain(title), **style)
        need_records(table, "no run of a budget is finished")
        left.set_xticks(BUDGETS, [str(percent) for percent in BUDGETS])
        left.set_xlabel("peers (% of the clients)")
        right.set_xlabel("sent by a client in all rounds (GB)")
        for axes in (left, right):
            axes.set_ylabel("test accuracy (%)")
        legend(figure, [left], WIDE)
    return Plot(figure, table)


def _budget_point(measured: Measured, seeds: set[int]) -> dict[str, Any]:
    runs = [run for run in measured.scored if (run.seed or 0) in seeds]
    values = [value for seed, value in measured.accuracies.items() if seed in seeds]
    sent = [max(cumulative(run, "bytes").values()) for run in runs]
    last = [float(run.rows[-1].get("bytes") or 0) for run in runs]
    clients = runs[0].num_clients or 1
    percent = next(p for p in BUDGETS if measured.row.name.endswith(f"-{p}-percent"))
    return {
        "row": measured.row.name,
        "method": measured.row.method,
        "percent": percent,
        "seeds": sorted(seeds),
        "accuracy": mean(values),
        "noise": noise(values),
        "bytes_of_a_client": (mean(sent) or 0.0) / clients,
        "bytes_of_a_client_in_the_last_round": (mean(last) or 0.0) / clients,
    }


def with_graph_error(record: RunRecord) -> RunRecord:
    """The same with what was measured of the graph in rounds that were not evaluated."""
    extra: Mapping[int, Mapping[str, Any]] = {
        row["round"]: row for row in RunFolder(record.path).rows(GRAPH_ERROR)
    }
    rows = [{**extra.get(row["round"], {}), **row} for row in record.rows]
    return replace(record, rows=rows)


def named(record: RunRecord, name: str) -> RunRecord:
    """The same under the name of its row: a figure shows rows, not options, and runs of a row
    that other machines or versions made are one line."""
    header = {key: record.header.get(key) for key in ("seed", "status", "rounds")}
    identity = {"federation": record.federation_name}
    return replace(record, header={**header, "method": name, "identity": identity})


# ---------------------------------------------------------------------- convergence


def plot_convergence(rows: Sequence[Measured]) -> Plot:
    """A line per row, a band over the seeds where lines are few.

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
    """Average passes over its own data that a client takes in a round: the paper's axis. The
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
