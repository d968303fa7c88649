"""The command line in this process: what it prints, where it writes, how it refuses."""

import dataclasses
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from records import change_header, make_old, stop_at, write_sealed
from scool import LocalOnly, __version__, fit
from scool.cli.console import Console
from scool.cli.main import dispatch, main
from scool.cli.run import print_summary
from scool.data.catalogue import DataConfig
from scool.errors import ConfigError, RunError, ScoolError
from scool.run.config import default_run
from scool.run.recipes import METHODS
from toys import classification, poisoned

KEYS = ["method", "accuracy_mean", "accuracy_std", "rounds", "seconds", "graph_l1", "graph_ari"]
KEYS += ["bytes_sent", "messages", "run_dir"]
SMALL = ["--clients", "6", "--groups", "2", "--epochs", "1", "--device", "cpu", "--quiet"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCOOL_DATA", raising=False)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def code_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `scool ARGUMENTS`, through `main`."""
    monkeypatch.setattr(sys, "argv", ["scool", *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("warnings.formatwarning", warnings.formatwarning)  # put back afterwards
    with pytest.raises(SystemExit) as stopped:
        main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


# ---------------------------------------------------------------------- run, resume, rerun


def test_run_resume_and_rerun(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dispatch(["run", "scool-sbm", "--rounds", "3", "--out", "r", "--json", *SMALL]) == 0
    (summary,) = lines(capsys)
    assert set(KEYS) <= summary.keys()
    assert summary["method"] == "scool-sbm" and summary["rounds"] == 3
    assert summary["run_dir"] == "r" and summary["accuracy_mean"] > 10
    metrics = Path("r/metrics.jsonl").read_bytes()

    assert dispatch(["resume", "r", "--json", "--quiet"]) == 0  # finished: the same again
    (again,) = lines(capsys)
    assert again == summary
    assert Path("r/metrics.jsonl").read_bytes() == metrics

    assert dispatch(["rerun", "r", "--quiet"]) == 0
    assert "records: r-rerun-1" in capsys.readouterr().out
    assert Path("r-rerun-1/metrics.jsonl").read_bytes() == metrics
    monkeypatch.chdir("r")
    assert dispatch(["rerun", ".", "--quiet"]) == 0
    monkeypatch.chdir("..")
    assert Path("r-rerun-2/metrics.jsonl").read_bytes() == metrics
    words = ["rerun", "r", "--out", "other", "--json", "--quiet"]
    assert dispatch(words) == 0
    assert Path("other/metrics.jsonl").read_bytes() == metrics
    with pytest.raises(RunError, match="'other' exists already"):
        dispatch(words)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # torchrun starts it again: it goes on
    assert dispatch(words) == 0


def test_without_out_a_folder_under_runs_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["run", "local", "--rounds", "1", *SMALL]) == 0
    out = capsys.readouterr().out
    (folder,) = Path("runs").iterdir()
    assert folder.name.endswith("-local-digits") and str(folder) in out and "accuracy %" in out


def test_progress_goes_to_stderr_and_results_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [word for word in SMALL if word != "--quiet"]
    assert dispatch(["run", "local", "--rounds", "2", "--out", "r", "--json", *arguments]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 and "round 2/2" in captured.err
    assert "accuracy" in captured.err and "left" in captured.err


def test_the_defaults_of_the_three_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """`scool run scool-sbm --seed 9 --rounds 30 --out DIR --json`, fewer rounds."""
    assert (
        dispatch(["run", "scool-sbm", "--seed", "9", "--rounds", "2", "--out", "r", "--json"]) == 0
    )
    (summary,) = lines(capsys)
    assert set(KEYS) <= summary.keys() and summary["clients"] == 40 and summary["seed"] == 9
    methods = "local,fedavg,dpsgd,scool-sbm,scool-attention,scool-mmsbm"
    assert (
        dispatch(["compare", "--methods", methods, "--seed", "7", "--rounds", "1", "--json"]) == 0
    )
    rows = lines(capsys)
    assert [row["method"] for row in rows] == methods.split(",")
    assert all(set(KEYS) <= row.keys() for row in rows)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_runs_on_regression(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dataset", "synthetic", "--task", "regression", "--unequal-sizes", "--clients", "5"]
    words += ["--groups", "2", "--rounds", "2", "--epochs", "1", "--quiet", "--json", "--out", "r"]
    assert dispatch(["run", method, *words]) == 0
    (summary,) = lines(capsys)
    assert summary["accuracy_mean"] is None and summary["r2_mean"] is not None


# ---------------------------------------------------------------------- options


def parts(instance: Any) -> dict[str, Any]:
    """Every option by name, those that only Python can set left out."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(instance):
        value = getattr(instance, f.name)
        if dataclasses.is_dataclass(value):
            found |= parts(value)
        elif f.name != "matrix" and not isinstance(value, Tensor):
            found[f.name] = value
    return found


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_option_is_a_flag_and_a_toml_key(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from scool.cli.run import configure

    base = default_run(method, DataConfig())
    options = parts(base.algorithm) | parts(base.settings)
    with pytest.raises(SystemExit) as stopped:
        dispatch(["run", method, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for name in options:
        dashed = name.replace("_", "-")
        assert f"--{dashed}" in text or f"--{dashed.lower()}" in text, name
    toml = []
    for name, value in options.items():
        if value is not None:
            toml.append(f"{name} = {json.dumps(value)}")
    Path("all.toml").write_text("\n".join(toml))
    command, _ = configure([method, "--config", "all.toml"])
    assert command.algorithm == base.algorithm and command.settings == base.settings


def test_flags_override_toml_overrides_the_recipe() -> None:
    from scool.cli.run import configure

    Path("a.toml").write_text('seed = 4\nnum-blocks = 3\nout = "x"\n[sgd]\nlr = 0.5\n')
    command, _ = configure(["scool-sbm", "--config", "a.toml", "--num-blocks", "7", "--json"])
    assert command.algorithm.prior.num_blocks == 7 and command.algorithm.sgd.lr == 0.5
    assert command.settings.seed == 4 and command.json and command.out == Path("x")
    assert command.algorithm.fraction == 0.225  # of the recipe
    Path("b.toml").write_text('dataset = "cifar10"\npartition = "sbm"\n')
    command, _ = configure(["scool-sbm-released", "--config", "b.toml"])
    assert command.settings.rounds == 100 and command.algorithm.prior.temperature == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_block = 3", "did you mean 'num_blocks'"),
        ("rounds = 'ten'", "whole number"),
        ("seed = ", "not valid TOML"),
        ("dataset = 5", "dataset"),
        ("partition = 'non'", "partition"),
        ("fraction = 1.5", "fraction"),
        ("[prior]\nblocks = 3", "did you mean 'num_blocks'"),
    ],
)
def test_mistakes_in_a_toml_file(text: str, message: str) -> None:
    Path("bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        dispatch(["run", "scool-sbm", "--config", "bad.toml", "--out", "r"])
    assert not Path("r").exists()


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "did you mean 'run'"),
        (["run", "scool-sbn"], "did you mean 'scool-sbm'"),
        (["run", "--rounds", "3"], "the method comes first"),
        (["run", "local", "--dataset", "digit"], "did you mean 'digits'"),
        (["run", "local", "--model", "mpl"], "did you mean 'mlp'"),
        (["run", "dpsgd", "--topology", "rng"], "did you mean 'ring'"),
        (["run", "scool-dirac", "--topology", "rng"], "did you mean 'ring'"),
        (["run", "scool-sbm", "--fraction", "0"], "fraction"),
        (["run", "fedavg", "--participation", "1.5"], "participation"),
        (["run", "local", "--rounds", "0"], "rounds"),
        (["run", "local", "--lr", "-1"], "lr"),
        (["run", "local", "--device", "gpu"], "auto, cpu or cuda"),
        (["run", "local", "--clients", "3", "--groups", "5"], "groups"),
        (["run", "local", "--dataset", "cifar10", "--data-dir", "nowhere"], "nowhere"),
        (["run", "local", "--dataset", "digits", "--task", "regression"], "task"),
        (["run", "local", "--config", "none.toml"], "none.toml"),
        (["run", "local", "--rounds", "x"], ""),
        (["run", "local", "--partition", "nonid"], "partition"),
        (["run", "scool-sbm", "--nun-blocks", "3"], "num-blocks"),
        (["run", "truth", "--partition", "dirichlet", "--clients", "5"], "true graph"),
        (["run", "scool-sbm", "--cross-gradient", "exact"], "--steps 1"),
        (["resume", "nowhere"], "not a run folder"),
        (["rerun", "nowhere"], "not a run folder"),
        (["rerun", "."], "not a run folder"),
        (["resume"], ""),
        (["compare", "--methods", "local,fedavgg"], "did you mean 'fedavg'"),
        (["compare", "--methods", ","], "at least one"),
        (["compare", "--methods", "local,local"], "once"),
        (["compare", "--set", "num_blocks=3"], "METHOD.OPTION=VALUE"),
        (["compare", "--num-blocks", "3"], "write --set scool-sbm.num_blocks=VALUE"),
        (["compare", "--methods", "local,fedavg", "--participation=1"], "--set fedavg.particip"),
        (["compare", "--set", "scool-sbm.num_block=3"], "did you mean 'num_blocks'"),
        (["compare", "--set", "scool-smb.num_blocks=3"], "did you mean 'scool-sbm'"),
        (["compare", "--set", "scool-sbm.num_blocks=x"], "whole number"),
        (["compare", "--methods", "local", "--set", "fedavg.participation=7"], "not compared"),
        (["compare", "--set", "fedavg.participation=7"], "participation = 7"),
        (["compare", "--seeds", "0"], "seeds"),
        (["run", "local", "--hidden", "0"], "hidden"),
        (["bench", "engin"], "engine"),
        (["bench"], "scaling"),
        (["data", "lst"], "did you mean 'list'"),
        (["data", "check"], "needs a name"),
        (["data", "check", "cifar11"], "did you mean 'cifar10"),
        (["data", "check", "cifar10"], "cifar"),
        (["data", "fetch", "mini-imagenet"], "by hand"),
        (["data", "list", "--dir", "x"], "--data-dir"),
        ([], "usage"),
        (["run"], "methods:"),
    ],
)
def test_mistakes_exit_with_2_and_a_word_and_leave_nothing(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert code_of(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err + captured.out
    assert "Traceback" not in captured.err
    assert not Path("runs").exists()


def test_cuda_asked_for_and_absent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert code_of(monkeypatch, "run", "local", "--device", "cuda") == 2
    assert "sees no CUDA" in capsys.readouterr().err and not Path("runs").exists()


def test_help_and_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"scool {__version__}\n"
    for words in (["--help"], ["run", "--help"], ["data", "--help"], ["compare", "--help"]):
        assert code_of(monkeypatch, *words) == 0
        assert "scool" in capsys.readouterr().out


def test_an_existing_folder_is_not_touched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r").mkdir()
    Path("r/mine.txt").write_text("mine")
    for command in (["run", "local"], ["compare", "--methods", "local"]):
        assert code_of(monkeypatch, *command, "--out", "r", "--rounds", "1", *SMALL) == 2
        assert "exists already" in capsys.readouterr().err
    assert os.listdir("r") == ["mine.txt"]


def test_out_is_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("f").write_text("mine")
    for command in (["run", "local"], ["compare", "--methods", "local"]):
        assert code_of(monkeypatch, *command, "--out", "f", "--rounds", "1", *SMALL) == 2
        said = capsys.readouterr().err
        assert "choose another --out" in said and "scool resume" not in said
    assert Path("f").read_text() == "mine"


def test_strict_stops_at_numbers_that_are_not_finite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "local", "--dataset", "synthetic", "--task", "regression", "--lr", "1e30"]
    words += ["--rounds", "2", "--clients", "3", "--groups", "1"]
    assert code_of(monkeypatch, *words, "--strict", "--out", "a") == 2
    assert "the run is strict" in capsys.readouterr().err
    assert code_of(monkeypatch, *words, "--out", "b", "--json") == 2
    assert "nobody is left to learn" in capsys.readouterr().err


# ---------------------------------------------------------------------- damaged records


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
        words = r"checkpoint-000003\.safetensors is (damaged|missing).* goes on from round 2"
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
    federation = poisoned(classification(), 1)
    with Console(1, quiet=True) as console:
        result = fit(federation, "linear", LocalOnly(), rounds=1, recorders=[console])
    assert "client 1 is left out from now on: non-finite inputs" in capsys.readouterr().err
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
    words = rf"metrics\.jsonl is damaged: {flaw}\. The run goes on from round 2"
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


# ---------------------------------------------------------------------- compare, data


def test_compare_resumes_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--methods", "local,scool-sbm", "--rounds", "2", "--out", "c", "--json"]
    words += ["--set", "scool-sbm.num_blocks=2", *SMALL]
    assert dispatch(words) == 0
    before = lines(capsys)
    assert {p.name for p in Path("c").iterdir()} == {
        "compare.json",
        "local",
        "scool-sbm",
        "accuracy.png",
        "graphs.png",
    }
    header = json.loads(Path("c/scool-sbm/run.json").read_text())
    assert header["config"]["algorithm"]["prior"]["num_blocks"] == 2
    metrics = Path("c/scool-sbm/metrics.jsonl").read_bytes()
    for file in sorted(Path("c/scool-sbm").rglob("*"), reverse=True):  # as if never started
        file.rmdir() if file.is_dir() else file.unlink()
    assert dispatch(["resume", "c", "--json", "--quiet"]) == 0
    after = lines(capsys)
    assert Path("c/scool-sbm/metrics.jsonl").read_bytes() == metrics
    assert [row["accuracy_mean"] for row in after] == [row["accuracy_mean"] for row in before]
    assert dispatch(["rerun", "c", "--json", "--quiet"]) == 0
    again = lines(capsys)
    assert [row["run_dir"] for row in again] == ["c-rerun-1/local", "c-rerun-1/scool-sbm"]
    assert Path("c-rerun-1/scool-sbm/metrics.jsonl").read_bytes() == metrics
    assert dispatch(["rerun", "c", "--out", "c-rerun-1", "--json", "--quiet"]) == 0
    assert lines(capsys) == again  # as with compare, the same one in that folder goes on
    assert dispatch(["rerun", "c", "--out", "new", "--quiet"]) == 0
    assert "scool-sbm" in capsys.readouterr().out and Path("new/graphs.png").exists()
    assert dispatch(words) == 0  # the same command goes on, too
    with pytest.raises(RunError, match="another comparison"):
        dispatch([*words, "--seed", "5"])
    whole = json.loads(Path("c/compare.json").read_text())
    flaws: list[tuple[Any, str]] = [
        ([], "it holds no JSON object"),
        ({k: v for k, v in whole.items() if k != "methods"}, "it lacks 'methods'"),
        (whole | {"seeds": "x"}, "seeds = 'x' is not a whole number"),
        (whole | {"figures": "no"}, "figures = 'no' is not True or False"),
        (whole | {"sgd": {"lrr": 1}}, "unknown option 'lrr'"),
    ]
    for damaged, flaw in flaws:
        if damaged:
            write_sealed(Path("c/compare.json"), damaged)
        else:
            Path("c/compare.json").write_text(json.dumps(damaged))
        with pytest.raises(RunError, match=f"compare.json is damaged: {flaw}"):
            dispatch(["resume", "c"])
    Path("c/compare.json").write_text(json.dumps(whole | {"seeds": 2}))
    with pytest.raises(RunError, match=r"compare\.json is damaged.* does not match its checksum"):
        dispatch(["resume", "c"])
    Path("c/compare.json").write_text(json.dumps(whole | {"format": "scool-compare-7"}))
    with pytest.raises(RunError, match=r"compare\.json is of another version.* Use that version"):
        dispatch(["resume", "c"])


def test_resume_draws_a_comparison_only_where_it_was_started_with_figures() -> None:
    words = ["compare", "--methods", "local", "--rounds", "1", "--out", "c", *SMALL]
    assert dispatch([*words, "--no-figures"]) == 0
    assert dispatch(["resume", "c", "--quiet"]) == 0
    assert not list(Path("c").glob("*.png"))
    assert dispatch(words) == 0  # the same comparison, whoever wants pictures of it
    drawn = sorted(Path("c").glob("*.png"))
    assert [path.name for path in drawn] == ["accuracy.png", "graphs.png"]
    for path in drawn:
        path.unlink()
    record = json.loads(Path("c/compare.json").read_text())
    assert record.pop("figures") is True  # the last wish
    record["settings"]["average"] = record["settings"].pop("model_average")
    write_sealed(Path("c/compare.json"), record)
    make_old(Path("c"), "compare.json")  # as older versions wrote it
    assert dispatch(["resume", "c", "--quiet"]) == 0
    assert sorted(Path("c").glob("*.png")) == drawn


def test_compare_says_what_a_recipe_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--methods", "local,scool-drawn", "--slow-momentum", "0", "--quiet", *SMALL]
    words += ["--rounds", "1", "--no-figures", "--set", "scool-drawn.model_average=0"]
    with pytest.warns(UserWarning, match="has no effect"):
        assert dispatch(words) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert said == [
        "note: scool-drawn has slow_momentum 0.5 by its recipe; "
        "--set scool-drawn.slow_momentum=0 for none"
    ]


def test_compare_over_seeds_and_from_toml(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.toml").write_text(
        'methods = "local,fedavg"\nrounds = 1\nseeds = 2\n[method.fedavg]\nparticipation = 0.5\n'
    )
    assert dispatch(["compare", "--config", "c.toml", "--out", "c", "--json", *SMALL]) == 0
    rows = lines(capsys)
    assert [row["method"] for row in rows] == ["local", "fedavg"]
    assert rows[0]["seeds"] == [0, 1] and len(rows[0]["run_dirs"]) == 2
    header = json.loads(Path("c/fedavg-1/run.json").read_text())
    assert header["config"]["algorithm"]["participation"] == 0.5
    for text in ("method = 3", "[method]\nfedavg = 3"):
        Path("c.toml").write_text(text)
        with pytest.raises(ConfigError, match=r"method\.NAME"):
            dispatch(["compare", "--config", "c.toml"])


def test_data_list_check_fetch(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert "digits" in out and "built in" in out and "missing" in out
    assert dispatch(["data", "check", "digits", "synthetic"]) == 0
    assert capsys.readouterr().out.count("built in") == 2
    assert dispatch(["data", "fetch", "digits"]) == 0
    with pytest.raises(ScoolError, match="elsewhere"):
        dispatch(["data", "check", "cifar10", "--data-dir", "elsewhere"])


@pytest.mark.parametrize("table", ["[data]", "[settings.data]"])
def test_data_in_a_table_of_the_file_decides_the_recipe(table: str, tmp_path: Path) -> None:
    """cifar10 in a table gets the paper's defaults, as it does at the top."""
    from scool.cli.run import configure

    path = tmp_path / "run.toml"
    path.write_text(f'{table}\ndataset = "cifar10"\npartition = "sbm"\n')
    command, _ = configure(["scool-sbm", "--config", str(path)])
    assert command.settings.rounds == 100 and command.settings.model.model == "cnn2"
    assert command.algorithm.sgd.lr == 0.01 and command.algorithm.fraction == 0.2  # type: ignore


def test_warnings_are_for_a_person(tmp_path: Path) -> None:
    words = ["run", "local", "--dataset", "synthetic", "--rounds", "1", "--lr-decay", "0.5"]
    command = [sys.executable, "-m", "scool", *words, "--out", str(tmp_path / "a"), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("warning: lr_decay = 0.5 has no effect")
    assert ".py" not in done.stderr
