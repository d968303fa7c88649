"""Clients whose numbers are not finite harm nobody else."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.sharded_world import sharded
from scool.engine.local import LocalEngine
from scool.engine.machine import resolve_device
from scool.errors import ConfigError, QuarantineError
from scool.health import Reason
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.models import parameters_of
from toys import (
    SIZES,
    assert_trees_equal,
    classification,
    is_finite,
    own_data,
    poisoned,
    regression,
    row_stochastic,
    scattered,
    softmax_regression,
    start,
)

ALL = CrossDraw(cross_samples=0)
K = len(SIZES)
EVERY_PAIR = torch.ones(K, K, dtype=torch.bool)


def test_a_client_with_nan_inputs_is_left_out_and_the_others_do_not_notice() -> None:
    clean, theta0 = start(classification())
    dirty, _ = start(poisoned(classification(), 1))
    assert dirty.active.tolist() == [True, False, True, True]
    assert dirty.health.words == {1: "inputs or targets"}
    theta = scattered(clean, theta0)
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=2)
    expected, found = clean.train(theta, sgd, 0), dirty.train(theta, sgd, 0)
    others = [0, 2, 3]
    for name in theta:
        assert torch.equal(found.theta[name][others], expected.theta[name][others])
        assert torch.equal(found.theta[name][1], theta[name][1])
    assert found.loss.isnan().tolist() == [False, True, False, False]
    for draw in (ALL, CrossDraw(2), CrossDraw(2, "pair")):
        losses = dirty.cross_loss(theta, EVERY_PAIR, draw, 0)
        assert bool(losses[1].isnan().all()) and bool(losses[:, 1].isnan().all())
        assert bool(losses[others][:, others].isfinite().all())


def test_the_share_of_a_quarantined_client_goes_to_the_rest_of_the_row() -> None:
    engine, theta0 = start(poisoned(classification(), 1))
    theta = scattered(engine, theta0)
    w = torch.full((4, 4), 0.25).double()
    mixed = engine.mix(w, theta)
    for name, t in theta.items():
        expected = (t[0] + t[2] + t[3]) / 3
        for i in (0, 2, 3):
            torch.testing.assert_close(mixed[name][i], expected)
        assert torch.equal(mixed[name][1], t[1])  # it keeps to itself
    assert engine.ledger.messages == {"mix": 6}


def test_regression_targets_are_checked_too() -> None:
    federation = regression()
    y = federation.train.y.clone()
    y[2, 1, 0] = torch.inf
    broken = replace(federation, train=federation.train._replace(y=y))
    assert start(broken)[0].health.words == {2: "inputs or targets"}


def test_nan_in_padding_harms_nobody() -> None:
    federation = regression()
    y = federation.train.y.clone()
    y[~federation.train.mask] = torch.nan
    engine, _ = start(replace(federation, train=federation.train._replace(y=y)))
    assert engine.health.words == {}


def test_an_exploding_learning_rate_puts_clients_into_quarantine() -> None:
    engine, theta0 = start(regression())
    theta = engine.replicate(theta0)
    half, loss = engine.train(theta, LocalSGD(lr=1e200, epochs=3, batch_size=2), 5)
    assert not engine.active.any() and bool(loss.isnan().all())
    found = set(engine.health.words.values())
    assert found == {"loss or model in round 5, step 1"}  # step 0 was computed with theta0
    assert_trees_equal(half, theta)  # they keep the models they came with
    again, loss = engine.train(theta, LocalSGD(), 6)  # nobody is left; nothing breaks
    assert_trees_equal(again, theta) and bool(loss.isnan().all())
    assert is_finite(engine.mix(row_stochastic(K), half))
    assert bool(engine.cross_loss(half, EVERY_PAIR, ALL, 6).isnan().all())


def test_strict_stops_instead() -> None:
    with pytest.raises(QuarantineError, match=r"client 1 has non-finite inputs"):
        start(poisoned(classification(), 1), strict=True)
    engine, theta0 = start(regression(), strict=True)
    with pytest.raises(QuarantineError, match="lower --lr"):
        engine.train(engine.replicate(theta0), LocalSGD(lr=1e200, batch_size=2), 0)


def test_cross_gradients_of_the_others_survive_nan_inputs() -> None:
    clean, theta0 = start(classification())
    dirty, _ = start(poisoned(classification(), 1))
    theta = scattered(clean, theta0)
    w = row_stochastic(K)
    w[[0, 2, 3], 1] = 0  # the clean federation does not use client 1 either
    sgd = LocalSGD(steps=1, batch_size=20)
    expected, found = (e.cross_gradient(theta, w, sgd, 0) for e in (clean, dirty))
    for name in theta:
        for i in (0, 2, 3):
            torch.testing.assert_close(found[name][i], expected[name][i])


@pytest.mark.parametrize("build", [LocalEngine, sharded])
def test_cross_gradients_of_weight_0_do_not_count_even_if_they_are_not_finite(build: Any) -> None:
    """The loss of model 1 is finite on the data of client 1 alone, that of model 2 on none."""
    federation = regression()
    x = federation.train.x.clone()
    x[federation.train.index[1]] = 0.0
    federation = replace(federation, train=federation.train._replace(x=x))
    module = softmax_regression(outputs=2)
    engine = build(federation, module, seed=3, device="cpu")
    engine.quarantine({2: Reason.read("loss")})
    theta = engine.replicate(parameters_of(module))
    theta["0.weight"][1:3] = 1e308
    w, sgd = row_stochastic(K), LocalSGD(steps=1, batch_size=20)
    w[1] = torch.eye(K)[1]
    found = engine.cross_gradient(theta, w, sgd, 0)
    assert is_finite(found) and all(not t[2].any() for t in found.values())
    alone = engine.gradient(theta, "train").theta
    for name, t in found.items():
        torch.testing.assert_close(t[1], alone[name][1])


def test_an_infinite_model_in_quarantine_does_not_leak_into_a_mix() -> None:
    engine, theta0 = start(classification())
    theta = engine.replicate(theta0)
    next(iter(theta.values()))[1] = torch.inf
    half, _ = engine.train(theta, LocalSGD(), 0)
    assert engine.active.tolist() == [True, False, True, True]
    mixed = engine.mix(row_stochastic(K), half)
    assert is_finite({n: t[[0, 2, 3]] for n, t in mixed.items()})


def test_the_null_model_of_a_regression_ignores_the_quarantined() -> None:
    federation = regression()
    y = federation.train.y.clone()
    y[1, 0] = torch.nan
    dirty, _ = start(replace(federation, train=federation.train._replace(y=y)))
    y = torch.cat([own_data(federation, i, torch.float64)[1] for i in (0, 2, 3)])
    expected = -0.5 * float(y.var(dim=0, correction=0).sum())
    assert abs(dirty.uniform_log_lik - expected) < 1e-6


def test_the_server_does_not_count_clients_in_quarantine() -> None:
    engine, theta0 = start(poisoned(classification(), 1))
    share = torch.tensor([0.5, 0, 0.5, 0]).double().expand(4, 4)
    engine.mix(share, engine.replicate(theta0), via="server")
    assert engine.ledger.messages == {"server": 4}


# ---------------------------------------------------------------------- devices and the rest


def test_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="auto, cpu or cuda"):
        resolve_device("gpu0")
    if not torch.cuda.is_available():
        for name in ("cuda", "cuda:1"):
            with pytest.raises(ConfigError, match="sees no CUDA"):
                start(classification(), device=name)
        assert resolve_device("auto").type == "cpu"


def test_uninformed_predictor() -> None:
    engine, _ = start(classification())
    assert abs(engine.uniform_log_lik + float(torch.tensor(3.0).log())) < 1e-6


def test_a_client_with_one_sample_trains() -> None:
    engine, theta0 = start(classification((1, 6, 1)), softmax_regression())
    half, loss = engine.train(engine.replicate(theta0), LocalSGD(lr=0.1), 0)
    assert is_finite(half) and bool(loss.isfinite().all())
