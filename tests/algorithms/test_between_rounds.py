"""Slow momentum and averaged models around any method."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from scool.algorithms import IFCA, FedAvg, FedFomo, LocalOnly, SCooL
from scool.algorithms.between_rounds import Averaged, SlowMomentum, with_between
from scool.display.records import read_run
from scool.errors import ConfigError, RunError
from scool.health import broke_in
from scool.learning.local_sgd import LocalSGD
from scool.priors import SBM
from scool.recording.folder import RunFolder
from scool.run.identity import older_names
from scool.run.loop import fit
from toys import (
    assert_trees_close,
    assert_trees_equal,
    classification,
    start,
)

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
LOCAL = LocalOnly(sgd=SGD)
ROUNDS = 5


@pytest.mark.parametrize(("beta", "memory"), [(0.0, 0.5), (0.6, 0.0), (0.6, 0.5)])
def test_the_formulas(beta: float, memory: float) -> None:
    """Beside them the recurrences, written with the engine alone."""
    method = with_between(LOCAL, beta, memory)
    engine, theta0 = start(classification())
    state = method.init(engine, theta0)
    theta = engine.replicate(theta0)
    velocity = {n: torch.zeros_like(t) for n, t in theta.items()}
    average = theta
    for t in range(ROUNDS):
        state, _ = method.step(engine, state, t)
        trained = engine.train(theta, SGD, t).theta
        velocity = {n: beta * u + theta[n] - trained[n] for n, u in velocity.items()}
        theta = {n: x - velocity[n] for n, x in theta.items()}
        share = max(1 - memory, 1 / (t + 1)) if memory else 1.0
        average = {n: a + share * (theta[n] - a) for n, a in average.items()}
        assert_trees_close(state.theta, average, atol=1e-9)


def test_the_first_rounds_are_averaged_plainly_and_training_does_not_notice() -> None:
    models = [fit(classification(), "mlp", LOCAL, rounds=n, device="cpu").theta for n in (1, 2, 3)]
    averaged = fit(classification(), "mlp", LOCAL, rounds=3, device="cpu", model_average=0.99)
    mean = {n: sum(m[n] for m in models) / 3 for n in models[0]}
    assert_trees_close(averaged.theta, mean, atol=1e-6)


def test_nothing_asked_for_is_the_method_itself() -> None:
    assert with_between(LOCAL) is LOCAL
    for options in ({"slow_momentum": 1.0}, {"model_average": -0.1}):
        with pytest.raises(ConfigError, match=f"{next(iter(options))} = .*0 for none"):
            fit(classification(), "mlp", LOCAL, rounds=1, device="cpu", **options)


BOTH: dict[str, Any] = {"slow_momentum": 0.5, "model_average": 0.9}


@pytest.mark.parametrize("options", [{"slow_momentum": 0.5}, {"model_average": 0.9}, BOTH])
def test_a_stopped_run_goes_on_to_the_bit(options: dict[str, Any], tmp_path: Path) -> None:
    method = SCooL(prior=SBM(num_blocks=2), sgd=SGD, peers="drawn", sparsify_round=1)
    options = {"device": "cpu", **options}
    whole = fit(classification(), "mlp", method, rounds=5, **options)
    out = tmp_path / "run"
    fit(classification(), "mlp", method, rounds=3, out=out, **options)
    parts = fit(classification(), "mlp", method, rounds=5, out=out, resume=True, **options)
    assert_trees_equal(parts.theta, whole.theta)
    assert whole.history[-1]["scores"] == parts.history[-1]["scores"]


def test_a_method_around_a_method_is_one_like_any_other(tmp_path: Path) -> None:
    around = Averaged(SlowMomentum(FedFomo(sgd=SGD, validation=0.4), 0.5), 0.9)
    assert (around.validation, around.meets, around.trains_theta) == (0.4, "peers", False)
    assert around.around == BOTH and around.plain == FedFomo(sgd=SGD, validation=0.4)
    whole = fit(classification(), "mlp", around, rounds=3, device="cpu", out=tmp_path / "a")
    named = FedFomo(sgd=SGD, validation=0.4)
    same = fit(classification(), "mlp", named, rounds=3, device="cpu", out=tmp_path / "b", **BOTH)
    assert_trees_equal(whole.theta, same.theta)
    headers = [json.loads((tmp_path / n / "run.json").read_text()) for n in "ab"]
    assert headers[0]["identity"] == headers[1]["identity"]
    with pytest.raises(ConfigError, match="FedFomo starts no round from"):
        SlowMomentum(around, 0.5)


def test_a_checkpoint_of_both_in_one_wrapper_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions wrote it that had one state for both."""
    method = SCooL(prior=SBM(num_blocks=2), sgd=SGD)
    options: dict[str, Any] = {"device": "cpu", **BOTH}
    whole = fit(classification(), "mlp", method, rounds=4, **options)
    fit(classification(), "mlp", method, rounds=2, out=tmp_path, **options)
    found = RunFolder(tmp_path).load_checkpoint(2)
    names = {n: re.sub("^method/(?=method/|velocity/)", "", n) for n in found.tensors}
    old = found._replace(tensors={names[n]: t for n, t in found.tensors.items()})
    assert {n.split("/")[0] for n in old.tensors} == {"theta", "method", "velocity", "engine"}
    assert older_names(frozenset(names)) == {*names, *old.tensors}
    monkeypatch.setattr(RunFolder, "load_checkpoint", lambda *_: old)
    parts = fit(classification(), "mlp", method, rounds=4, out=tmp_path, resume=True, **options)
    assert_trees_equal(parts.theta, whole.theta)


def test_no_checkpoints_where_none_are_wanted(tmp_path: Path) -> None:
    fit(classification(), "mlp", LOCAL, rounds=3, device="cpu", out=tmp_path, checkpoint_every=0)
    assert not list(tmp_path.glob("checkpoint-*")) and (tmp_path / "metrics.jsonl").is_file()


def test_a_stop_saves_and_then_the_end_is_saved_too(tmp_path: Path) -> None:
    """Whoever has checkpoints has the last one: `export` must not show older models."""
    fit(classification(), "mlp", LOCAL, rounds=2, device="cpu", out=tmp_path, checkpoint_every=1)
    more: dict[str, Any] = {"out": tmp_path, "resume": True, "checkpoint_every": 0}
    fit(classification(), "mlp", LOCAL, rounds=4, device="cpu", **more)
    assert max(tmp_path.glob("checkpoint-*")).name == "checkpoint-000004.safetensors"


def test_a_run_is_not_continued_as_another(tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "out": tmp_path, "slow_momentum": 0.5}
    fit(classification(), "mlp", LOCAL, rounds=2, **options)
    with pytest.raises(RunError, match="another algorithm"):
        fit(classification(), "mlp", FedAvg(sgd=SGD), rounds=3, resume=True, **options)
    with pytest.raises(RunError, match="another between_rounds"):
        fit(classification(), "mlp", LOCAL, rounds=3, resume=True, device="cpu", out=tmp_path)


def test_who_has_no_models_of_ones_own_to_push_is_refused_and_the_broken_do_not_coast() -> None:
    with pytest.raises(ConfigError, match=r"slow_momentum = 0\.5 is not possible: IFCA starts"):
        SlowMomentum(IFCA(), slow_momentum=0.5)
    engine, theta0 = start(classification())
    method = SlowMomentum(LOCAL, slow_momentum=0.9)
    state = method.init(engine, theta0)
    for t in range(2):
        state, _ = method.step(engine, state, t)
    engine.health.quarantine({1: broke_in(1, 0)})
    before = {n: x[1].clone() for n, x in state.theta.items()}
    state, _ = method.step(engine, state, 2)
    assert all(torch.equal(x[1], before[n]) for n, x in state.theta.items())


def test_reports_find_the_blocks(tmp_path: Path) -> None:
    method = SCooL(prior=SBM(num_blocks=2), sgd=SGD)
    fit(classification(), "mlp", method, rounds=2, device="cpu", out=tmp_path, model_average=0.5)
    shares = read_run(tmp_path).memberships()
    assert shares is not None and shares.shape[1] == 2
    out = tmp_path / "both"
    fit(classification(), "mlp", method, rounds=2, device="cpu", out=out, **BOTH)
    assert read_run(out).memberships() is not None
