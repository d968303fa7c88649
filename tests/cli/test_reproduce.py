"""`scool reproduce` on tiny files in the layout of the real ones."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scool.cli.main import dispatch
from scool.display.live import Console
from scool.errors import ConfigError, DataError, RunError
from scool.recording.seals import DamageWarning
from scool.reproduction import running
from scool.run.loop import Interrupted
from scool.sweep import runner
from scool.sweep.runner import claim_run
from study_records import restored
from tiny_images import write_cifar10, write_cifar100, write_mini_imagenet

TINY = ["--data-dir", "data", "--clients", "5", "--no-verify-checksums", "--device", "cpu"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path / "data")
    return tmp_path


def reproduce(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert dispatch(["reproduce", words[0], *TINY, *words[1:], "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_table_then_again_then_from_the_records(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["table1", "--methods", "dpsgd-1-step,scool-sbm", "--rounds", "2", "--out", "r"]
    first = reproduce(capsys, *words, "--seeds", "2")
    rows = {row["row"]: row for row in first["rows"]}
    assert list(rows) == ["dpsgd-1-step", "scool-sbm"] and rows["scool-sbm"]["seeds"] == [0, 1]
    assert rows["scool-sbm"]["std_seeds"] is not None and rows["scool-sbm"]["paper"] == 91.37
    stem = "r/table1-cifar10-noniid-5-clients-2-rounds"
    assert {p.suffix for p in place.glob(f"{stem}.*")} == {".md", ".csv", ".tex", ".json"}
    assert json.loads(Path(f"{stem}.json").read_text()) == first
    light = {p.name for p in Path("r/cifar10-noniid-5-clients/scool-sbm-2-rounds/seed-1").iterdir()}
    files = {"run.json", "metrics.jsonl", "timing.jsonl", "graph_error.jsonl", "graphs"}
    assert light == files | {"clients.safetensors", "manifest.json"}

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished run is never repeated")

    monkeypatch.setattr(runner, "carry_out", refuse)
    assert reproduce(capsys, *words, "--seeds", "2") == first
    for target in ("graphs", "graph-error"):  # the same runs
        reproduce(capsys, target, *words[1:], "--methods", "scool-sbm", "--seeds", "2")
    drawn = {p.name for p in Path("r/figures").iterdir()}
    assert {
        "graphs-scool-sbm-cifar10-noniid-5-clients-2-rounds.png",
        "graph-error-cifar10-noniid-5-clients-2-rounds.pdf",
    } <= drawn
    Path("r").rename("elsewhere")
    results = ["--results", "elsewhere"]
    again = reproduce(capsys, "table1", "--methods", words[2], *results)
    assert [row["accuracy"] for row in again["rows"]] == [row["accuracy"] for row in first["rows"]]
    assert not Path("r").exists() and not Path("runs").exists()  # prints only
    for chosen, seeds in (([], [0, 1]), (["--seed", "0"], [0]), (["--seed", "1"], [1])):
        rows = reproduce(capsys, "table1", *results, *chosen)["rows"]
        assert all(row["seeds"] == seeds for row in rows)
    two = reproduce(capsys, "table1", *results, "--seeds", "2")["rows"]
    assert all(row["seeds"] == [0, 1] for row in two)
    page = Path("page.md")
    name = "table1 cifar10-noniid-5-clients"
    page.write_text(f"<!-- begin {name} -->\n<!-- end {name} -->\n")
    reproduce(capsys, "table1", *results, "--page", "page.md")
    assert "| SCooL-SBM | " in page.read_text() and "from elsewhere -->" in page.read_text()
    reproduce(capsys, "table1", *results, "--out", "tables")
    assert Path("tables/table1-cifar10-noniid-5-clients.md").is_file()


def test_where_others_are_at_all_runs_it_says_so(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table1", "--methods", "local", "--rounds", "1", "--out", "r"]
    with claim_run(place / "r/cifar10-noniid-5-clients/local-1-rounds/seed-0"):
        assert dispatch(["reproduce", *words, *TINY]) == 0
    said = capsys.readouterr()
    assert said.out == "" and "no run is finished yet: other processes are at them" in said.err
    assert [row["row"] for row in reproduce(capsys, *words)["rows"]] == ["local"]


def test_records_of_this_repository_are_tables_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = restored(tmp_path, "2026-11-15-cifar10-core")
    assert dispatch(["reproduce", "table1", "--setting", "sbm", "--results", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "## table1: CIFAR-10, non-IID SBM" in text
    assert "| SCooL-SBM | 94.76 | 3.40 | – | 1 | 94.14 | 2.28 | +0.62 (one seed) |" in text
    assert "no finished run of: local, fedavg" in text


def test_what_cannot_be_drawn_keeps_nothing_else_from_being_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = restored(tmp_path, "2026-11-15-cifar10-core")
    folders += restored(tmp_path, "reproduction/cifar10-sbm", below="scool-sbm")
    words = ["--setting", "sbm", "--results", *map(str, folders), "--out", str(tmp_path)]
    assert dispatch(["reproduce", "graphs", *words]) == 0
    assert "the graphs of scool-attention cannot be drawn" in capsys.readouterr().out
    assert (tmp_path / "figures/graphs-scool-sbm-cifar10-sbm.png").stat().st_size > 10_000
    assert not list(tmp_path.glob("figures/graphs-scool-attention-*"))


@pytest.mark.parametrize(
    ("dataset", "write", "network"),
    [("cifar100", write_cifar100, "cnn2"), ("mini_imagenet", write_mini_imagenet, "cnn4")],
)
def test_a_hundred_classes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dataset: str,
    write: Callable[[Path], Path],
    network: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "data")
    words = ["--dataset", dataset, "--setting", "sbm", "--clients", "10", "--rounds", "1"]
    found = reproduce(capsys, "table1", "--methods", "spdb-1-step", *words)
    (row,) = found["rows"]
    assert row["options"]["model"] == network and isinstance(row["paper"], float)
    name = dataset.replace("_", "-")
    header = Path(f"runs/reproduction/{name}-sbm-10-clients/spdb-1-step-1-rounds/seed-0/run.json")
    identity = json.loads(header.read_text())["identity"]
    assert identity["federation"] == f"{name}/sbm" and identity["clients"] == 10


def test_ablations_bring_what_they_are_compared_with(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ablations", "--methods", "dpsgd-5-epochs-ring", "--rounds", "1", "--out", "r"]
    assert dispatch(["reproduce", *words, *TINY, "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in listed] == [
        "r/cifar10-noniid-5-clients/dpsgd-5-epochs-1-rounds/seed-0",
        "r/cifar10-noniid-5-clients/dpsgd-5-epochs-ring-1-rounds/seed-0",
    ]
    assert all(line.startswith("to do") for line in listed) and not Path("r").exists()
    assert dispatch(["reproduce", *words, *TINY, "--list", "--json"]) == 0
    as_json = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["folder"] for line in as_json] == [line.split()[-1] for line in listed]
    assert all(line["status"] == "to do" and line["rounds"] == 1 for line in as_json)
    assert [line["row"] for line in as_json] == ["dpsgd-5-epochs", "dpsgd-5-epochs-ring"]
    reference, change = reproduce(capsys, *words)["rows"]
    assert change["change"] == pytest.approx(change["accuracy"] - reference["accuracy"])
    assert change["change_verdict"] == "one seed" and change["family"] == "topology"
    dispatch(["reproduce", *words, *TINY, "--list"])
    assert capsys.readouterr().out.count("finished") == 2


def test_damaged_records_leave_no_trace_of_the_stack(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table1", "--methods", "local", "--rounds", "1"]
    row = reproduce(capsys, *words, "--out", "r")["rows"][0]
    assert row["difference"] is None and row["clients"] == 5
    header = Path("r/cifar10-noniid-5-clients/local-1-rounds/seed-0/run.json")
    metrics = header.with_name("metrics.jsonl")
    whole = metrics.read_text()
    metrics.write_text("")
    assert dispatch(["reproduce", *words, *TINY, "--out", "r", "--list"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("in the way") and "move that folder away, and the run" in listed
    with pytest.raises(RunError, match=r"seed-0 is damaged: 0 of 1 rounds are recorded\. Bring"):
        reproduce(capsys, *words, "--out", "r")
    metrics.write_text(whole)
    for damage in ("{", "{}", "[]"):
        header.write_text(damage)
        assert dispatch(["reproduce", *words, *TINY, "--out", "r", "--list"]) == 0
        assert capsys.readouterr().out.startswith("in the way")
        with (
            pytest.raises(RunError, match=r"no finished run of table1.*/seed-0 is left out: "),
            pytest.warns(DamageWarning, match=r"seed-0/run\.json is damaged"),
        ):
            dispatch(["reproduce", *words, *TINY, "--results", "r"])


def test_nothing_is_tidied_away_from_damaged_records(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["table1", "--methods", "dpsgd-1-step", "--rounds", "2", "--out", "r"]
    with monkeypatch.context() as patch:  # killed before it was tidied
        patch.setattr(running, "tidy", lambda path: None)
        reproduce(capsys, *words)
    run = Path("r/cifar10-noniid-5-clients/dpsgd-1-step-2-rounds/seed-0")
    for name in ("timing.jsonl", "graph_error.jsonl"):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole.splitlines(keepends=True)[0])
        everything = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        with pytest.raises(RunError, match=rf"{name} is damaged: it ends after line 1, and 2 were"):
            reproduce(capsys, *words)
        assert {path: path.read_bytes() for path in everything} == everything
        (run / name).write_bytes(whole)
    assert list(run.glob("checkpoint-*"))
    reproduce(capsys, *words)
    assert not list(run.glob("checkpoint-*"))


def test_what_is_tried_is_not_in_the_way_of_the_plan(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce(capsys, "table1", "--methods", "dpsgd-1-step", "--rounds", "1", "--out", "r")
    for more in ([], ["--clients", "5"], ["--rounds", "1"], ["--rounds", "2"]):
        assert dispatch(["reproduce", "table1", "--out", "r", "--list", *more]) == 0
        assert "in the way" not in capsys.readouterr().out


def test_files_are_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "convergence", "--methods", "local", "--rounds", "1", *TINY]
    assert dispatch([*words, "--out", "r"]) == 0
    assert "r/figures/convergence-cifar10-noniid-5-clients-1-rounds.pdf" in capsys.readouterr().err
    assert dispatch([*words, "--results", "r"]) == 0
    assert "the figure of convergence needs --out" in capsys.readouterr().err


def test_mistakes_are_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["reproduce"]) == 2 and dispatch(["reproduce", "--help"]) == 0
    assert dispatch(["reproduce", "--list"]) == 2  # the word on what comes first
    with pytest.raises(ConfigError, match="--list shows what --out has"):
        dispatch(["reproduce", "table1", "--list", "--results", "."])
    assert "ablations" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="unknown reproduction 'table': did you mean 'table1'"):
        dispatch(["reproduce", "table"])
    with pytest.raises(ConfigError, match="unknown row of budget 'local'"):
        dispatch(["reproduce", "budget", "--methods", "local"])
    with pytest.raises(ConfigError, match="seeds = 0 is not possible"):
        dispatch(["reproduce", "table1", "--seeds", "0"])
    with pytest.raises(RunError, match=r"no finished run of table1, cifar10-noniid is in data"):
        dispatch(["reproduce", "table1", "--results", "data"])
    with pytest.raises(RunError, match="results = 'nowhere' is not a folder"):
        dispatch(["reproduce", "table1", "--results", "nowhere"])
    with pytest.raises(ConfigError, match="--results has no value: name the folders"):
        dispatch(["reproduce", "table1", "--results"])
    with pytest.raises(DataError, match="is missing: unpack"):
        dispatch(["reproduce", "table1", "--data-dir", "nowhere", "--quiet", "--out", "made"])
    with pytest.raises(ConfigError, match="device = 'tpu' is not possible"):
        dispatch(["reproduce", "table1", "--device", "tpu", "--quiet", "--out", "made"])
    assert not Path("made").exists()  # said before anything is made


def test_a_stop_shows_what_is_done_and_says_how_to_go_on(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["table1", "--methods", "spdb-1-step,dpsgd-1-step", "--rounds", "2", "--out", "r"]
    wanted = [""]
    plain = Console.round

    def stop(self: Console, row: Any, info: Any) -> None:
        plain(self, row, info)
        if self.view.method == wanted[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Console, "round", stop)
    wanted[0] = "dpsgd"  # the first of the table: nothing is done yet
    with pytest.raises(Interrupted, match="the same command continues"):
        reproduce(capsys, *words)
    wanted[0] = "spdb"
    with pytest.raises(Interrupted, match="the same command continues"):
        reproduce(capsys, *words)
    shown = json.loads(capsys.readouterr().out)
    assert [row["row"] for row in shown["rows"]] == ["dpsgd-1-step"]
    assert any("spdb-1-step" in note and "interrupted" in note for note in shown["notes"])
    wanted[0] = "nobody"
    assert len(reproduce(capsys, *words)["rows"]) == 2


def test_a_killed_command_goes_on_where_it_was(place: Path) -> None:
    words = ["reproduce", "table1", "--methods", "spdb-1-step"]
    words += ["--rounds", "16", "--out", "r", *TINY]
    run = Path("r/cifar10-noniid-5-clients/spdb-1-step-16-rounds/seed-0")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def start(*command: str) -> subprocess.Popen[str]:
        pipe, every = subprocess.PIPE, [sys.executable, *command, *words]
        return subprocess.Popen(every, stdout=pipe, stderr=pipe, text=True, env=environment)

    process = start(str(Path(__file__).parents[1] / "slowly.py"), "0.2")
    for _ in range(6000):
        if list(run.glob("checkpoint-*.safetensors")):
            break
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert json.loads((run / "run.json").read_text())["status"] == "running"
    process = start("-m", "scool")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "run 1 of 1 continues: spdb-1-step, seed 0" in err and "SPDB (s = 1 step)" in out
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rounds = [json.loads(line)["round"] for line in lines]
    assert rounds == list(range(16))
