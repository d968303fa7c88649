"""`scool run`, `resume` and `rerun`: options, what is printed, and where records go."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from commands import KEYS, SMALL, lines
from scool.algorithms import METHODS
from scool.cli.main import dispatch
from scool.data.catalogue import DataConfig
from scool.errors import ConfigError, RunError
from scool.run.config import default_run

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


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
    monkeypatch.setenv("WORLD_SIZE", "1")  # torchrun starts it again: it goes on
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
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


def parts(instance: Any) -> dict[str, Any]:
    """Every option by name, those that only Python can set left out."""
    found: dict[str, Any] = {}
    for f in dataclasses.fields(instance):
        value = getattr(instance, f.name)
        if dataclasses.is_dataclass(value):
            found |= parts(value)
        elif f.name not in ("matrix", "sha256", "count") and not isinstance(value, Tensor):
            found[f.name] = value
    return found


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_option_is_a_flag_and_a_toml_key(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from scool.cli.run import parse_run

    base = default_run(method, DataConfig())
    options = parts(base.algorithm) | parts(base.settings)
    with pytest.raises(SystemExit) as stopped:
        dispatch(["run", method, "--help-all"])
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
    command, _ = parse_run([method, "--config", "all.toml"])
    assert command.algorithm == base.algorithm and command.settings == base.settings


def test_flags_override_toml_overrides_the_recipe() -> None:
    from scool.cli.run import parse_run

    Path("a.toml").write_text('seed = 4\nnum-blocks = 3\nout = "x"\n[sgd]\nlr = 0.5\n')
    command, _ = parse_run(["scool-sbm", "--config", "a.toml", "--num-blocks", "7", "--json"])
    assert command.algorithm.prior.num_blocks == 7 and command.algorithm.sgd.lr == 0.5
    assert command.settings.seed == 4 and command.json and command.out == Path("x")
    assert command.algorithm.fraction == 0.225  # of the recipe
    Path("b.toml").write_text('dataset = "cifar10"\npartition = "sbm"\n')
    command, _ = parse_run(["scool-sbm-released", "--config", "b.toml"])
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


@pytest.mark.parametrize("table", ["[data]", "[settings.data]"])
def test_data_in_a_table_of_the_file_decides_the_recipe(table: str, tmp_path: Path) -> None:
    """cifar10 in a table gets the paper's defaults, as it does at the top."""
    from scool.cli.run import parse_run

    path = tmp_path / "run.toml"
    path.write_text(f'{table}\ndataset = "cifar10"\npartition = "sbm"\n')
    command, _ = parse_run(["scool-sbm", "--config", str(path)])
    assert command.settings.rounds == 100 and command.settings.model.model == "cnn2"
    assert command.algorithm.sgd.lr == 0.01 and command.algorithm.fraction == 0.2  # type: ignore


def test_warnings_are_for_a_person(tmp_path: Path) -> None:
    words = ["run", "local", "--dataset", "synthetic", "--rounds", "1", "--lr-decay", "0.5"]
    command = [sys.executable, "-m", "scool", *words, "--out", str(tmp_path / "a"), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.startswith("warning: lr_decay = 0.5 has no effect")
    assert ".py" not in done.stderr
