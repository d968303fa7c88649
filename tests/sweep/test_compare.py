"""A comparison is fair: same clients and batches, and costs beside accuracy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scool.algorithms import METHODS
from scool.data.catalogue import DataConfig, load
from scool.display.tables import comparison_table
from scool.errors import ConfigError, QuarantineError, RunError
from scool.learning.local_sgd import LocalSGD
from scool.models import ModelConfig
from scool.run.config import Settings
from scool.run.loop import carry_out
from scool.run.result import Result
from scool.sweep import runner
from scool.sweep.compare import run_comparison
from scool.sweep.comparison import Comparison, choose_methods
from scool.sweep.results import summarise
from scool.sweep.runner import Diverged

DATA = DataConfig(clients=6, groups=2, samples_per_client=10)
SETTINGS = Settings(data=DATA, model=ModelConfig("linear"), rounds=2, device="cpu")
SGD = LocalSGD(lr=0.1, epochs=2, batch_size=4)
WITH_VALIDATION = sorted(m for m, (_, a) in METHODS.items() if getattr(a, "validation", 0))


def comparison(*methods: str, **changes: Any) -> Comparison:
    return replace(Comparison(methods, SETTINGS, SGD), **changes)


def test_all_is_every_method_that_the_data_allow() -> None:
    deep = replace(SETTINGS, model=ModelConfig("mlp"))
    methods, notes = choose_methods("all", deep)
    assert methods == tuple(METHODS) and notes == []
    methods, notes = choose_methods("all", SETTINGS)
    assert set(METHODS) - set(methods) == {"fedper", "fedrep", "spdb", "dfedpgp"}
    assert notes[0].startswith("fedper is left out: personal = 'head' is the whole model")
    data = DataConfig(partition="dirichlet", clients=6)
    methods, notes = choose_methods("all", replace(deep, data=data))
    assert methods == tuple(m for m in METHODS if m != "truth")
    assert notes == ["truth is left out: it needs data whose true graph is known"]
    one = replace(DATA, samples_per_client=1)
    methods, notes = choose_methods("all", replace(deep, data=one))
    assert set(methods) == set(METHODS) - set(WITH_VALIDATION)
    assert len(notes) == len(WITH_VALIDATION) and all("1 training sample" in n for n in notes)
    assert choose_methods(" local , fedavg,", SETTINGS) == (("local", "fedavg"), [])


def test_methods_that_judge_by_validation_data_get_their_own_and_the_others_train_on_all(
    tmp_path: Path,
) -> None:
    assert WITH_VALIDATION
    deep = replace(SETTINGS, model=ModelConfig("mlp"))
    everyone = comparison("local", *WITH_VALIDATION, settings=deep)
    results = run_comparison(everyone, tmp_path / "c")
    whole = load(DATA, 0)
    for method, result in ((m, runs[0]) for m, runs in results.results.items()):
        assert isinstance(result, Result)
        set_aside = int(10 * METHODS[method][1].validation)
        assert (set_aside > 0) == (method in WITH_VALIDATION)
        assert result.federation.train.sizes.tolist() == [10 - set_aside] * 6
        assert result.federation.test.y.equal(whole.test.y)  # all are judged by the same samples


def test_costs_stand_beside_accuracy(tmp_path: Path) -> None:
    half = {"fedavg": {"participation": 0.5}}
    results = run_comparison(comparison("local", "fedavg", "ditto", options=half), tmp_path / "c")
    rows = {row["method"]: row for row in results.summary()}
    assert [rows[m]["epochs"] for m in ("local", "fedavg", "ditto")] == [4.0, 2.0, 8.0]
    assert rows["local"]["messages"] == 0 and rows["fedavg"]["messages"] == 2 * 6
    recorded = json.loads((tmp_path / "c/ditto/metrics.jsonl").read_text().splitlines()[0])
    assert recorded["epochs"] == 4.0
    header = json.loads((tmp_path / "c/ditto/run.json").read_text())
    assert header["result"]["epochs"] == 8.0


def test_means_over_seeds(tmp_path: Path) -> None:
    results = run_comparison(comparison("fedavg", seeds=2), tmp_path / "c")
    (row,) = results.summary()
    both = [results["fedavg"][seed].summary() for seed in (0, 1)]
    assert row["accuracy_mean"] == sum(s["accuracy_mean"] for s in both) / 2
    assert row["epochs"] == 4.0 and row["seeds"] == [0, 1] and row["diverged"] is None


@pytest.fixture
def fedavg_diverges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every run of fedavg ends in its second round; the methods that were begun."""
    begun: list[str] = []

    def run(federation: Any, model: Any, algorithm: Any, settings: Any, **options: Any) -> Any:
        begun.append(options["method"])
        if options["method"] != "fedavg":
            return carry_out(federation, model, algorithm, settings, **options)
        carry_out(federation, model, algorithm, replace(settings, rounds=1), **options)
        raise QuarantineError("all 6 clients are in quarantine")

    monkeypatch.setattr(runner, "carry_out", run)
    return begun


def test_a_method_that_diverges_does_not_stop_the_others(
    tmp_path: Path, fedavg_diverges: list[str]
) -> None:
    three = comparison("local", "fedavg", "dpsgd")
    results = run_comparison(three, tmp_path / "c")
    lost = results["fedavg"][0]
    assert isinstance(lost, Diverged) and isinstance(results["dpsgd"][0], Result)
    row, good = summarise([lost]), summarise([results["local"][0]])
    assert row["diverged"] == "all 6 clients are in quarantine" and row["accuracy_mean"] is None
    assert good["diverged"] is None and set(good) == set(row)
    json.dumps(row, allow_nan=False)
    header = json.loads((tmp_path / "c/fedavg/run.json").read_text())
    assert header["status"] == "diverged"
    fedavg_diverges.clear()
    again = run_comparison(three, tmp_path / "c")  # known, not run once more
    assert fedavg_diverges == ["local", "dpsgd"] and summarise([again["fedavg"][0]]) == row


def test_clients_that_a_method_stops_are_named_beside_its_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = run_comparison(comparison("local"), tmp_path / "c")["local"][0]
    assert isinstance(fine, Result)
    rows = [*fine.history[:-1], {**fine.history[-1], "diverged": 2.0}]
    row = summarise([replace(fine, history=rows)])
    assert row["diverged"] == "2 of 6 clients stopped" and row["accuracy_mean"] is not None
    (lost,) = [Diverged("fedavg", 0, "nobody is left", fine.federation, tmp_path)]
    comparison_table([row, summarise([lost]), summarise([fine])])
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line]
    mean = f"{row['accuracy_mean']:.2f}"
    assert [line[2].split()[0] for line in lines] == [mean, "diverged", mean]
    assert [line[2].split()[-1] == "diverged" for line in lines] == [True, True, False]
    assert [line[6].strip() for line in lines] == ["4", "-", "4"]


def test_a_mean_over_seeds_of_which_one_diverged_is_none(
    tmp_path: Path, fedavg_diverges: list[str]
) -> None:
    lost = run_comparison(comparison("fedavg"), tmp_path / "c")["fedavg"][0]
    fine = run_comparison(comparison("local"), tmp_path / "d")["local"][0]
    for runs in ([lost, fine], [fine, lost]):
        row = summarise(runs)
        assert row["accuracy_mean"] is None and row["bytes_sent"] is None
        assert row["diverged"] == "all 6 clients are in quarantine"


def test_strict_stops_at_the_first(tmp_path: Path, fedavg_diverges: list[str]) -> None:
    strict = comparison("fedavg", "local", settings=replace(SETTINGS, strict=True))
    with pytest.raises(QuarantineError):
        run_comparison(strict, tmp_path / "c")
    assert fedavg_diverges == ["fedavg"]


def test_what_the_data_do_not_allow_is_refused_before_anything_runs(tmp_path: Path) -> None:
    data = DataConfig(partition="dirichlet", clients=6)
    with pytest.raises(ConfigError, match=r"method 'truth' is not possible here.*true graph"):
        run_comparison(
            comparison("local", "truth", settings=replace(SETTINGS, data=data)), tmp_path / "c"
        )
    assert not (tmp_path / "c").exists()


def test_another_process_at_the_same_comparison_is_refused(tmp_path: Path) -> None:
    class Second:
        """Starts the comparison once more while its first run lasts."""

        def start(self, header: Any, first_round: int) -> None:
            with pytest.raises(RunError, match="another process is at the runs in"):
                run_comparison(comparison("local"), tmp_path / "c")

        def round(self, row: Any, info: Any) -> None: ...

        def end(self, result: Any) -> None: ...

    results = run_comparison(comparison("local"), tmp_path / "c", [Second()])
    assert isinstance(results["local"][0], Result)
    files = ["compare.csv", "compare.json", "local", "summary.csv", "summary.json"]
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == files
