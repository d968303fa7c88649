"""Ditto against its formula, its limits and its traffic."""

import pytest
import torch

from reference.local_steps import average, local_steps, rows_of, size_of, stacked
from scool.algorithms import Ditto, FedAvg, LocalOnly
from scool.algorithms.shared.sharing import participants
from scool.data.federation import Federation
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import (
    SIZES,
    assert_trees_close,
    assert_trees_equal,
    classification,
    poisoned,
    regression,
    start,
    tanh_net,
)

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
K = len(SIZES)


@pytest.mark.parametrize("federation", [classification(), regression()], ids=["class", "regress"])
def test_two_rounds_by_hand(federation: Federation) -> None:
    module = tanh_net(outputs=federation.num_outputs)
    engine, theta0 = start(federation, module)
    method = Ditto(sgd=SGD, lam=0.7)
    state = method.init(engine, theta0)
    common, personal = theta0, [theta0] * K
    for t in range(2):
        state, info = method.step(engine, state, t)
        personal = [
            local_steps(federation, module, v, i, SGD, t, anchor=common, strength=0.7)
            for i, v in enumerate(personal)
        ]
        copies = [local_steps(federation, module, common, i, SGD, t) for i in range(K)]
        common = average(copies, SIZES)
    assert_trees_close(state.theta, stacked(personal), 1e-10)
    assert_trees_close(state.common, stacked([common] * K), 1e-10)
    torch.testing.assert_close(info["graph"], rows_of([n / sum(SIZES) for n in SIZES], K))


def test_without_a_pull_it_is_local_sgd_to_the_bit() -> None:
    engine, theta0 = start(classification())
    ditto, local = Ditto(sgd=SGD, lam=0.0), LocalOnly(sgd=SGD)
    a, b = ditto.init(engine, theta0), local.init(engine, theta0)
    for t in range(3):
        a, found = ditto.step(engine, a, t)
        b, expected = local.step(engine, b, t)
        assert_trees_equal(a.theta, b.theta)
        assert torch.equal(found["train_loss"], expected["train_loss"])


def test_the_common_model_is_fedavg_to_the_bit_whatever_the_pull() -> None:
    engine, theta0 = start(classification())
    ditto, fedavg = (method(sgd=SGD, participation=0.5) for method in (Ditto, FedAvg))
    a, b = ditto.init(engine, theta0), fedavg.init(engine, theta0)
    for t in range(3):
        a, found = ditto.step(engine, a, t)
        b, expected = fedavg.step(engine, b, t)
        assert_trees_equal(a.common, b.theta)
        assert torch.equal(found["graph"], expected["graph"])


def test_a_strong_pull_keeps_the_personal_models_at_the_common_one() -> None:
    """With lam = 1 / lr a step ends at x - lr * gradient, however many there are."""
    engine, theta0 = start(classification())
    slow = LocalSGD(lr=1e-4, epochs=5, batch_size=3)
    states = {
        lam: Ditto(sgd=slow, lam=lam).init(engine, theta0)._replace(theta=far(engine, theta0))
        for lam in (0.0, 1e4)
    }
    away = {}
    for lam, state in states.items():
        after, _ = Ditto(sgd=slow, lam=lam).step(engine, state, 0)
        away[lam] = max(float((t - state.common[n]).abs().max()) for n, t in after.theta.items())
    assert away[0.0] > 0.5 and away[1e4] < 1e-3


def far(engine, theta0):
    return {n: t + 1 for n, t in engine.replicate(theta0).items()}


def test_only_participants_train_and_only_they_cost() -> None:
    engine, theta0 = start(classification((4,) * 6))
    method = Ditto(sgd=SGD, participation=0.5)
    state = method.init(engine, theta0)
    after, info = method.step(engine, state, 2)
    chosen = participants(engine, 0.5, 2)
    assert int(chosen.sum()) == 3
    for n, t in after.theta.items():
        moved = (t != state.theta[n]).flatten(1).any(dim=1)
        assert torch.equal(moved, chosen)
    assert torch.equal(info["train_loss"].isfinite(), chosen)
    assert engine.ledger.messages == {"server": 6}
    assert engine.ledger.total_bytes == 6 * size_of(state.theta)


def test_quarantine_leaves_the_others_alone() -> None:
    federation = classification()
    engine, theta0 = start(poisoned(federation, 2))
    method = Ditto(sgd=SGD)
    state, info = method.step(engine, method.init(engine, theta0), 0)
    rest = [5, 3, 0, 6]
    torch.testing.assert_close(info["graph"], rows_of([n / sum(rest) for n in rest], K))
    copies = [local_steps(federation, tanh_net(), theta0, i, SGD, 0) for i in (0, 1, 3)]
    common = average(copies, [5, 3, 6])
    for n, t in state.common.items():
        torch.testing.assert_close(t[0], common[n])


@pytest.mark.parametrize(
    ("options", "word"),
    [({"lam": -1.0}, "lam"), ({"lam": 20.0}, "lr"), ({"participation": 0.0}, "participation")],
)
def test_impossible_options_are_refused(options: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Ditto(sgd=SGD, **options)
