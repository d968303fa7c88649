"""Metrics against scikit-learn, on every engine, and where they are not defined."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

import scool
from engine.sharded_world import sharded
from scool.display.tables import comparison_table
from scool.engine.local import LocalEngine
from scool.errors import ConfigError
from scool.evaluation import metrics as module
from scool.evaluation.metrics import METRICS, Metric, checked_names
from scool.evaluation.scores import chosen_metrics, evaluate, judge
from scool.models import parameters_of
from toys import classification, regression, scattered, softmax_regression, start


def answers(classes: int, samples: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Coarse outputs, so that many are equal."""
    rng = torch.Generator().manual_seed(seed)
    outputs = torch.randint(-2, 3, (samples, classes), generator=rng).double()
    return outputs, torch.randint(classes, (samples,), generator=rng)


@pytest.mark.parametrize("seed", range(3))
def test_two_classes_as_scikit_learn_has_them(seed: int) -> None:
    outputs, y = answers(2, seed=seed)
    p, said = outputs.softmax(dim=1)[:, 1].numpy(), outputs.argmax(dim=1).numpy()
    expected = {
        "accuracy": 100 * sk.accuracy_score(y, said),
        "balanced_accuracy": 100 * sk.balanced_accuracy_score(y, said),
        "auc": sk.roc_auc_score(y, p),
        "f1": sk.f1_score(y, said),
        "log_loss": sk.log_loss(y, p),
    }
    for name, value in expected.items():
        assert METRICS[name](outputs, y) == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("seed", range(3))
def test_many_classes_as_scikit_learn_has_them(seed: int) -> None:
    outputs, y = answers(4, seed=seed)
    p, said = outputs.softmax(dim=1).numpy(), outputs.argmax(dim=1).numpy()
    expected = {
        "balanced_accuracy": 100 * sk.balanced_accuracy_score(y, said),
        "auc": sk.roc_auc_score(y, p, multi_class="ovr", average="macro"),
        "f1": sk.f1_score(y, said, average="macro"),
        "log_loss": sk.log_loss(y, p),
    }
    for name, value in expected.items():
        assert METRICS[name](outputs, y) == pytest.approx(value, abs=1e-12), name


def test_classes_that_a_client_lacks_do_not_count() -> None:
    """Two classes of five, the others masked: as if there were two."""
    outputs, y = answers(2)
    wide = torch.full((len(y), 5), -math.inf).double()
    wide[:, [1, 4]] = outputs
    y_wide = torch.where(y == 0, 1, 4)
    for name in ("accuracy", "balanced_accuracy", "auc", "log_loss"):
        assert METRICS[name](wide, y_wide) == pytest.approx(METRICS[name](outputs, y), abs=1e-12)


def test_regression_as_scikit_learn_has_it() -> None:
    rng = torch.Generator().manual_seed(0)
    said, y = torch.randn(2, 30, 1, generator=rng).double()
    assert METRICS["rmse"](said, y) == pytest.approx(sk.root_mean_squared_error(y, said))
    assert METRICS["mae"](said, y) == pytest.approx(sk.mean_absolute_error(y, said))
    assert METRICS["r2"](said, y) == pytest.approx(sk.r2_score(y, said))


def test_what_is_not_defined_is_nan() -> None:
    outputs, _ = answers(2)
    ones, none = torch.ones(40, dtype=torch.int64), torch.zeros(40, dtype=torch.int64)
    assert math.isnan(METRICS["auc"](outputs, ones)) and math.isnan(METRICS["auc"](outputs, none))
    never = torch.tensor([[1.0, 0.0]]).double().expand(40, 2)  # class 0 is always said
    assert math.isnan(METRICS["f1"](never, none)) and METRICS["f1"](never, ones) == 0
    assert math.isnan(METRICS["r2"](outputs, ones[:, None].double()))
    assert math.isnan(METRICS["accuracy"](outputs * torch.nan, ones))


def own_answers(federation: scool.Federation, theta: dict[str, Tensor], i: int) -> Tensor:
    """Outputs of client i on its test data, one matrix product."""
    x = federation.test.x[federation.test.index[i][federation.test.mask[i]]].double()
    return x @ theta["0.weight"][i].T + theta["0.bias"][i]


@pytest.mark.parametrize("build", [start, partial(start, client_chunk=2)], ids=["whole", "parts"])
def test_every_client_is_judged_by_its_own_samples(build: Any) -> None:
    federation = classification(tests=11)
    engine, theta0 = build(federation, softmax_regression())
    engine._capacity.rows = 7  # the samples of a client come in several parts
    theta = scattered(engine, theta0)
    wanted = chosen_metrics(("auc", "f1"), "classification")
    found = evaluate(engine, theta, federation, metrics=wanted).metrics
    assert set(found) == {"auc", "f1"}
    for i in range(4):
        outputs, y = own_answers(federation, theta, i), federation.test.y[i]
        p = outputs.softmax(dim=1).numpy()
        assert float(found["auc"][i]) == pytest.approx(sk.roc_auc_score(y, p, multi_class="ovr"))
        assert float(found["f1"][i]) == pytest.approx(
            sk.f1_score(y, outputs.argmax(dim=1), average="macro")
        )


def test_clients_without_test_samples_have_no_metric() -> None:
    federation = classification()
    mask = federation.test.mask.clone()
    mask[1] = False
    federation = replace(federation, test=federation.test._replace(mask=mask))
    engine, theta0 = start(federation)
    found = judge(engine, engine.replicate(theta0), federation, "test", [METRICS["auc"]])
    assert found["auc"].isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("build", [LocalEngine, sharded])
def test_regression_always_has_rmse(build: Any) -> None:
    federation, module = regression(), softmax_regression(outputs=2)
    engine = build(federation, module, seed=3, device="cpu")
    theta = scattered(engine, parameters_of(module))
    found = evaluate(engine, theta, federation, metrics=chosen_metrics((), "regression"))
    for i in range(4):
        missed = own_answers(federation, theta, i) - federation.test.y[i].double()
        value = float(missed.square().mean().sqrt())
        assert float(found.metrics["rmse"][i]) == pytest.approx(value)


def samples(outputs: Tensor, targets: Tensor) -> float:
    return float(len(targets) + outputs.shape[1])


def broken(outputs: Tensor, targets: Tensor) -> Tensor:
    return targets


def test_a_function_is_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "METRICS", dict(METRICS))
    federation = classification(tests=9)
    result = scool.fit(
        federation, "linear", scool.LocalOnly(), rounds=2, metrics=("auc", samples, "auc")
    )
    row = result.history[-1]
    assert row["metrics"].keys() == {"auc", "samples"} and row["metrics"]["samples"] == [12.0] * 4
    assert result.summary()["samples_mean"] == 12 and result.summary()["metrics"] == [
        *row["metrics"]
    ]
    with pytest.raises(ConfigError, match=r"metric 'broken' failed"):
        scool.fit(federation, "linear", scool.LocalOnly(), rounds=1, metrics=broken)


def test_metrics_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "METRICS", dict(METRICS))
    assert checked_names("auc") == ("auc",) == checked_names(["auc", "auc"])
    mine = Metric("mine", samples, "Mine", digits=1)
    assert checked_names(mine) == ("mine",) and module.METRICS["mine"] is mine
    wrong: list[Any] = ["auk", 3, [None], lambda o, t: 0, Metric("auc", samples)]
    for value in wrong:
        with pytest.raises(ConfigError, match="metric"):
            checked_names(value)
    with pytest.raises(ConfigError, match="rmse"):
        chosen_metrics(["rmse"], "classification")


def test_the_number_of_clients_without_a_metric_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The second client has one class only."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 20, 4, generator=rng), torch.arange(20) % 2
    clients = [(x[0], y, x[1], y), (x[0], 0 * y, x[1], 0 * y), (x[0], y, x[1], y)]
    federation = scool.from_arrays(clients, num_classes=2)
    result = scool.fit(federation, "linear", scool.LocalOnly(), rounds=1, metrics="auc")
    assert result.summary()["auc_undefined"] == 1
    comparison_table([result.summary()])
    assert "clients without AUC" in " ".join(capsys.readouterr().out.split())


def test_a_regression_without_any_score_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    """All targets are the same: R2 is not defined, and nothing here is an accuracy."""
    clients = [(torch.rand(20, 3).numpy(), [1.5] * 20) for _ in range(2)]
    with pytest.warns(UserWarning, match="R.2 is not defined"):
        federation = scool.from_arrays(clients, task="regression")
    result = scool.fit(federation, "linear", scool.LocalOnly(), rounds=1)
    comparison_table([result.summary()])
    said = capsys.readouterr().out
    assert "R2" in said and "accuracy" not in said
