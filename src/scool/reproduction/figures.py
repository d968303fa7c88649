"""The paper's figures out of measured rows, by the drawings that all reports share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from scool.display.curves import Plot, Row, legend, legend_height, need_records, plot_graph_error
from scool.display.figure import as_csv
from scool.display.graphs import Panel, client_order, draw_panels, strongest_edges
from scool.display.matrices import plain
from scool.display.records import RunRecord
from scool.display.series import cumulative
from scool.display.style import COLUMN, WIDE, line_style, marker_of, picture, styled
from scool.errors import RunError
from scool.recording.disk import write_bytes
from scool.recording.folder import RunFolder, make_folder
from scool.reproduction.convergence import plot_convergence
from scool.reproduction.light_records import GRAPH_ERROR
from scool.reproduction.measured import Measured
from scool.reproduction.rows import BUDGET, BUDGETS
from scool.reproduction.seed_noise import mean, noise
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
