"""`scool tune`, and `scool compare` with what it chose."""

import json
from pathlib import Path
from typing import Any

import pytest

from commands import code_of
from scool.algorithms import METHODS
from scool.cli.main import dispatch

SMALL = ["--clients", "6", "--groups", "2", "--rounds", "2", "--device", "cpu"]
TUNE = ["tune", "--methods", "local,scool-sbm", "--lr", "0.05,0.2", "--set", "epochs=1", *SMALL]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_tune_then_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch([*TUNE, "--temperature", "0.5,2", "--out", "t", "--json"]) == 0
    captured = capsys.readouterr()
    local, sbm = (json.loads(line) for line in captured.out.splitlines())
    assert local["runs"] == sbm["runs"] == local["candidates"] == 4
    assert local["skipped"] == ["temperature"]
    assert "note: local has no option temperature: not searched for it" in captured.err
    assert "scool-sbm lr=0.05 temperature=0.5 epochs=1 seed=0, validation" in captured.err
    assert {p.name for p in Path("t").iterdir()} == {"tune.json", "tune.jsonl", "tune.csv"}
    chosen = json.loads(Path("t/tune.json").read_text())
    assert chosen["status"] == "finished"
    assert [row["options"] for row in chosen["chosen"]] == [local["options"], sbm["options"]]
    assert "test" not in Path("t/tune.jsonl").read_text()

    before = Path("t/tune.jsonl").read_bytes()
    assert dispatch([*TUNE, "--temperature", "0.5,2", "--out", "t", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert all(line.startswith("note: ") for line in captured.err.splitlines()), "no progress"
    assert "validation %" in captured.out and "chosen" in captured.out
    assert Path("t/tune.jsonl").read_bytes() == before

    words = ["compare", "--methods", "local,scool-sbm,fedavg", "--tuned", "t", "--no-figures"]
    words += ["--json", "--out", "c", "--set", "scool-sbm.lr=0.3", "--lr", "0.77", *SMALL]
    assert dispatch([*words, "--quiet"]) == 0
    captured = capsys.readouterr()
    tuned = local["options"]["lr"]
    assert f"lr = 0.77 does not hold for local: its tuned value is {tuned}" in captured.err
    assert len(captured.out.splitlines()) == 3
    assert "note: fedavg has no tuned options in t" in captured.err
    config = {
        m: json.loads(Path(f"c/{m}/run.json").read_text())["config"]["algorithm"]
        for m in ("local", "scool-sbm", "fedavg")
    }
    assert config["local"]["sgd"]["lr"] == local["options"]["lr"]
    assert config["scool-sbm"]["prior"]["temperature"] == sbm["options"]["temperature"]
    assert config["scool-sbm"]["sgd"]["lr"] == 0.3  # --set has the last word
    assert config["local"]["sgd"]["epochs"] == 1 and config["fedavg"]["sgd"]["epochs"] == 5
    assert dispatch(["resume", "c", "--json", "--quiet"]) == 0  # the options are in compare.json
    assert len(lines(capsys)) == 3


def test_options_of_other_data_are_taken_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch([*TUNE, "--out", "t", "--quiet", "--json"]) == 0
    words = ["compare", "--methods", "local", "--tuned", "t", "--dataset", "synthetic"]
    assert dispatch([*words, "--no-figures", "--out", "c", "--json", *SMALL]) == 0
    said = capsys.readouterr().err
    assert "the options in t were chosen on other data: dataset digits (here synthetic)" in said


def test_defaults_depend_on_the_data() -> None:
    assert dispatch(["tune", "--methods", "local", "--out", "a", "--quiet", "--json", *SMALL]) == 0
    search = json.loads(Path("a/tune.json").read_text())["search"]
    assert search["space"] == {"lr": [0.1, 0.2, 0.4]}
    assert search["settings"]["data"]["val_fraction"] == 0.2
    words = ["--dataset", "synthetic", "--task", "regression", "--val-fraction", "0.3"]
    words += ["--seeds", "2", "--out", "b", "--json", "--quiet", *SMALL]
    assert dispatch(["tune", "--methods", "local", *words]) == 0
    search = json.loads(Path("b/tune.json").read_text())["search"]
    assert search["space"] == {"lr": [0.01, 0.02, 0.04]} and search["seeds"] == 2
    assert search["settings"]["data"]["val_fraction"] == 0.3


def test_a_file_sets_defaults_and_flags_override_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.toml").write_text('methods = "local,fedavg"\nlr = "0.1,0.2"\nbudget = 1\nrounds = 1\n')
    words = ["tune", "--config", "t.toml", "--budget", "2", "--out", "t", "--json", "--quiet"]
    assert dispatch([*words, "--clients", "4", "--groups", "2"]) == 0
    rows = lines(capsys)
    assert [row["method"] for row in rows] == ["local", "fedavg"]
    assert [row["runs"] for row in rows] == [2, 2]


def test_values_that_hold_commas_have_semicolons_between(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["tune", "--methods", "scool", "--lr", "0.2", "--json", "--quiet", *SMALL]
    for kinds, count in ("alone,graph; alone,body", 2), ("alone,graph;", 1):
        assert dispatch([*words, "--set", f"kinds={kinds}", "epochs=1"]) == 0
        (row,) = lines(capsys)
        assert row["candidates"] == count
        assert row["options"]["kinds"] in {"alone,graph", "alone,body"}


def test_what_is_doubtful_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "--methods", "local,fedavg", "--dataset", "synthetic", "--task", "regression"]
    words += ["--lr", "1e29,1e30", "--out", "t", *SMALL]
    assert dispatch(words) == 0
    captured = capsys.readouterr()
    assert "note: local: every candidate diverged; try smaller learning rates" in captured.err
    assert "diverged" in captured.out and "R2" in captured.out
    words = ["tune", "--methods", "local", "--lr", "0.001,0.2", "--out", "u", *SMALL]
    assert dispatch(words) == 0
    assert "note: local: the best lr is the smallest or largest tried" in capsys.readouterr().err
    words = ["tune", "--methods", "local", "--set", "batch_size=4", "--lr", "0.2", "--budget", "3"]
    assert dispatch([*words, "--out", "v", *SMALL]) == 0
    assert "local has only 1 candidates" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "locl"], "did you mean 'local'"),
        (["--methods", "truth", "--partition", "dirichlet"], "true graph"),
        (["--methods", "local", "--lr", "0.1,x"], "give a number"),
        (["--methods", "local", "--lr", "0.1,-1"], "lr = -1"),
        (["--methods", "local", "--temperature", "1,2"], "none of the methods has an option"),
        (["--methods", "local", "--set", "epochs"], "OPTION=VALUE,VALUE"),
        (["--methods", "local", "--set", "epocs=1,2"], "'epochs'"),
        (["--methods", "local", "--set", "epochs="], "give values"),
        (["--budget", "-3"], "budget"),
        (["--seeds", "3", "--budget", "2"], "a candidate takes 3 runs"),
        (["--val-fraction", "0"], "val_fraction"),
        (["--samples-per-client", "3"], "raise --val-fraction"),
        (["--dataset", "digit"], "did you mean 'digits'"),
        (["--rounds", "0"], "rounds"),
        (["--config", "none.toml"], "none.toml"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert code_of(monkeypatch, "tune", *arguments, "--quiet") == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""
    assert len(captured.err.splitlines()) == 1 and "Traceback" not in captured.err
    assert not list(Path(".").iterdir())


def test_a_folder_that_holds_no_finished_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "--methods", "local", "--tuned"]
    assert code_of(monkeypatch, *words, "nowhere") == 2
    assert "give a folder of `scool tune`" in capsys.readouterr().err
    Path("t").mkdir()
    Path("t/tune.json").write_text('{"format": "scool-tune-1", "status": "running"}')
    assert code_of(monkeypatch, *words, "t") == 2
    assert "not finished" in capsys.readouterr().err
    Path("t/tune.json").write_text("[]")
    assert code_of(monkeypatch, *words, "t") == 2
    assert not Path("runs").exists()


def test_ctrl_c_keeps_what_is_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from scool.sweep import runner

    carry_out, begun = runner.carry_out, []

    def stopping(*words: Any, **options: Any) -> Any:
        begun.append(options["method"])
        if len(begun) == 2:
            raise KeyboardInterrupt
        return carry_out(*words, **options)

    monkeypatch.setattr(runner, "carry_out", stopping)
    assert code_of(monkeypatch, *TUNE, "--out", "t", "--quiet") == 130
    assert "1 of 4 runs are finished; they are kept in t" in capsys.readouterr().err
    monkeypatch.setattr(runner, "carry_out", carry_out)
    assert code_of(monkeypatch, *TUNE, "--out", "t", "--quiet", "--json") == 0
    assert len(Path("t/tune.jsonl").read_text().splitlines()) == 4


def test_compare_all(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--methods", "all", "--no-figures", "--out", "c", "--quiet", *SMALL]
    assert dispatch([*words, "--epochs", "1", "--json"]) == 0
    rows = lines(capsys)
    assert [row["method"] for row in rows] == list(METHODS)
    assert all({"epochs", "bytes_sent", "messages", "accuracy_mean"} <= row.keys() for row in rows)
    assert dispatch(["resume", "c", "--quiet"]) == 0
    table = capsys.readouterr().out
    assert "epochs" in table and "messages" in table and "sent" in table


def test_compare_all_leaves_out_what_the_data_do_not_allow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["compare", "--methods", "all", "--no-figures", "--out", "c", "--rounds", "1"]
    words += ["--partition", "dirichlet", "--clients", "4", "--epochs", "1", "--json"]
    assert dispatch(words) == 0
    captured = capsys.readouterr()
    assert "note: truth is left out: it needs data whose true graph is known" in captured.err
    methods = [json.loads(line)["method"] for line in captured.out.splitlines()]
    assert methods == [m for m in METHODS if m != "truth"]


def test_resume_says_how_a_search_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dispatch([*TUNE, "--out", "t", "--quiet"]) == 0
    capsys.readouterr()
    assert code_of(monkeypatch, "resume", "t") == 2
    assert "t is a search: start the same `scool tune" in capsys.readouterr().err
