"""Mistakes of a person end with code 2 and a sentence, and leave nothing behind."""

import os
import subprocess
from pathlib import Path

import pytest

from commands import SMALL, code_of
from scool import __version__
from scool.cli.main import dispatch
from scool.errors import ConfigError, ScoolError

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "did you mean 'run'"),
        (["run", "scool-sbn"], "did you mean 'scool-sbm'"),
        (["run", "--rounds", "3"], "the method comes first"),
        (["run", "local", "--dataset", "digit"], "did you mean 'digits'"),
        (["run", "local", "--dataset", "own.csv"], "--data own.csv --client COLUMN"),
        (["run", "local", "--model", "mpl"], "did you mean 'mlp'"),
        (["run", "dpsgd", "--topology", "rng"], "did you mean 'ring'"),
        (["run", "scool-dirac", "--topology", "rng"], "did you mean 'ring'"),
        (["run", "scool-sbm", "--fraction", "2"], "fraction"),
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
        (["compare", "--methods", "local,dpsgd", "--topology=ring"], "--set dpsgd.topology"),
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


def test_help_has_two_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    texts: list[str] = []
    for words in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stopped:
            dispatch(["run", "scool-sbm", words])
        assert stopped.value.code == 0
        texts.append(capsys.readouterr().out)
    short, long = texts
    assert "--rounds INT            Communication rounds. (default: 30)" in short
    assert "--num-blocks" in short and "more options: scool run scool-sbm --help-all" in short
    assert "--cross-ema" not in short and "--cross-ema" in long and "L_ij" in long
    assert "$" not in long.replace("$SCOOL_DATA", "") and "\\" not in long
    flags = {word.rstrip(",") for word in long.split()} | {"--help-all"}
    assert {word.rstrip(":") for word in short.split() if word.startswith("--")} <= flags


def test_tab_completes_methods_options_and_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["completion", "bash"]) == 0
    Path("scool.bash").write_text(capsys.readouterr().out)
    asked = {
        "com": "compare completion",
        "run fedp": "fedper fedprox",
        "run fedprox --mu": "--mu",
        "compare --methods local --seed": "--seed --seeds",
        "run local --dataset cifar": "cifar10 cifar100",
    }
    for words, answer in asked.items():
        tab = f"COMP_WORDS=(scool {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _scool"
        shell = f"source ./scool.bash; {tab}; echo ${{COMPREPLY[*]}}"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
        assert sorted(done.stdout.split()) == answer.split(), done.stderr
    with pytest.raises(ConfigError, match="unknown shell 'fish'"):
        dispatch(["completion", "fish"])


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


def test_data_list_check_fetch(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert "digits" in out and "built in" in out and "missing" in out
    assert dispatch(["data", "check", "digits", "synthetic"]) == 0
    assert capsys.readouterr().out.count("built in") == 2
    assert dispatch(["data", "fetch", "digits"]) == 0
    with pytest.raises(ScoolError, match="elsewhere"):
        dispatch(["data", "check", "cifar10", "--data-dir", "elsewhere"])
