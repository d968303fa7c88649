"""The measurements themselves, on sizes that take no time; their numbers are of the machine."""

import json
import math

import pytest
import torch

from scool.bench import engine as bench
from scool.bench import rounds
from scool.bench.checkpoints import bench_checkpoints
from scool.errors import ConfigError
from scool.models import mlp

CPU = torch.device("cpu")


def test_a_case_of_three_clients() -> None:
    case = bench.Case("mlp", lambda: mlp((4,), 10, (5,)), (4,), clients=3, steps=2)
    row = bench._bench_case(case, case.build(), CPU, repeats=1)
    json.dumps(row, allow_nan=False)
    assert (row["model"], row["device"], row["clients"]) == ("mlp", "cpu", 3)
    assert row["parameters"] == 4 * 5 + 5 + 5 * 10 + 10
    assert row["ratio"] == pytest.approx(row["loop_ms_per_step"] / row["engine_ms_per_step"])
    seconds = 2 * row["engine_ms_per_step"] / 1e3
    assert row["samples_per_second"] == pytest.approx(3 * 2 * 10 / seconds)
    assert row["flops_per_second"] == pytest.approx(3 * 2 * (20 + 50) * 60 / seconds)
    assert row["weight_bytes_per_second"] == pytest.approx(3 * 4 * 85 * 3 * 2 / seconds)


def test_rates_are_set_against_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    case = bench.Case("mlp", lambda: mlp((4,), 10, (5,)), (4,), clients=3, steps=2)
    monkeypatch.setattr(bench, "engine_cases", lambda device: [case])
    rates = {"machine_bytes_per_second": 1e9, "machine_flops_per_second": 1e10}
    monkeypatch.setattr(bench, "machine_rates", lambda device: rates)
    (row,) = bench.bench_engine("cpu", repeats=1)
    assert row["bytes_fraction"] == pytest.approx(row["weight_bytes_per_second"] / 1e9)
    assert row["flops_fraction"] == pytest.approx(row["flops_per_second"] / 1e10)


def test_the_loop_does_the_work_of_the_engine() -> None:
    """What the ratio compares gives the same models."""
    torch.manual_seed(0)
    module = mlp((4,), 10, (5,))
    engine = bench.LocalEngine(bench.random_federation((4,), 3), module, seed=0, device="cpu")
    theta = engine.replicate(bench.parameters_of(module))
    sgd = bench.LocalSGD(steps=3)
    found = engine.train(theta, sgd, 0)
    one_by_one, _ = bench._loop(engine, theta, sgd)()  # type: ignore[misc]
    for name, stacked in found.theta.items():
        torch.testing.assert_close(one_by_one[name], stacked)


def test_rates_of_the_machine() -> None:
    rates = bench.machine_rates(CPU)
    assert set(rates) == {"machine_bytes_per_second", "machine_flops_per_second"}
    assert all(math.isfinite(rate) and rate > 0 for rate in rates.values())


def test_growth_with_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 3.0, 9.0])
    monkeypatch.setattr(bench, "_alternate", lambda *_: (next(seconds), 0.0))
    row = bench.bench_scaling("cpu", most=400)
    assert row["clients"] == [100, 200, 400] and row["seconds"] == [1, 3, 9]
    assert row["exponent"] == pytest.approx(math.log2(3))


def test_medians_leave_out_the_warm_up() -> None:
    calls: list[str] = []
    first, second = bench._alternate(
        lambda: calls.append("a"), lambda: calls.append("b"), CPU, repeats=3
    )
    assert calls == ["a", "b"] * 4 and first >= 0 and second >= 0


def test_a_run_with_checkpoints_is_timed_against_one_without() -> None:
    (row,) = bench_checkpoints("cpu", rounds=10, repeats=2)
    assert row["checkpoints"] == 1 and row["checkpoint_bytes"] > 100_000
    assert [len(seconds) for seconds in row["all_seconds"].values()] == [2, 2]
    assert row["ratio"] == pytest.approx(row["seconds_with"] / row["seconds_without"])


def test_rounds_of_few_clients() -> None:
    """In a process of their own, as large numbers are."""
    row = rounds.bench_rounds((40, 60))
    json.dumps(row, allow_nan=False)
    assert row["clients"] == [40, 60] and len(row["sparse_seconds"]) == 2
    assert min(row["peak_memory"]) > 10**7 and math.isfinite(row["sparse_exponent"])
    with pytest.raises(ConfigError, match="34 or more"):
        rounds.bench_rounds((10,))
