"""Figures for papers: every kind, every format, the same every time, with their numbers."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import scool
from records import make_old
from scool.cli.main import dispatch
from scool.display.figure import KINDS, write_plot
from scool.display.graphs import Panel, client_order, draw_panels
from scool.display.matrices import graph_picture
from scool.display.records import read_run
from scool.display.style import line_style, marker_of
from scool.errors import ConfigError, RunError
from scool.recording.seals import DamageWarning


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_with_its_table(kind: str, made: Path, tmp_path: Path) -> None:
    first = write_plot(kind, [made], tmp_path / "a" / f"{kind}.png")
    again = write_plot(kind, [made], tmp_path / "b" / f"{kind}.png")
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert len(table(first[1])) > 2


@pytest.mark.parametrize(("suffix", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_formats_are_the_same_every_time(
    suffix: str, start: bytes, made: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{n}.{suffix}" for n in (1, 2)]
    for path in paths:
        write_plot("accuracy", [made], path, columns=2)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes().startswith(start)


def test_the_tables_hold_what_was_recorded(made: Path, tmp_path: Path) -> None:
    run = made / "scool-sbm-0"
    record = read_run(run)
    _, edges = write_plot("graph", [run], tmp_path / "graph.pdf")
    w = record.graph(3)
    assert w is not None
    found = np.zeros((6, 6))
    for row in table(edges):
        if row["method"] == "scool-sbm":
            assert row["round"] == "4"
            found[int(row["client"]), int(row["from"])] = float(row["weight"])
    np.testing.assert_allclose(found, w.numpy(), rtol=1e-6)
    _, gains = write_plot("gains", [made], tmp_path / "gains.pdf")
    local = read_run(made / "local-0").rows[-1]["scores"]
    mine = [r for r in table(gains) if r["method"] == "scool-sbm" and r["seed"] == "0"]
    for client, row in enumerate(mine):
        expected = record.rows[-1]["scores"][client] - local[client]
        assert float(row["gain"]) == pytest.approx(expected)
    _, counts = write_plot("partition", [made], tmp_path / "partition.pdf")
    assert sum(int(row["samples"]) for row in table(counts)) == 6 * 24
    _, sent = write_plot("budget", [run], tmp_path / "budget.pdf")
    assert float(table(sent)[-1]["bytes"]) == record.header["result"]["bytes_sent"]


def test_a_client_in_quarantine_has_an_empty_line_of_blocks(
    with_quarantine: Path, tmp_path: Path
) -> None:
    for kind in ("blocks", "graph"):
        _, numbers = write_plot(kind, [with_quarantine], tmp_path / f"{kind}.png")
    _, numbers = write_plot("blocks", [with_quarantine / "sbm"], tmp_path / "blocks.pdf")
    rows = table(numbers)
    assert len(rows) == 2 * 5
    for row in rows:
        assert row["block"] in ([""] if row["client"] == "1" else ["0", "1"])


def test_what_cannot_be_drawn_is_said(made: Path, tmp_path: Path, comparison: Path) -> None:
    with pytest.raises(RunError, match="no run has blocks"):
        write_plot("blocks", [made / "local-0"], tmp_path / "x.pdf")
    with pytest.raises(ConfigError, match=r"end the name in \.pdf"):
        write_plot("accuracy", [made], tmp_path / "x.gif")
    with pytest.raises(ConfigError, match="columns = 3"):
        write_plot("accuracy", [made], tmp_path / "x.pdf", columns=3)
    gone, old = (comparison / f"local-{seed}" for seed in (0, 1))
    make_old(old)
    for run in (gone, old):
        (run / "clients.safetensors").unlink()
    with pytest.raises(RunError, match=r"no clients\.safetensors that can be read"):
        write_plot("partition", [old], tmp_path / "x.pdf")
    with (
        pytest.raises(RunError, match=r"no clients\.safetensors that can be read"),
        pytest.warns(DamageWarning, match=r"local-0/clients\.safetensors is missing"),
    ):
        write_plot("partition", [gone], tmp_path / "x.pdf")
    for run in (gone, old):
        (run / "metrics.jsonl").unlink()
        for kind in ("accuracy", "budget", "graph-error", "gains"):
            with (
                pytest.warns(DamageWarning) as said,
                pytest.raises(RunError, match="is not possible"),
            ):
                write_plot(kind, [run], tmp_path / "x.pdf")
            assert any(str(w.message) == f"{run}/metrics.jsonl is missing" for w in said)
    assert not list(tmp_path.glob("x.*"))


def test_gains_without_a_local_run_are_scores(made: Path, tmp_path: Path) -> None:
    _, rows = write_plot("gains", [made / "scool-sbm-0"], tmp_path / "gains.svg")
    assert all(row["gain"] == "" and row["score"] for row in table(rows))
    assert "test accuracy" in (tmp_path / "gains.svg").read_text()


def test_regression_without_truth(tmp_path: Path, made: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [
        (rng.normal(size=(9, 3)).astype("float32"), rng.normal(size=(9, 1)).astype("float32"))
        for _ in range(4)
    ]
    federation = scool.from_arrays(
        clients, test_fraction=0.3, task="regression", client_names=["$a", "b$", "c", "d"]
    )
    scool.fit(federation, "linear", scool.SCooL(), rounds=2, out=tmp_path / "r", method="$x$")
    for kind in KINDS:
        if kind == "graph-error":
            with pytest.raises(RunError, match="true graph is not known"):
                write_plot(kind, [tmp_path / "r"], tmp_path / "x.pdf")
        else:
            write_plot(kind, [tmp_path / "r"], tmp_path / f"{kind}.pdf")
    for kind in ("accuracy", "gains"):
        with pytest.raises(RunError, match="of classification and of regression cannot be shown"):
            write_plot(kind, [made / "local-0", tmp_path / "r"], tmp_path / "both.pdf")


def test_many_methods_fit_and_differ() -> None:
    looks = {(*line_style(n).values(), marker_of(n)) for n in range(32)}
    assert len(looks) == 32


def test_the_command(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figure.svg"
    assert dispatch(["plot", "graph-error", str(made), "--out", str(out)]) == 0
    assert capsys.readouterr().out.split() == [str(out), str(out.with_suffix(".csv"))]
    assert dispatch(["plot", "--help"]) == 0 and dispatch(["plot"]) == 2
    usage = capsys.readouterr().out
    assert all(kind in usage for kind in KINDS)
    with pytest.raises(ConfigError, match="did you mean 'graph'"):
        dispatch(["plot", "grahp", str(made)])
    with pytest.raises(ConfigError, match="needs a run"):
        dispatch(["plot", "graph"])


# ---------------------------------------------------------------------- the order of clients


def ordered(labels: list[list[int]], algorithm: scool.SCooL, place: Path) -> tuple[list[int], str]:
    """In which order a run on clients with these labels shows them, and by what."""
    clients = [(np.eye(len(own), 4, dtype="float32"), np.array(own)) for own in labels]
    federation = scool.from_arrays(clients, test_fraction=0.5)
    scool.fit(federation, "linear", algorithm, rounds=1, out=place)
    record = read_run(place)
    found = record.last_graph()
    assert found is not None
    return client_order(record, found[1])


def test_clients_with_the_same_classes_stand_side_by_side(tmp_path: Path) -> None:
    pairs = [[1, 2], [0, 1], [1, 2], [0, 2], [0, 1], [0, 2]]
    labels = [own * 2 for own in pairs]
    for prior in (scool.SBM(num_blocks=2), scool.Attention()):  # whatever was learned
        place = tmp_path / type(prior).__name__
        assert ordered(labels, scool.SCooL(prior=prior), place) == ([1, 4, 3, 5, 0, 2], "classes")


def test_else_clients_stand_by_what_was_learned(tmp_path: Path) -> None:
    few = [[0, 1], [1, 2], [0, 2], [0, 1], [2, 3]]  # most have no equal
    _, by = ordered([own * 2 for own in few], scool.SCooL(prior=scool.Attention()), tmp_path / "x")
    assert by == "likeness"
    labels = [[0, 1, 0, 1]] * 5  # all have the same classes
    _, by = ordered(labels, scool.SCooL(prior=scool.SBM(num_blocks=2)), tmp_path / "sbm")
    assert by == "learned block"
    _, by = ordered(labels, scool.SCooL(prior=scool.Attention()), tmp_path / "attention")
    assert by == "likeness"  # attention has no blocks


def test_numbers_of_clients_stand_where_they_say_something() -> None:
    """All of a few; of many some, where those between can be counted; else none."""
    shown: list[list[str]] = []
    for order in ([2, 0, 1], list(range(20)), list(range(20))[::-1]):
        figure = graph_picture(torch.eye(len(order)), order, "", "number")
        shown.append([tick.get_text() for tick in figure.axes[0].get_xticklabels()])
    assert shown == [["2", "0", "1"], [str(n) for n in range(0, 20, 2)], []]


def test_a_graph_without_edges_says_so() -> None:
    w = torch.full((3, 3), 0.25).fill_diagonal_(0.5)
    panels = [Panel("alone", torch.eye(3), [0, 1, 2], "x"), Panel("all", w, [0, 1, 2], "x")]
    titles = [axes.get_title() for axes in draw_panels(panels, 7.0).axes[:2]]
    assert titles == ["alone\n(nobody else)", "all\n(largest 0.25)"]
