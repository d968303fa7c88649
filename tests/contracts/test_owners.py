"""Owners that come and go, for every method of the recipes: who is absent takes part in nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from scool.algorithms import METHODS
from scool.algorithms.between_rounds import Averaged, SlowMomentum
from scool.contracts import Method
from scool.data.catalogue import DataConfig
from scool.health import Attendance
from scool.models import ModelConfig
from scool.run.config import default_run
from scool.run.loop import fit
from scool.run.options import with_options
from scool.run.prepare import prepare_data
from toys import assert_trees_equal, classification, is_finite, start

SMALL = ModelConfig("mlp", hidden=(6,))
FEDERATION = classification(sizes=(5, 3, 8, 6, 7, 4))
COMMON = {"fedavg", "fedbn", "fedprox", "scaffold", "ifca", "fedper", "fedrep", "scool"}
"""Their clients are scored with a model, or a part of one, that all have in common."""


def method(name: str) -> Method[Any]:
    algorithm = default_run(name, DataConfig()).algorithm
    algorithm = with_options(algorithm, {"lr": 0.05, "epochs": 1, "batch_size": 4}, "test")
    if name.startswith("scool-"):
        algorithm = with_options(algorithm, {"sparsify_round": 1, "fraction": 0.4}, "test")
    return algorithm


def around(name: str) -> Method[Any]:
    return Averaged(SlowMomentum(method(name), 0.5), 0.5)


CASES = [pytest.param(name, method, id=name) for name in METHODS]
CASES += [pytest.param(name, around, id=f"around-{name}") for name in ("dpsgd", "ditto")]


@pytest.mark.parametrize(("name", "make"), CASES)
def test_who_is_absent_keeps_its_model(name: str, make: Callable[[str], Method[Any]]) -> None:
    algorithm = make(name)
    federation = prepare_data(FEDERATION, algorithm, seed=3)
    attendance = Attendance(6, seed=3, participation=0.5)
    engine, theta0 = start(federation, attendance=attendance)
    state = algorithm.init(engine, theta0)
    for t in range(4):
        before = {n: x.clone() for n, x in state.theta.items()}
        engine.begin_round(t)
        state, info = algorithm.step(engine, state, t)
        absent = engine.health.absent
        assert int(absent.sum()) == 3
        assert is_finite(state.theta)
        assert info["train_loss"].isnan()[absent].all()
        assert not info["train_loss"].isnan()[~absent].any()
        stays = {n: x[absent] for n, x in state.theta.items()}
        was = {n: x[absent] for n, x in before.items()}
        changed = {
            n for n, x in state.theta.items() if not torch.equal(x[~absent], before[n][~absent])
        }
        assert changed
        if name not in COMMON:
            assert_trees_equal(stays, was)
        elif name == "scool":
            personal = {n for n in stays if n.startswith(("members.0", "members.2"))}
            assert_trees_equal(*({n: tree[n] for n in personal} for tree in (stays, was)))
        elif name in ("fedper", "fedrep"):  # the head stays at home
            assert any(torch.equal(x, was[n]) for n, x in stays.items())


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "fedprox", "scaffold", "ifca"])
def test_a_server_keeps_the_common_model_for_who_is_absent(name: str) -> None:
    algorithm = method(name)
    engine, theta0 = start(FEDERATION, attendance=Attendance(6, seed=3, participation=0.5))
    state = algorithm.init(engine, theta0)
    for t in range(3):
        engine.begin_round(t)
        state, info = algorithm.step(engine, state, t)
        for stacked in state.theta.values():
            groups = info["blocks"] if name == "ifca" else torch.zeros(6, dtype=torch.int64)
            for group in groups.unique():
                same = stacked[groups == group]
                # A matrix product may round its rows differently, depending on the CPU.
                torch.testing.assert_close(same, same[:1].expand_as(same), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["fedavg", "dpsgd", "scool-sbm"])
def test_a_resumed_run_has_the_same_owners(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "device": "cpu",
        "participation": 0.5,
        "joins": {5: 2},
        "stragglers": 0.5,
        "client_lr": {0: 0.1, 1: 0.01},
        "checkpoint_every": 2,
    }
    whole = fit(FEDERATION, SMALL, method(name), rounds=4, out=tmp_path / "a", **options)
    fit(FEDERATION, SMALL, method(name), rounds=3, out=tmp_path / "b", **options)
    again = fit(
        FEDERATION, SMALL, method(name), rounds=4, out=tmp_path / "b", resume=True, **options
    )
    assert_trees_equal(again.theta, whole.theta)
    lines = [(tmp_path / run / "metrics.jsonl").read_bytes() for run in "ab"]
    assert lines[0] == lines[1]
    if name != "fedavg":  # its server asks for a share of the clients
        assert all(5 in row["absent"] for row in whole.history[:2])
