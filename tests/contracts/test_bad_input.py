"""Mistakes about methods, through the command line: exit code 2, one clear line, nothing left."""

import sys
from pathlib import Path

import numpy as np
import pytest

from scool.algorithms import METHODS
from scool.cli.main import main
from scool.run.options import option_names

SMALL = ["--clients", "6", "--groups", "2", "--rounds", "1", "--epochs", "1", "--device", "cpu"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def having(option: str) -> list[str]:
    return sorted(m for m, (_, a) in METHODS.items() if option in option_names(a))


def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    """What `scool ARGUMENTS` says when it refuses."""
    monkeypatch.setattr(sys, "argv", ["scool", *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    assert stopped.value.code == 2 and captured.out == ""
    assert not Path("runs").exists() and not Path("r").exists()
    (line,) = captured.err.splitlines()
    assert line.startswith("scool: ") and "Traceback" not in line
    return line


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    return refused(monkeypatch, capsys, "run", *words, *SMALL, "--quiet")


def test_the_options_are_there() -> None:
    assert {"fedavg", "ditto", "fedfomo"} <= set(having("participation"))
    assert {"fedper", "fedrep", "spdb", "scool-sbm"} <= set(having("personal"))
    assert {"fedfomo", "l2c", "meta-l2c"} <= set(having("validation"))


@pytest.mark.parametrize("share", ["0", "-0.1", "1.5"])
@pytest.mark.parametrize("method", having("participation"))
def test_nobody_takes_part(
    method: str, share: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = run(monkeypatch, capsys, method, "--participation", share)
    assert f"participation = {float(share)} is not possible: give a fraction in (0, 1]" in line


@pytest.mark.parametrize("method", having("personal"))
def test_a_head_that_the_model_lacks(
    method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = run(monkeypatch, capsys, method, "--personal", "hed")
    assert "'hed'" in line and "did you mean 'head'?" in line
    line = run(monkeypatch, capsys, method, "--personal", "head", "--model", "linear")
    assert "personal = 'head' is the whole model" in line and "`local`" in line


@pytest.mark.parametrize("share", ["0", "1", "-1"])
@pytest.mark.parametrize("method", having("validation"))
def test_nothing_to_judge_by_or_nothing_to_learn_from(
    method: str, share: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = run(monkeypatch, capsys, method, "--validation", share)
    assert f"validation = {float(share)} is not possible: give a fraction between 0 and 1" in line
    line = run(monkeypatch, capsys, method, "--samples-per-client", "1")
    assert "client 0 has 1 training sample" in line and "Give the client more samples" in line


@pytest.mark.parametrize("method", having("topology"))
def test_a_topology_that_there_is_not(
    method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = run(monkeypatch, capsys, method, "--topology", "rings")
    assert "unknown topology 'rings': did you mean 'ring'?" in line
    line = run(monkeypatch, capsys, method, "--degree", "0")
    assert "degree = 0 is not possible: give at least one neighbour" in line


def apart(k: int = 6) -> np.ndarray:
    """Pairs that never meet others."""
    return np.kron(np.eye(k // 2), np.full((2, 2), 0.5))


def shifted(k: int = 6) -> np.ndarray:
    """Everyone listens to the next one: rows sum to one, but nobody answers."""
    return 0.5 * np.eye(k) + 0.5 * np.roll(np.eye(k), 1, axis=1)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (apart(), "not connected: some clients never meet; add edges"),
        (shifted(), "not symmetric: use (w + w.T) / 2"),
        (np.full((5, 5), 0.2), "5 rows for 6 clients"),
        (np.full((6, 5), 0.2), "square"),
        (np.full((6, 6), 0.2), "sums to 1.2, not 1"),
        (np.full((6, 6), np.nan), "non-finite"),
        (2 * np.eye(6) - np.full((6, 6), 1 / 6), "negative"),
    ],
)
@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_a_matrix_that_nobody_can_gossip_with(
    matrix: np.ndarray,
    message: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if kind == "npy":
        np.save("w.npy", matrix)
    else:
        np.savetxt("w.csv", matrix, delimiter=",")
    assert message in run(monkeypatch, capsys, "dpsgd", "--matrix", f"w.{kind}")


def test_a_file_that_holds_no_matrix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "none.npy" in run(monkeypatch, capsys, "dpsgd", "--matrix", "none.npy")
    Path("w.csv").write_text("0.5,a\n0.5,0.5\n")
    assert "not a table of numbers" in run(monkeypatch, capsys, "dpsgd", "--matrix", "w.csv")
    assert ".npy, .csv or .txt" in run(monkeypatch, capsys, "dpsgd", "--matrix", "w.json")


def test_a_comparison_refuses_before_its_first_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", *SMALL, "--quiet", "--out", "r", "--methods"]
    line = refused(monkeypatch, capsys, *words, "local,fedfomo", "--samples-per-client", "1")
    assert "method 'fedfomo' is not possible here: client 0 has 1 training sample" in line
    line = refused(monkeypatch, capsys, *words, "local,ditto", "--set", "ditto.participation=0")
    assert "participation = 0" in line
