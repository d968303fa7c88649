"""Methods of one's own on the command line: `--plugin FILE`, and entry points."""

import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scool
from commands import code_of, lines
from scool.algorithms import METHODS
from scool.cli.main import dispatch
from scool.errors import ConfigError, RunError
from scool.run import plugins
from scool.run.plugins import load_installed, load_plugin, register_method

pytestmark = pytest.mark.usefixtures("in_an_empty_folder", "nothing_registered")

MINE = '''"""A method of one's own."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

import scool


class State(NamedTuple):
    theta: dict


@dataclass(frozen=True)
class Mean:
    """All clients average their models, in part."""

    sgd: scool.LocalSGD = field(default_factory=scool.LocalSGD)
    share: float = 1.0
    """How much of the common model a client takes."""

    def init(self, engine, theta0):
        return State(engine.replicate(theta0))

    def step(self, engine, state, round):
        half, loss = engine.train(state.theta, self.sgd, round)
        k = engine.num_clients
        w = (1 - self.share) * torch.eye(k, dtype=torch.float64) + self.share / k
        return State(engine.mix(w, half)), {"train_loss": loss, "graph": w}


METHODS = {"mean": Mean()}
'''
ONE = "--clients 4 --groups 2 --rounds 1 --model linear --device cpu --quiet --json".split()


@pytest.fixture
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before, sources = dict(METHODS), dict(plugins.SOURCES)
    plugins.SOURCES.clear()
    monkeypatch.setattr(plugins, "_loaded", {})
    load_installed.cache_clear()
    yield
    METHODS.clear()
    METHODS.update(before)
    plugins.SOURCES.clear()
    plugins.SOURCES.update(sources)
    load_installed.cache_clear()


def forget() -> None:
    """As in a new process."""
    for name in set(METHODS) - plugins.BUILT_IN:
        del METHODS[name]
    plugins.SOURCES.clear()
    plugins._loaded.clear()


@pytest.fixture
def mine() -> Path:
    path = Path("mine.py").absolute()
    path.write_text(MINE)
    return path


def test_a_method_of_a_file_runs_with_its_options_and_is_recorded(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--plugin", "mine.py", "--share", "0.5", "--out", "r", *ONE]
    assert dispatch(["run", "mean", *words]) == 0
    (row,) = lines(capsys)
    config = json.loads(Path("r/run.json").read_text())["config"]
    assert config["algorithm"]["share"] == 0.5
    assert config["plugin"]["file"] == str(mine) and len(config["plugin"]["sha256"]) == 64
    assert dispatch(["resume", "r", "--plugin", "mine.py", "--json", "--quiet"]) == 0
    assert lines(capsys) == [row]
    forget()
    metrics = Path("r/metrics.jsonl").read_bytes()
    assert dispatch(["rerun", "r", "--plugin=mine.py", "--out", "s", "--json", "--quiet"]) == 0
    assert Path("s/metrics.jsonl").read_bytes() == metrics
    assert dispatch(["report", "r", "--out", "page.html"]) == 0  # needs no plugin


def test_the_list_of_methods_has_it(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dispatch(["run", "--plugin", str(mine)])
    assert "mean                      All clients average their models, in part." in (
        capsys.readouterr().out
    )
    with pytest.raises(SystemExit):
        dispatch(["run", "--plugin", str(mine), "mean", "--help"])
    assert "How much of the common model a client takes." in capsys.readouterr().out


def test_compare_and_tune_have_it(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plugin", "mine.py", "--methods", "local,mean", *ONE]
    assert dispatch(["tune", *words, "--set", "share=0.1,0.9", "lr=0.1", "--out", "t"]) == 0
    chosen = {row["method"]: row["options"] for row in lines(capsys)}
    assert set(chosen["mean"]) == {"lr", "share"}
    words = ["compare", *words, "--no-figures", "--tuned", "t", "--out", "c"]
    assert dispatch(words) == 0
    before = lines(capsys)
    config = json.loads(Path("c/mean/run.json").read_text())["config"]
    assert config["algorithm"]["share"] == chosen["mean"]["share"]
    assert config["algorithm"]["sgd"]["lr"] == chosen["mean"]["lr"]
    assert json.loads(Path("c/compare.json").read_text())["plugins"]["mean"] == config["plugin"]
    assert dispatch(["resume", "c", "--plugin", "mine.py", "--json", "--quiet"]) == 0
    assert [row["accuracy_mean"] for row in lines(capsys)] == [r["accuracy_mean"] for r in before]
    assert dispatch(["verify", "c"]) == 0


def test_a_record_that_names_a_file_does_not_execute_it(mine: Path) -> None:
    """A run folder may come from a stranger."""
    for name, words in {"r": ["run", "mean"], "c": ["compare", "--methods", "mean"]}.items():
        figures = ["--no-figures"] if name == "c" else []
        assert dispatch([*words, "--plugin", "mine.py", "--out", name, *figures, *ONE]) == 0
    forget()
    mine.write_text("open('executed', 'w')\n" + MINE)
    for command in ("resume", "rerun"):
        for folder in ("r", "c"):
            message = f"{folder} was made with a method of a plugin, 'mean' of .*: name that file"
            with pytest.raises(RunError, match=message):
                dispatch([command, folder])
    assert not Path("executed").exists()


def test_a_plugin_that_has_changed_continues_nothing(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = ["--plugin", "mine.py"]
    assert dispatch(["run", "mean", *plugin, "--out", "r", *ONE]) == 0
    compare = ["compare", "--methods", "mean", "--no-figures", *plugin, "--out", "c", *ONE]
    assert dispatch(compare) == 0
    tune = ["tune", "--methods", "mean", "--lr", "0.1", *plugin, "--out", "t", *ONE]
    assert dispatch(tune) == 0
    forget()
    mine.write_text(MINE.replace("share: float = 1.0", "share: float = 0.9"))
    changed = "mine.py, which defines 'mean', has changed since . was made"
    for words in (["resume", "r", *plugin], ["resume", "c", *plugin], compare, tune):
        with pytest.raises(RunError, match=f"{changed} .SHA-256 .*: bring back the old file, or"):
            dispatch(words)
    with pytest.warns(UserWarning, match=changed):
        assert dispatch(["rerun", "r", *plugin, "--out", "again", "--quiet", "--json"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "defines no method: write METHODS = "),
        ("METHODS = [1]", r"METHODS = \[1\] is not possible: give a dictionary"),
        ("METHODS = {'mean': 3}", "give a method"),
        ("1 / 0", "cannot be executed: line 1: ZeroDivisionError"),
        ("def f(:\n", "line 1: SyntaxError"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "SystemExit"),
        (MINE.replace('"mean"', '"fedavg"'), "scool has a method of that name"),
        (MINE.replace('"mean"', '"my method"'), "lower-case letters, digits and hyphens"),
        (MINE.replace("@dataclass(frozen=True)\n", ""), "put @dataclass"),
        (MINE.replace("share: float = 1.0", "share: object = print"), "an option that cannot be"),
    ],
)
def test_a_file_that_is_no_plugin_is_named_with_its_fault(text: str, message: str) -> None:
    Path("bad.py").write_text(text)
    with pytest.raises(ConfigError, match=f"plugin = '.*bad.py'.*{message}"):
        dispatch(["run", "mean", "--plugin", "bad.py", *ONE])
    assert set(METHODS) == plugins.BUILT_IN


def test_other_mistakes(monkeypatch: pytest.MonkeyPatch, mine: Path) -> None:
    assert code_of(monkeypatch, "run", "mean", "--plugin", "none.py") == 2
    with pytest.raises(ConfigError, match=r"unknown method 'mean'.*--plugin FILE"):
        dispatch(["run", "mean", *ONE])
    Path("c.toml").write_text('plugin = ["mine.py"]\n')
    with pytest.raises(ConfigError, match="plugin in the configuration file is not possible"):
        dispatch(["compare", "--config", "c.toml"])


def test_the_decorator_and_the_function_register_too(tmp_path: Path) -> None:
    text = MINE.replace('METHODS = {"mean": Mean()}\n', 'scool.register_method("b", Mean(0.5))\n')
    text = text.replace("Mean(0.5)", "Mean(share=0.5), 'by hand'")
    text = text.replace("@dataclass(fr", '@scool.register_method("a")\n@dataclass(fr')
    Path("two.py").write_text(text)
    load_plugin("two.py")
    assert METHODS["a"][0] == "All clients average their models, in part."
    assert METHODS["b"][0] == "by hand" and METHODS["b"][1].share == 0.5
    register_method("b", scool.LocalOnly())  # from Python a later one takes its place
    assert METHODS["b"][1] == scool.LocalOnly() and "b" not in plugins.SOURCES


def test_methods_of_installed_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = SimpleNamespace(name="toolbox", version="1.2")

    def broken() -> Any:
        raise ImportError("half installed")

    found = [
        SimpleNamespace(name="theirs", load=lambda: scool.FedAvg, dist=package),
        SimpleNamespace(name="lost", load=broken, dist=package),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
    words = ["run", "theirs", "--participation", "0.5", "--out", "r", *ONE]
    with pytest.warns(UserWarning, match="'lost' of the installed package toolbox 1.2 cannot"):
        assert dispatch(words) == 0
    config = json.loads(Path("r/run.json").read_text())["config"]
    assert config["plugin"]["package"] == "toolbox 1.2"
    assert Path(config["plugin"]["file"]).name == "fedavg.py"
    capsys.readouterr()
    forget()
    with pytest.raises(RunError, match=r"install toolbox 1\.2"):
        dispatch(["resume", "r"])
