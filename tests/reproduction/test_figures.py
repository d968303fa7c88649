"""Figures of a reproduction: what they show, and where they cannot be drawn."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.lines import Line2D

from paper_runs import ROWS, STUDY, record
from records import change_rows
from scool.errors import RunError
from scool.recording.folder import RunFolder
from scool.recording.seals import DamageWarning
from scool.reproduction.figures import figures_of, local_epochs, write_figures
from scool.reproduction.measured import (
    collect,
)
from scool.reproduction.plan import choose_rows
from scool.reproduction.rows import TABLE1, Row


def figures(target: str, place: Path) -> dict[str, list[dict[str, Any]]]:
    measured, _ = collect(STUDY, choose_rows(target), [place])
    plots = figures_of(target, measured)
    paths = write_figures(plots, place / "figures", "x")
    assert all(path.stat().st_size > 0 for path in paths)
    assert {p.suffix for p in paths} == {".pdf", ".png", ".csv"}
    return {name: [dict(row) for row in plot.rows] for name, plot in plots.items()}


def test_convergence_over_local_epochs(tmp_path: Path) -> None:
    for seed in (0, 1):
        record(tmp_path, ROWS["local"], seed, 80.0 + seed)
    record(tmp_path, ROWS["dpsgd-1-step"], 0, 70.0)
    rows = figures("convergence", tmp_path)["convergence"]
    ends = {r["row"]: r for r in rows if r["measure"] == "accuracy_mean" and r["round"] > 1}
    assert ends["local"]["local_epochs"] == ends["dpsgd-1-step"]["local_epochs"] == 500
    assert (ends["local"]["low"], ends["local"]["mean"], ends["local"]["high"]) == (80, 80.5, 81)
    assert {r["measure"] for r in rows} == {"accuracy_mean", "train_loss"}
    (fedavg,) = collect(STUDY, (ROWS["fedavg"],), [_one(tmp_path, ROWS["fedavg"])])[0]
    assert local_epochs(fedavg) == 0.5


def test_convergence_averages_the_losses_between_evaluations(tmp_path: Path) -> None:
    path = record(tmp_path, ROWS["local"], 0, 80.0)
    first, last = RunFolder(path).rows()
    between = [{**first, "round": t, "scores": None, "train_loss": float(t)} for t in (10, 20)]
    change_rows(path, lambda _: [first, *between, {**last, "train_loss": 60.0}])
    rows = figures("convergence", tmp_path)["convergence"]
    losses = [(r["round"], r["mean"]) for r in rows if r["measure"] == "train_loss"]
    assert losses == [(1, first["train_loss"]), (100, 30.0)]
    path = record(tmp_path, ROWS["local"], 1, 80.0)  # evaluated in other rounds, too: same windows
    scored = [{**first, "round": t, "train_loss": 9.0} for t in (10, 20)]
    change_rows(path, lambda _: [first, *scored, last])
    rows = figures("convergence", tmp_path)["convergence"]
    losses = [(r["round"], r["mean"]) for r in rows if r["measure"] == "train_loss"]
    assert losses == [(1, first["train_loss"]), (100, (30.0 + (9 + 9 + 1) / 3) / 2)]


def convergence(place: Path, rows: tuple[Row, ...]) -> Any:
    measured, _ = collect(STUDY, rows, [place])
    return figures_of("convergence", measured)["convergence"]


def start_at_nine(path: Path) -> None:
    """A run whose first evaluation is far below the last."""
    change_rows(path, lambda rows: [rows[0] | {"accuracy_mean": 9}, rows[1]])


def test_convergence_of_many_rows_has_axes_for_scool(tmp_path: Path) -> None:
    for number, row in enumerate(TABLE1):
        for seed in (0, 1):
            start_at_nine(record(tmp_path, row, seed, 60.0 + number))
    plot = convergence(tmp_path, TABLE1)
    top, losses, bottom, _ = plot.figure.axes
    names = [[line.get_label() for line in axes.lines] for axes in (top, bottom)]
    assert {"Local SGD", "Ditto"} <= set(names[0]) and {"SCooL-SBM", "True graph"} <= set(names[1])
    (legend,) = plot.figure.legends
    assert [text.get_text() for text in legend.texts] == names[0] + names[1]
    assert len({*names[0], *names[1]}) == len(TABLE1)
    assert not top.collections and losses.get_yscale() == "log"
    half = (len(TABLE1) - 1) / 2
    for axes in (top, bottom):  # the same scale, around the last accuracies
        assert axes.get_ylim()[0] == 60.0 - half and axes.get_ylim()[1] > 59 + len(TABLE1)
    assert min(r["mean"] for r in plot.rows if r["measure"] == "accuracy_mean") == 9.0


def test_convergence_of_few_rows_is_whole_and_has_bands(tmp_path: Path) -> None:
    rows = ROWS["local"], ROWS["scool-sbm"]
    for row in rows:
        for seed in (0, 1):
            start_at_nine(record(tmp_path, row, seed, 80.0 + seed))
    left, right = convergence(tmp_path, rows).figure.axes
    assert left.get_ylim()[0] < 9.0 and left.get_xlim()[0] == 0.0
    assert len(left.collections) == len(right.collections) == 2
    (alone, _) = convergence(tmp_path, rows[1:]).figure.axes  # looks the same by itself
    assert alone.lines[0].get_color() == left.lines[1].get_color() != left.lines[0].get_color()


def test_convergence_without_a_finished_run_is_said(tmp_path: Path) -> None:
    record(tmp_path, ROWS["local"], 0, 80.0, status="diverged")
    with pytest.raises(RunError, match="no finished run is there"):
        convergence(tmp_path, TABLE1)


def _one(place: Path, row: Row) -> Path:
    record(place / "other", row, 0, 50.0)
    return place / "other"


def test_heat_maps_of_the_recorded_rounds(tmp_path: Path) -> None:
    record(tmp_path, ROWS["scool-sbm"], 0, 90.0, graphs=True)
    rows = figures("graphs", tmp_path)["graphs-scool-sbm"]
    assert [(r["round"], r["client"], r["from"], r["weight"]) for r in rows] == [
        (t, c, c, 1.0) for t in (1, 100) for c in range(3)
    ]
    (first,) = tmp_path.glob("scool-sbm-0-*/graphs/000000.safetensors")
    first.unlink()
    record(tmp_path, ROWS["scool-sbm"], 1, 90.0, graphs=True)  # now the one with most graphs
    record(tmp_path, ROWS["scool-sbm"], 2, 90.0)
    measured, _ = collect(STUDY, choose_rows("graphs", "scool-sbm"), [tmp_path])
    (plot,) = figures_of("graphs", measured).values()
    assert {(row["seed"], row["round"]) for row in plot.rows} == {(1, 1), (1, 100)}
    assert plot.figure.get_suptitle() == "SCooL-SBM, seed 1"
    record(tmp_path, ROWS["scool-attention"], 0, 90.0)
    measured, _ = collect(STUDY, choose_rows("graphs", "scool-attention"), [tmp_path])
    with pytest.raises(RunError, match="its records have no graphs/"):
        figures_of("graphs", measured)
    for file in tmp_path.glob("scool-sbm-*/graphs/*"):
        file.write_bytes(b"damaged")
    measured, _ = collect(STUDY, choose_rows("graphs", "scool-sbm"), [tmp_path])
    with (
        pytest.warns(DamageWarning) as said,
        pytest.raises(RunError, match="its records have no graphs/ that can be read"),
    ):
        figures_of("graphs", measured)
    words = [str(warning.message) for warning in said]
    for file in tmp_path.glob("scool-sbm-*/graphs/*"):
        assert any(f"{file} is damaged: it is cut off" in sentence for sentence in words)


def test_graph_error_of_the_first_rounds(tmp_path: Path) -> None:
    for seed in (0, 1):
        record(tmp_path, ROWS["scool-sbm"], seed, 90.0)
    rows = figures("graph-error", tmp_path)["graph-error"]
    found = [(r["method"], r["round"], r["mean"]) for r in rows if r["measure"] == "graph_l1"]
    assert found == [("SCooL-SBM", 1, 0.5)]  # only rounds that have a line; round 100 is late
    for path in tmp_path.glob("scool-sbm-*"):
        some = {"train_loss": 1.0, "bytes": 0, "messages": 0}
        more = [{"round": 1, **some}, {"round": 2, **some}]
        change_rows(path, lambda rows, m=more: sorted([*m, *rows], key=lambda row: row["round"]))
    rows = figures("graph-error", tmp_path)["graph-error"]
    assert [(r["round"], r["mean"]) for r in rows] == [(1, 0.5), (2, 0.9), (3, 0.8)]
    measured, _ = collect(STUDY, choose_rows("graph-error"), [tmp_path])
    plot = figures_of("graph-error", measured)["graph-error"]
    assert plot.figure.axes[0].collections  # the band of the seeds
    assert len(plot.figure.axes) == 1  # no groups are known: no panel for the Rand index
    assert plot.figure.axes[0].get_ylim()[0] == 0.0  # small distances look small


def test_budget_over_the_bytes_of_a_client(tmp_path: Path) -> None:
    for row in choose_rows("budget"):
        record(tmp_path, row, 0, 50.0)
    rows = figures("budget", tmp_path)["budget"]
    assert len(rows) == 16 and {r["percent"] for r in rows} == {2, 5, 8, 10}
    assert {r["method"] for r in rows} == {"scool-sbm", "scool-attention", "scool-drawn", "dpsgd"}
    assert rows[0]["bytes_of_a_client"] == 400 and rows[0]["noise"] is None
    assert rows[0]["bytes_of_a_client_in_the_last_round"] == 200
    for row in choose_rows("budget", "scool-sbm"):  # one line of four has a second seed
        record(tmp_path, row, 1, 52.0)
    rows = figures("budget", tmp_path)["budget"]
    found = {(r["method"], len(r["seeds"]), r["accuracy"], r["noise"] is None) for r in rows}
    one = {(method, 1, 50.0, True) for method in ("scool-attention", "scool-drawn", "dpsgd")}
    assert found == one | {("scool-sbm", 2, 51.0, False)}
    measured, _ = collect(STUDY, choose_rows("budget"), [tmp_path])
    (plot,) = figures_of("budget", measured).values()
    (legend,) = plot.figure.legends
    assert all(isinstance(handle, Line2D) for handle in legend.legend_handles)  # no error bars
    (sent,) = {x for line in plot.figure.axes[1].lines[:1] for x in line.get_xdata()}
    assert sent == pytest.approx(400e-9)  # GB


def test_a_line_of_the_budget_has_the_same_seeds_throughout(tmp_path: Path) -> None:
    """Else it would rise or fall with the luck of the seeds."""
    for row in choose_rows("budget"):
        record(tmp_path, row, 0, 50.0)
    for row in choose_rows("budget", "scool-sbm-10-percent"):
        record(tmp_path, row, 1, 90.0)
    rows = [r for r in figures("budget", tmp_path)["budget"] if r["method"] == "scool-sbm"]
    assert [r["accuracy"] for r in rows] == [50.0] * 4 and all(r["seeds"] == [0] for r in rows)
