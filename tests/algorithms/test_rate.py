"""The learning rate that `scool` finds: the rule, what it looks at, and who may leave it open."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import scool
from scool.algorithms.shared import rate
from scool.algorithms.shared.rate import RATES, ROUNDS, Tried, chosen, find_rate
from scool.data.build import with_validation
from scool.errors import ConfigError, QuarantineError
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import as_metric
from toys import classification, poisoned, regression, softmax_regression, start, tanh_net

SGD = LocalSGD(lr=0.0, epochs=3, batch_size=4)


def tried(end: float, held_out: list[float], is_sound: bool = True) -> Tried:
    losses = torch.tensor(held_out, dtype=torch.float64)
    return Tried(torch.full_like(losses, 2.0), torch.full_like(losses, end), losses, is_sound)


GUARD = tried(2.0, [9.0, 9.0, 9.0])


def test_the_rate_that_explains_held_out_samples_best() -> None:
    slow, fast = tried(1.0, [1.0, 1.1, 0.9]), tried(0.9, [0.5, 0.6, 0.4])
    assert chosen([slow, fast, tried(0.8, [0.9, 0.7, 0.9]), GUARD]) == 1


def test_where_nothing_can_be_learned_alone_the_rate_still_learns() -> None:
    """Not learning looks best: losses of the uninformed, where faster ones are worse."""
    rates = [tried(2.0, [2.3, 2.3]), tried(1.2, [2.4, 2.5]), tried(0.6, [2.5, 2.6])]
    assert chosen([*rates, GUARD]) == 1  # the first rate falls less than half as far as the last


def test_a_rate_with_which_somebody_breaks_does_not_count_nor_the_one_below() -> None:
    """A run is longer than five rounds: what is next to a rate that breaks may break later."""
    good, better, broken = (
        tried(1.5, [1.0, 1.0]),
        tried(1.0, [0.5, 0.5]),
        tried(0.1, [0.1] * 2, False),
    )
    assert chosen([good, better, GUARD, broken]) == 1
    assert chosen([good, better, broken]) == 0
    assert chosen([broken, broken]) == 0


def test_of_rates_within_a_standard_error_the_smallest() -> None:
    unsure = tried(0.9, [0.2, 0.9, 0.1])
    assert chosen([tried(1.0, [0.5, 0.5, 0.5]), unsure, GUARD]) == 0
    assert chosen([tried(1.0, [0.9, 1.6, 0.8]), unsure, GUARD]) == 1  # each owner 0.7 worse


def test_it_is_what_owners_learn_alone_and_says_nothing_of_samples() -> None:
    """Against training by hand, and for as many rounds as stated."""
    federation = with_validation(classification((20, 16, 18)), 0.25, seed=1)
    engine, theta0 = start(federation)
    found = find_rate(engine, engine.replicate(theta0), SGD)
    assert engine.ledger.samples == (len(RATES) + 1) * ROUNDS * SGD.epochs * int(engine.sizes.sum())
    losses = {}
    for eta in RATES:
        alone, _ = start(federation)
        theta = alone.replicate(theta0)
        for t in range(ROUNDS):
            theta, loss = alone.train(theta, LocalSGD(lr=eta, epochs=3, batch_size=4), t)
        losses[eta] = float(loss.mean())
    assert found >= 0.03 and losses[found] <= (losses[RATES[0]] + min(losses.values())) / 2


def test_in_regression_owners_with_large_targets_count_as_others_do() -> None:
    """An owner tells logs of errors: other units of its targets add a constant for all rates."""
    federation = with_validation(regression((12,) * 4), 0.3, seed=1)
    engine, theta0 = start(federation, tanh_net(outputs=2))
    sgd = LocalSGD(lr=0.05, epochs=2, batch_size=4)
    found = rate._try(engine, engine.replicate(theta0), sgd)
    alone, _ = start(federation, tanh_net(outputs=2))
    theta = alone.replicate(theta0)
    for t in range(ROUNDS):
        theta, loss = alone.train(theta, sgd, t)
    error = 2 * alone.measure(theta, "val", as_metric(alone.loss))
    torch.testing.assert_close(found.held_out, error.double().log())
    torch.testing.assert_close(found.end, loss.double().log())


def test_scool_finds_a_rate_once_and_all_kinds_have_it() -> None:
    method = scool.Tracks(kinds="alone,common", sgd=SGD)
    engine, theta0 = start(with_validation(poisoned(classification((9, 8, 7, 9)), 1), 0.3, seed=1))
    state = method.init(engine, theta0)
    assert state.rate == 0
    state, info = method.step(engine, state, 0)
    first = engine.ledger.close_round().samples
    assert float(state.rate) in RATES and info["rate"] == state.rate
    kinds = method.methods(4, float(state.rate))
    assert {kind.sgd.lr for kind in kinds.values()} == {float(state.rate)}
    after, _ = method.step(engine, state, 1)
    assert after.rate == state.rate and engine.ledger.close_round().samples < first


def test_a_rate_that_is_given_stays() -> None:
    method = scool.Tracks(kinds="alone", sgd=LocalSGD(lr=0.02, epochs=1, batch_size=4))
    engine, theta0 = start(with_validation(classification((9, 8)), 0.3, seed=1))
    _, info = method.step(engine, method.init(engine, theta0), 0)
    assert float(info["rate"]) == 0.02


@pytest.mark.parametrize("method", [scool.LocalOnly(sgd=SGD), scool.SCooL(sgd=SGD)])
def test_other_methods_need_a_rate(method: Any) -> None:
    with pytest.raises(ConfigError, match=r"lr = 0.0 is not possible: .* finds no learning rate"):
        scool.fit(classification(), "linear", method, rounds=1)
    with pytest.raises(ConfigError, match="lr"):
        scool.fit(classification(), "linear", method, rounds=1, slow_momentum=0.5)


def test_it_learns_from_regression_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate, "RATES", (0.001, 0.1))
    monkeypatch.setattr(rate, "GUARD", 0.2)
    federation = with_validation(regression((16,) * 4), 0.3, seed=1)
    engine, theta0 = start(federation, tanh_net(outputs=2))
    assert find_rate(engine, engine.replicate(theta0), SGD) == 0.1


def test_a_strict_run_finds_a_rate_though_others_break() -> None:
    federation = with_validation(regression((16,) * 4), 0.3, seed=1)
    steep = federation.train._replace(x=federation.train.x * 20)
    federation, module = replace(federation, train=steep), softmax_regression(outputs=2).float()
    engine, theta0 = start(federation, module, strict=True)
    with pytest.raises(QuarantineError):
        engine.view("a try").train(engine.replicate(theta0), LocalSGD(lr=0.3, epochs=20), 0)
    assert find_rate(engine, engine.replicate(theta0), replace(SGD, epochs=20)) <= 0.01
