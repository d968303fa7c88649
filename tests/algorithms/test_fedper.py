"""FedPer against its formula, its limits and its traffic."""

import pytest
import torch

from reference.local_steps import average, local_steps, size_of, stacked
from scool.algorithms import FedAvg, FedPer
from scool.algorithms.shared.sharing import participants
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import (
    SIZES,
    assert_trees_close,
    assert_trees_equal,
    classification,
    softmax_regression,
    start,
    tanh_net,
)

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
K = len(SIZES)
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")


@pytest.mark.parametrize(("personal", "shared"), [("head", BODY), ("0", HEAD), ("0, 2.bias", HEAD)])
def test_two_rounds_by_hand(personal: str, shared: tuple[str, ...]) -> None:
    if personal.endswith("2.bias"):
        shared = ("2.weight",)
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = FedPer(sgd=SGD, personal=personal)
    state, models = method.init(engine, theta0), [theta0] * K
    for t in range(2):
        state, _ = method.step(engine, state, t)
        half = [local_steps(federation, module, m, i, SGD, t) for i, m in enumerate(models)]
        common = average(half, SIZES)
        models = [{n: common[n] if n in shared else p for n, p in m.items()} for m in half]
    assert_trees_close(state.theta, stacked(models), 1e-10)
    assert list(state.theta) == list(theta0)
    size = size_of({n: state.theta[n] for n in shared})
    assert engine.ledger.messages == {"server": 2 * 2 * K}
    assert engine.ledger.total_bytes == 2 * 2 * K * size


def test_with_nothing_personal_it_is_fedavg_to_the_bit() -> None:
    engine, theta0 = start(classification())
    per, avg = FedPer(sgd=SGD, personal="", participation=0.5), FedAvg(sgd=SGD, participation=0.5)
    a, b = per.init(engine, theta0), avg.init(engine, theta0)
    for t in range(3):
        a, b = per.step(engine, a, t)[0], avg.step(engine, b, t)[0]
        assert_trees_equal(a.theta, b.theta)


def test_heads_stay_and_the_body_is_common() -> None:
    engine, theta0 = start(classification((4,) * 6))
    method = FedPer(sgd=SGD, participation=0.5)
    state = method.init(engine, theta0)
    after, _ = method.step(engine, state, 1)
    chosen = participants(engine, 0.5, 1)
    for n in BODY:
        assert float((after.theta[n] - after.theta[n][0]).abs().max()) < 1e-14
    for n in HEAD:
        moved = (after.theta[n] != state.theta[n]).flatten(1).any(dim=1)
        assert torch.equal(moved, chosen)
    assert engine.ledger.messages == {"server": 6}


def test_a_layer_that_the_model_lacks_is_refused() -> None:
    engine, theta0 = start(classification())
    with pytest.raises(ConfigError, match=r"'fc2'.*head"):
        FedPer(personal="fc2").init(engine, theta0)
    engine, theta0 = start(classification(), softmax_regression())
    with pytest.raises(ConfigError, match="whole model"):
        FedPer().init(engine, theta0)
    with pytest.raises(ConfigError, match="participation"):
        FedPer(participation=0.0)
