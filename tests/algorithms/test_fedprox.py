"""FedProx against its formula, its limits and its traffic."""

import pytest
import torch

from reference.local_steps import average, local_steps, rows_of, size_of, stacked
from scool.algorithms import FedAvg, FedProx
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import SIZES, assert_trees_close, assert_trees_equal, classification, start, tanh_net

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
K = len(SIZES)


def test_two_rounds_by_hand() -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = FedProx(sgd=SGD, mu=0.9)
    state, common = method.init(engine, theta0), theta0
    for t in range(2):
        state, info = method.step(engine, state, t)
        options = {"anchor": common, "strength": 0.9}
        half = [local_steps(federation, module, common, i, SGD, t, **options) for i in range(K)]
        common = average(half, SIZES)
    assert_trees_close(state.theta, stacked([common] * K), 1e-10)
    torch.testing.assert_close(info["graph"], rows_of([n / sum(SIZES) for n in SIZES], K))


def test_without_a_pull_it_is_fedavg_to_the_bit() -> None:
    engine, theta0 = start(classification())
    prox, plain = FedProx(sgd=SGD, mu=0.0, participation=0.5), FedAvg(sgd=SGD, participation=0.5)
    a, b = prox.init(engine, theta0), plain.init(engine, theta0)
    for t in range(3):
        a, found = prox.step(engine, a, t)
        b, expected = plain.step(engine, b, t)
        assert_trees_equal(a.theta, b.theta)
        assert torch.equal(found["graph"], expected["graph"])


def test_a_strong_pull_holds_the_local_steps_back() -> None:
    engine, theta0 = start(classification())
    slow = LocalSGD(lr=0.01, epochs=10, batch_size=3)
    moved = []
    for mu in (0.0, 1.0, 50.0):
        method = FedProx(sgd=slow, mu=mu)
        state = method.init(engine, theta0)
        after, _ = method.step(engine, state, 0)
        moved.append(sum(float((t - state.theta[n]).norm()) for n, t in after.theta.items()))
    assert moved[0] > 1.02 * moved[1] > 2 * moved[2] > 0


def test_traffic_is_two_models_a_participant() -> None:
    engine, theta0 = start(classification((4,) * 6))
    method = FedProx(sgd=SGD, participation=0.5)
    state = method.init(engine, theta0)
    method.step(engine, state, 0)
    assert engine.ledger.messages == {"server": 6}
    assert engine.ledger.total_bytes == 6 * size_of(state.theta)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"mu": -0.1}, "mu"), ({"mu": 21.0}, "lr"), ({"participation": 2.0}, "participation")],
)
def test_impossible_options_are_refused(options: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        FedProx(sgd=SGD, **options)
    FedProx(sgd=LocalSGD(lr=0.1, momentum=0.9), mu=21.0)  # the bound is that of plain SGD
