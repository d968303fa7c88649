"""`scool.compare` and `scool.tune`: one's own data, models and methods from Python."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import torch

import scool
from scool.algorithms import METHODS
from scool.cli.main import dispatch
from scool.contracts import Engine
from scool.errors import ConfigError, DataError, RunError
from scool.run.config import default_run, execute
from scool.run.loop import carry_out, fit
from scool.run.result import Result
from scool.sweep import runner
from scool.sweep.compare import read_comparison
from scool.types import Info, Params, Tree
from toys import classification, regression

SGD = scool.LocalSGD(lr=0.1, epochs=1, batch_size=4)
QUICK: dict[str, Any] = {"rounds": 2, "device": "cpu", "verbose": False}


class MeanState(NamedTuple):
    theta: Tree


@dataclass(frozen=True)
class Mean:
    """All clients average their models, with this weight."""

    share: float = 1.0
    sgd: scool.LocalSGD = field(default_factory=lambda: SGD)

    def init(self, engine: Engine, theta0: Params) -> MeanState:
        return MeanState(engine.replicate(theta0))

    def step(self, engine: Engine, state: MeanState, round: int) -> tuple[MeanState, Info]:
        half, loss = engine.train(state.theta, self.sgd, round)
        k = engine.num_clients
        eye = torch.eye(k, dtype=torch.float64)
        w = (1 - self.share) * eye + self.share / k
        return MeanState(engine.mix(w, half)), {"train_loss": loss, "graph": w}


def toy(seed: int = 0) -> scool.Federation:
    return classification(seed=seed, sizes=(12, 8, 10, 9))


def test_own_methods_and_names_side_by_side() -> None:
    methods = ["local", Mean(), {"half": Mean(0.5)}, scool.SCooL(prior=scool.SBM(), sgd=SGD)]
    found = scool.compare(toy, "linear", methods, seeds=2, sgd=SGD, **QUICK)
    assert found.methods == ["local", "Mean", "half", "SCooL-SBM"] and found.seeds == [0, 1]
    for seed in (0, 1):
        mine, alone = found["half"][seed], found.results["local"][seed]
        assert isinstance(mine, Result) and isinstance(alone, Result)
        again = fit(toy(seed), "linear", Mean(0.5), rounds=2, seed=seed, device="cpu")
        assert torch.equal(mine.score, again.score)  # the run that `fit` makes, and no other
        again = fit(toy(seed), "linear", scool.LocalOnly(sgd=SGD), rounds=2, seed=seed)
        assert torch.equal(alone.score, again.score)
    table = found.table()
    assert list(table.index) == found.methods
    both = [float(found["half"][seed].accuracy.mean()) for seed in (0, 1)]  # type: ignore[union-attr]
    assert table.loc["half", "accuracy_mean"] == pytest.approx(sum(both) / 2)
    assert "4 clients, mean of 2 seeds" in repr(found) and f"{sum(both) / 2:.2f}" in repr(found)


def test_names_have_the_defaults_of_the_command_line() -> None:
    config = scool.DataConfig(clients=6, groups=2)
    found = scool.compare(scool.load(config), "mlp", ["scool-drawn"], **QUICK)
    theirs = default_run("scool-drawn", config)
    expected = execute(replace(theirs, settings=replace(theirs.settings, rounds=2)))
    mine = found["scool-drawn"][0]
    assert isinstance(mine, Result) and torch.equal(mine.score, expected.score)


def test_a_list_of_seeds_and_one_federation_for_all() -> None:
    found = scool.compare(toy(), "linear", Mean(), seeds=[5, 3], **QUICK)
    assert found.seeds == [5, 3] and [found["Mean"][s].seed for s in (5, 3)] == [5, 3]
    one, other = (found["Mean"][s].federation for s in (5, 3))
    assert one is other


def test_all_are_the_methods_that_the_data_allow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in set(METHODS) - {"local", "truth", "l2c"}:
        monkeypatch.delitem(METHODS, name)
    options: dict[str, Any] = {"rounds": 1, "device": "cpu", "sgd": SGD}
    assert scool.compare(toy(), "linear", "all", **options).methods == ["local", "l2c", "truth"]
    assert "note" not in capsys.readouterr().err
    tiny = classification(sizes=(1, 4, 4))
    assert scool.compare(tiny, "linear", "all", **options).methods == ["local", "truth"]
    assert "note: l2c is left out: client 0 has 1 training sample" in capsys.readouterr().err


def test_records_go_on_and_are_read_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c"
    begun: list[str] = []

    def stopping(*words: Any, **options: Any) -> Any:
        if len(begun) == 2:
            raise KeyboardInterrupt
        begun.append(options["method"])
        return carry_out(*words, **options)

    monkeypatch.setattr(runner, "carry_out", stopping)
    methods = {"local": "local", "b": Mean(), "a": Mean(0.5)}
    with pytest.raises(RunError, match="stopped at a: 2 of 3 runs are finished; the same call"):
        scool.compare(toy(), "linear", methods, out=out, **QUICK)
    monkeypatch.setattr(runner, "carry_out", carry_out)
    before = (out / "b/metrics.jsonl").read_bytes()
    found = scool.compare(toy(), "linear", methods, out=out, **QUICK)
    whole = scool.compare(toy(), "linear", methods, **QUICK)
    for name in methods:
        assert torch.equal(found[name][0].score, whole[name][0].score)  # type: ignore[union-attr]
    assert (out / "b/metrics.jsonl").read_bytes() == before
    for other in ({"local": "local", "b": Mean(0.3), "a": Mean(0.5)}, {"local": "local"}):
        with pytest.raises(RunError, match="holds another comparison, with other"):
            scool.compare(toy(), "linear", other, out=out, **QUICK)
    with pytest.raises(RunError, match="with other data"):
        scool.compare(toy(1), "linear", methods, out=out, **QUICK)
    with pytest.raises(RunError, match=r"made from Python: continue it .*scool\.compare"):
        read_comparison(out)
    assert dispatch(["ls", str(out), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["run"] for row in rows] == ["local", "b", "a"]  # as the comparison lists them
    assert dispatch(["report", str(out), "--out", str(tmp_path / "page.html")]) == 0
    assert dispatch(["verify", str(out)]) == 0


def test_progress_is_said_unless_it_is_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    scool.compare(toy(), "linear", {"mine": Mean(), "local": "local"}, rounds=1, device="cpu")
    said = capsys.readouterr().err
    assert "mine  round 1/1" in said
    assert (
        "note: local steps of local are not those of mine (lr 0.2 and 0.1, epochs 5 and 1, " in said
    )
    scool.compare(toy(), "linear", {"mine": Mean(), "local": "local"}, **QUICK)
    assert capsys.readouterr() == ("", "")


def test_a_search_tunes_own_methods_and_its_choice_is_compared(tmp_path: Path) -> None:
    grid = {"share": [0.0, 0.5, 1.0], "lr": [0.001, 0.3], "epochs": 2}
    options: dict[str, Any] = {"sgd": SGD, **QUICK}
    found = scool.tune(toy, "linear", [Mean(), "local"], grid, out=tmp_path / "t", **options)
    assert [row["runs"] for row in found.chosen] == [6, 6]
    assert found.chosen[1]["skipped"] == ["share"]
    best = found.options["Mean"]
    assert best is not None and best["epochs"] == 2 and best["lr"] == 0.3
    assert found.methods["Mean"] == Mean(
        best["share"], scool.LocalSGD(lr=0.3, epochs=2, batch_size=4)
    )
    table = found.table()
    assert len(table) == 12 and set(table[table["chosen"]]["lr"]) == {0.3}
    scores = table.loc["Mean"]
    assert float(scores[scores["chosen"]]["score"].iloc[0]) == scores["score"].max()
    before = (tmp_path / "t/tune.jsonl").read_bytes()
    again = scool.tune(toy, "linear", [Mean(), "local"], grid, out=tmp_path / "t", **options)
    assert again.options == found.options
    assert (tmp_path / "t/tune.jsonl").read_bytes() == before
    for methods, clients in (([Mean(0.2), "local"], toy), ([Mean(), "local"], lambda s: toy(9))):
        with pytest.raises(RunError, match="another search"):
            scool.tune(clients, "linear", methods, grid, out=tmp_path / "t", **options)
    compared = scool.compare(toy, "linear", found.methods, **QUICK)
    assert compared.methods == ["Mean", "local"]


def test_regression_is_scored_by_r2(tmp_path: Path) -> None:
    federation = regression(sizes=(12, 8, 10, 9))
    found = scool.compare(federation, "linear", Mean(), **QUICK)
    assert found.to_csv(tmp_path / "c.csv").is_file()
    assert "r2_mean" in pd.read_csv(tmp_path / "c.csv").columns and "R2" in repr(found)
    searched = scool.tune(federation, "linear", Mean(), {"lr": [0.01]}, **QUICK)
    assert "R2" in repr(searched)
    assert len(pd.read_csv(searched.to_csv(tmp_path / "t.csv"))) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"methods": "locl"}, "did you mean 'local'"),
        ({"methods": []}, "name at least one"),
        ({"methods": [Mean(), Mean(0.5)]}, "two methods are called 'Mean': give names"),
        ({"methods": {"../up": Mean()}}, r"methods = '../up' is not possible"),
        ({"methods": 3}, "give a method"),
        ({"methods": [Mean]}, "give a method"),
        ({"seeds": 0}, "seeds = 0"),
        ({"seeds": [1, 1]}, "different whole numbers"),
        ({"seeds": "3"}, "seeds = '3'"),
        ({"federation": 3}, "federation = 3 is not possible: give one"),
        ({"federation": lambda seed: [seed]}, r"federation = \[0\] is not possible"),
        ({"round": 3}, "did you mean 'rounds'"),
        ({"methods": "truth", "federation": "no truth"}, "true graph"),
    ],
)
def test_mistakes_are_sentences(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    plain = {"federation": toy(), "model": "linear", "methods": "local", "out": tmp_path / "c"}
    if words.get("federation") == "no truth":
        clients = [(torch.randn(6, 2), torch.arange(6) % 2) for _ in range(3)]
        words = {**words, "federation": scool.from_arrays(clients, test_fraction=0.5)}
    with pytest.raises(ConfigError, match=message):
        scool.compare(**(plain | QUICK | words))  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


def test_mistakes_of_a_search() -> None:
    with pytest.raises(ConfigError, match=r"'shar'.*did you mean 'share'"):
        scool.tune(toy(), "linear", Mean(), {"shar": [1]}, **QUICK)
    with pytest.raises(DataError, match="client 0 has 1 training sample"):
        scool.tune(classification(sizes=(1, 4)), "linear", Mean(), {"lr": [1.0]}, **QUICK)
