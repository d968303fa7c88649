"""`scool ls`, `diff` and `watch`, and the live view of `scool run`."""

import io
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console as RichConsole

import scool
from records import change_header, stop_at
from scool.cli.main import dispatch
from scool.display import live as live_module
from scool.display.live import View, sparkline
from scool.display.records import read_run
from scool.errors import ConfigError, RunError
from scool.recording.disk import writing
from scool.recording.seals import DamageWarning

SMALL = ["--clients", "6", "--groups", "2", "--epochs", "1", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs in a folder."""
    out = tmp_path_factory.mktemp("runs")
    for name, method, more in (
        ("a", "scool-sbm", []),
        ("b", "scool-sbm", ["--lr", "0.1"]),
        ("c", "local", []),
    ):
        words = ["run", method, "--rounds", "3", "--out", str(out / name), *SMALL, *more]
        words += ["--metrics", "auc"]
        assert dispatch(words) == 0
    return out


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs"))


# ---------------------------------------------------------------------- ls


def test_ls_lists_runs_with_key_figures(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["ls", str(made), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["run"] for row in rows] == ["a", "b", "c"]
    result = json.loads((made / "a" / "run.json").read_text())["result"]
    assert rows[0]["score"] == result["accuracy_mean"] and rows[0]["status"] == "finished"
    assert rows[0]["bytes_sent"] == result["bytes_sent"] and rows[0]["clients"] == 6
    assert dispatch(["ls", str(made)]) == 0
    out = capsys.readouterr().out
    assert "scool-sbm" in out and f"{result['accuracy_mean']:.2f} %" in out
    assert rows[0]["auc_mean"] == result["auc_mean"]
    assert "AUC" in out and f"{result['auc_mean']:.3f}" in out


def test_ls_shows_broken_and_unfinished_runs(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_at(runs / "a", 2)
    (runs / "b" / "run.json").write_text("{")
    (runs / "c" / "metrics.jsonl").unlink()
    with pytest.warns(DamageWarning, match=r"run\.json is damaged|metrics\.jsonl"):
        assert dispatch(["ls", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "2/3" in out and "killed" in out and "unknown" in out and "0/3" in out
    with writing(runs / "a"):
        assert dispatch(["ls", str(runs / "a")]) == 0
    assert "running" in capsys.readouterr().out


def test_ls_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        dispatch(["ls", str(tmp_path)])


# ---------------------------------------------------------------------- diff


def test_diff_names_options_and_results(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["diff", str(made / "a"), str(made / "b"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["options"] == {"algorithm.sgd.lr": [0.2, 0.1]} and found["machine"] == {}
    assert found["first_different_round"] == 1
    assert found["results"]["score"][0] != found["results"]["score"][1]
    means = [json.loads((made / n / "run.json").read_text())["result"]["auc_mean"] for n in "ab"]
    assert found["results"]["AUC"] == means
    scores = [read_run(made / name).evaluated[-1]["scores"] for name in "ab"]
    losers = [str(k) for k, (a, b) in enumerate(zip(*scores, strict=True)) if b < a]
    clients = found["clients"]
    assert sorted(clients["names_worse"]) == losers and clients["worse"] == len(losers)
    assert clients["mean"] == pytest.approx(sum(scores[1]) / 6 - sum(scores[0]) / 6)
    assert dispatch(["diff", str(made / "a"), str(made / "b")]) == 0
    out = capsys.readouterr().out
    assert "algorithm.sgd.lr" in out and "differ from round 1 on" in out
    assert f"{len(losers)} of 6 clients are worse off with B" in out
    low, _ = clients["over_clients"]
    gain = f"clients gain {clients['mean']:+.4g} on average (95 % over clients: {low:+.4g} to"
    assert gain in " ".join(out.split())


def test_diff_of_equal_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "a", runs / "same")
    stop_at(runs / "same", 2)
    assert dispatch(["diff", str(runs / "a"), str(runs / "same")]) == 0
    out = capsys.readouterr().out
    assert "options: no difference" in out and "all 2 rounds that both have are equal" in out


def test_diff_of_what_is_no_run(made: Path) -> None:
    with pytest.raises(RunError, match=r"b = .* is not the folder of a run"):
        dispatch(["diff", str(made / "a"), str(made)])


def test_diff_and_export_of_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text("{}")
    for words in (["diff", str(tmp_path), str(tmp_path)], ["export", str(tmp_path)]):
        with pytest.raises(RunError, match="is a comparison: give one of the run folders in it"):
            dispatch(words)


# ---------------------------------------------------------------------- watch


def test_watch_follows_until_the_end(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest = stop_at(runs / "a", 1)

    def go_on() -> None:
        for line in rest:
            time.sleep(0.3)
            with (runs / "a" / "metrics.jsonl").open("ab") as file:
                file.write(line)
        change_header(runs / "a", status="finished")

    writer = threading.Thread(target=go_on)
    with writing(runs / "a"):
        writer.start()
        assert dispatch(["watch", str(runs / "a"), "--every", "0.05"]) == 0
    writer.join()
    captured = capsys.readouterr()
    assert "round 1/3" in captured.out and "round 3/3" in captured.out
    assert "finished" in captured.err


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_watch_ends_where_nobody_is_at_the_run(
    runs: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_at(runs / "a", 1)
    if content:
        (runs / "a" / "run.json").write_text(content)
        with pytest.warns(DamageWarning, match=r"run\.json is damaged|metrics.jsonl is damaged"):
            assert dispatch(["watch", str(runs / "a")]) == 0
    else:
        assert dispatch(["watch", str(runs / "a")]) == 0
    words = "unknown" if content else f"killed; `scool resume {runs / 'a'}` continues it"
    assert words in capsys.readouterr().err


def test_watch_takes_the_newest_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stop_at(runs / "b", 2)
    later = time.time() + 5
    os.utime(runs / "b" / "metrics.jsonl", (later, later))
    assert dispatch(["watch", str(runs), "--once"]) == 0
    assert "round 2/3" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="every = 0"):
        dispatch(["watch", str(runs), "--every", "0"])


def test_watch_of_a_half_started_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r").mkdir()
    header = {"format": "scool-run-1", "status": "running", "method": "local", "rounds": 7}
    (tmp_path / "r" / "run.json").write_text(json.dumps(header))
    assert dispatch(["watch", str(tmp_path / "r"), "--once"]) == 0
    assert "round 0/7" in capsys.readouterr().out


# ---------------------------------------------------------------------- the live view


def drawn(view: View) -> str:
    screen = RichConsole(file=io.StringIO(), force_terminal=True, width=90, color_system=None)
    screen.print(view)
    return screen.file.getvalue()  # type: ignore[attr-defined]


def test_the_view_shows_what_a_person_wants_to_know() -> None:
    view = View("<b>[red]mine", rounds=4, spent=10.0)
    row = {"round": 0, "train_loss": 2.0, "accuracy_mean": 40.0, "bytes": 5000, "quarantined": {}}
    view.add(row | {"blocks": [0, 1, None], "elbo": 1.0}, torch.ones(3, 3))
    worse = {"quarantined": {"2": "loss"}, "fallback": 1.0}
    new = view.add(row | {"round": 1, "train_loss": 1.0, **worse}, torch.eye(3))
    assert new == [
        "client 2 is left out from now on: non-finite loss",
        "round 1: 1 clients found no peer to learn from",
    ]
    assert view.add(row | {"round": 2, **worse}, None) == [], "a warning is given once"
    text = drawn(view)
    for words in ("<b>[red]mine", "round 3 of 4", "3 s left", "40.00 %", "0% of the possible"):
        assert words in text
    assert "2 found" in text and "15.0 kB" in text and "client 2 is left out" in text
    assert sparkline([2.0, 1.0, 2.0]) in text


def test_a_sparkline_of_many_rounds_fits() -> None:
    line = sparkline([float(n) for n in range(1000)], width=10)
    assert len(line) == 10 and line[0] == "▁" and line[-1] == "█"
    assert sparkline([None, float("nan")]) == "" and sparkline([1.0, 1.0]) == "▁▁"


def test_run_on_a_terminal_is_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        live_module,
        "Terminal",
        lambda stderr: RichConsole(file=screen, force_terminal=True, width=90),
    )
    words = [word for word in SMALL if word != "--quiet"]
    assert (
        dispatch(["run", "scool-sbm", "--rounds", "2", "--out", str(tmp_path / "r"), *words]) == 0
    )
    assert "round 2 of 2" in screen.getvalue() and "of the possible edges" in screen.getvalue()
    assert "round 2/2" not in capsys.readouterr().err, "no plain lines on a terminal"
    screen.truncate(0)
    words = ["run", "local", "--rounds", "1", "--out", str(tmp_path / "q"), *SMALL]
    assert dispatch(words) == 0
    assert screen.getvalue() == "", "quiet is quiet"


def test_verify_all_looks_at_every_folder_whatever_is_in_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = scool.synthetic(num_clients=4, groups=2, seed=0)
    for name in ("a", "b", "c", "d"):
        scool.fit(federation, "linear", scool.LocalOnly(), rounds=1, out=tmp_path / name)
    (tmp_path / "b" / "metrics.jsonl").unlink()
    (tmp_path / "b" / "metrics.jsonl").mkdir()
    for file in ("run.json", "metrics.jsonl"):
        (tmp_path / "c" / file).unlink()
    assert dispatch(["export", str(tmp_path / "d"), "--out", str(tmp_path / "models")]) == 0
    (tmp_path / "models" / "models" / "client-0001.safetensors").unlink()
    capsys.readouterr()
    assert dispatch(["verify", "--all", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    found = {
        line.split(": ")[0].rpartition("/")[2]: line.split(": ")[1].split(",")[0]
        for line in lines
        if line.startswith(str(tmp_path))
    }
    damaged = dict.fromkeys("bc", "damaged") | {"models": "damaged"}
    assert found == dict.fromkeys("ad", "whole") | damaged
    assert "client-0001.safetensors is missing" in "\n".join(lines)
