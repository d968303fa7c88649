"""Damaged records are named, and what is whole serves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commands import SMALL, code_of
from records import change_header, make_old, stop_at
from scool import LocalOnly, fit
from scool.cli.main import dispatch
from scool.cli.run import print_summary
from scool.display.live import Console
from toys import classification, poisoned

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.fixture
def finished(capsys: pytest.CaptureFixture[str]) -> Path:
    words = ["--rounds", "3", "--checkpoint-every", "1", "--out", "r", "--json", *SMALL]
    dispatch(["run", "scool-sbm", *words])
    capsys.readouterr()
    return Path("r")


def test_a_damaged_checkpoint_is_refused_and_the_one_before_serves(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    last, before = (finished / f"checkpoint-00000{n}.safetensors" for n in (3, 2))
    metrics, whole = finished / "metrics.jsonl", last.read_bytes()
    kept = {path: path.read_bytes() for path in (metrics, last, before)}
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    for damaged in (flipped, whole[: len(whole) // 2], kept[before], None):
        last.unlink() if damaged is None else last.write_bytes(damaged)
        words = r"checkpoint-000003\.safetensors is (damaged|missing).* continues from round 2"
        with pytest.warns(UserWarning, match=words):
            assert code_of(monkeypatch, "resume", "r", "--json", "--quiet") == 0
        assert {path: path.read_bytes() for path in kept} == kept
    capsys.readouterr()
    last.write_bytes(flipped)
    before.write_bytes(b"")
    everything = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert code_of(monkeypatch, "resume", "r") == 2
    said = capsys.readouterr().err
    assert said.startswith("scool: ") and len(said.splitlines()) == 1
    assert all(f"{path} is damaged" in said for path in (last, before))
    assert "scool rerun r" in said  # what helps
    assert {path: path.read_bytes() for path in everything} == everything  # nothing is lost


@pytest.mark.parametrize("is_old", [False, True])
def test_damaged_metrics_are_named_and_nothing_is_lost(
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_old: bool,
) -> None:
    if is_old:
        make_old(finished)
    metrics = finished / "metrics.jsonl"
    kept = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    half = metrics.read_bytes()[: metrics.stat().st_size // 2]
    lines = metrics.read_bytes().splitlines()
    texts = [half, b'{"round": 1,', b"", b"[7]"]
    for second in (b"{}", b'{"round": 1}', lines[0], lines[2], lines[1].replace(b"1", b"true", 1)):
        texts.append(b"\n".join([lines[0], second, lines[2], b""]))
    for damaged in texts:
        metrics.write_bytes(damaged)
        assert code_of(monkeypatch, "resume", "r") == 2
        said = capsys.readouterr().err
        assert "metrics.jsonl is damaged: " in said and "scool rerun r" in said
        assert all(path.read_bytes() == old for path, old in kept.items() if path != metrics)
    metrics.write_bytes(kept[metrics])
    assert code_of(monkeypatch, "resume", "r", "--json") == 0


def test_a_moved_run_says_where_it_is_now(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in finished.glob("checkpoint-*"):
        file.unlink()
    finished.rename("elsewhere")
    assert code_of(monkeypatch, "resume", "elsewhere") == 0
    assert "records: elsewhere" in capsys.readouterr().out


def test_clients_left_out_are_seen_even_where_it_is_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    federation = replace(poisoned(classification(), 1), client_names=("a", "b", "c", "d"))
    with Console(1, quiet=True) as console:
        result = fit(federation, "linear", LocalOnly(), rounds=1, recorders=[console])
    assert "client 1 (b) is left out from now on: non-finite inputs" in capsys.readouterr().err
    print_summary(result.summary(), as_json=False)
    assert "(1 of 4 clients out)" in capsys.readouterr().out


def test_a_finished_run_without_models_shows_its_result(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in finished.glob("checkpoint-*"):
        file.unlink()
    assert code_of(monkeypatch, "resume", "r", "--json") == 0
    result = json.loads((finished / "run.json").read_text())["result"]
    assert json.loads(capsys.readouterr().out) == result
    run = finished / "run.json"
    run.write_text(run.read_text().replace(str(result["messages"]), "7"))
    assert code_of(monkeypatch, "resume", "r") == 2
    assert "run.json is damaged: its content does not match its" in capsys.readouterr().err
    run.write_text("{}")
    assert code_of(monkeypatch, "resume", "r") == 2
    assert "run.json is damaged: it does not say which run it is" in capsys.readouterr().err
    (finished / "manifest.json").unlink()
    assert code_of(monkeypatch, "resume", "r") == 2
    assert "run.json is damaged: it does not say what it is" in capsys.readouterr().err


def test_a_checkpoint_or_run_of_another_version(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for last in finished.glob("checkpoint-*"):
        last.write_bytes(last.read_bytes().replace(b"scool-checkpoint-2", b"scool-checkpoint-7"))
    assert code_of(monkeypatch, "resume", "r") == 2
    assert "of another version: its format is 'scool-checkpoint-7'" in capsys.readouterr().err
    run = finished / "run.json"
    run.write_text(run.read_text().replace("scool-run-2", "scool-run-7"))
    for command in ("resume", "rerun"):
        assert code_of(monkeypatch, command, "r") == 2
        said = capsys.readouterr().err
        assert "run.json is of another version: its format is 'scool-run-7'" in said
        assert "Use that version" in said and "damaged" not in said
    run.write_text("{")
    assert code_of(monkeypatch, "resume", "r") == 2


def test_a_damaged_configuration(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished / "run.json"
    header = json.loads(run.read_text())
    without = {name: v for name, v in header["config"].items() if name != "method"}

    def refused(flaw: str) -> None:
        for command in ("resume", "rerun"):
            assert code_of(monkeypatch, command, "r") == 2
            said = capsys.readouterr().err
            assert "run.json" in said and flaw in said and "Traceback" not in said

    for config, flaw in ((without, "it lacks 'method'"), ([1], "config = [1] is not a JSON obj")):
        change_header(finished, config=config)
        refused(flaw)
    run.write_text(json.dumps(header | {"config": without}))
    refused("its content does not match its checksum")
    run.write_text(json.dumps([header]))
    refused("it holds no JSON object")


@pytest.mark.parametrize("is_old", [False, True])
def test_a_half_written_last_line_is_written_again(finished: Path, is_old: bool) -> None:
    path = finished / "metrics.jsonl"
    metrics = path.read_bytes()
    (line,) = stop_at(finished, 2)
    if is_old:
        make_old(finished)
    path.write_bytes(path.read_bytes() + line[:-20])
    assert dispatch(["resume", "r", "--json", "--quiet"]) == 0  # killed in its third round
    assert path.read_bytes() == metrics


@pytest.mark.parametrize("is_old", [False, True])
def test_a_last_line_that_was_whole_is_missed_and_written_again(
    finished: Path, is_old: bool
) -> None:
    path = finished / "metrics.jsonl"
    metrics = path.read_bytes()
    if is_old:
        make_old(finished)
    *lines, last = path.read_bytes().splitlines(keepends=True)
    flaw = "(line 3: .*|it has 2 rounds)" if is_old else "it ends after line 2, and 3 were written"
    words = rf"metrics\.jsonl is damaged: {flaw}\. The run continues from round 2"
    for kept in (last[:-20], b""):
        path.write_bytes(b"".join([*lines, kept]))
        with pytest.warns(UserWarning, match=words):
            assert dispatch(["resume", "r", "--json", "--quiet"]) == 0
        assert path.read_bytes() == metrics
        if is_old:
            make_old(finished)
    path.write_bytes(path.read_bytes()[:-1])  # only the end of the line: nothing is lost
    assert dispatch(["resume", "r", "--json", "--quiet"]) == 0
    assert path.read_bytes() == metrics
