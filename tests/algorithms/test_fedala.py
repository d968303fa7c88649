"""FedALA against its formula, batch by batch."""

import pytest
import torch

from reference.local_steps import average, batch_gradient, local_steps, stacked
from scool.algorithms import FedALA, FedAvg
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import SIZES, assert_trees_close, classification, softmax_regression, start, tanh_net

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
K = len(SIZES)
HEAD = ("2.weight", "2.bias")


@pytest.mark.parametrize("learned", ["head", ""])
def test_two_rounds_by_hand(learned: str) -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = FedALA(sgd=SGD, learned=learned, weight_lr=3.0, start_epochs=2)
    state, names = method.init(engine, theta0), HEAD if learned else tuple(theta0)
    models, weights = [theta0] * K, [{n: torch.ones_like(theta0[n]) for n in names}] * K
    most = max(-(-n // 3) for n in SIZES)
    for t in range(2):
        state, _ = method.step(engine, state, t)
        half = [local_steps(federation, module, m, i, SGD, t) for i, m in enumerate(models)]
        common = average(half, SIZES)
        for i, size in enumerate(SIZES):
            w = weights[i]
            model = common | {n: half[i][n] + w[n] * (common[n] - half[i][n]) for n in names}
            for s in range((2 if t == 0 else 1) * -(-size // 3)):
                slope = batch_gradient(federation, module, model, i, t * 2 * most + s, 3)
                w = {
                    n: (w[n] - 3.0 * slope[n] * (common[n] - half[i][n])).clamp(0, 1) for n in names
                }
                model = common | {n: half[i][n] + w[n] * (common[n] - half[i][n]) for n in names}
            models[i], weights[i] = model, w
        assert_trees_close(state.theta, stacked(models), 1e-10)
    assert_trees_close(state.weights, stacked(weights), 1e-10)
    assert min(float(t.min()) for t in state.weights.values()) < 0.99  # they have learned


def test_weights_that_hardly_move_make_it_fedavg() -> None:
    engine, theta0 = start(classification())
    fedala, fedavg = FedALA(sgd=SGD, weight_lr=1e-12), FedAvg(sgd=SGD)
    a, b = fedala.init(engine, theta0), fedavg.init(engine, theta0)
    for t in range(2):
        a, _ = fedala.step(engine, a, t)
        b, _ = fedavg.step(engine, b, t)
    assert_trees_close(a.theta, b.theta, 1e-9)


def test_the_head_may_be_the_whole_model() -> None:
    engine, theta0 = start(classification(), softmax_regression())
    assert FedALA().init(engine, theta0).weights.keys() == theta0.keys()
    with pytest.raises(ConfigError, match="in learned"):
        FedALA(learned="7").init(engine, theta0)


@pytest.mark.parametrize("name", ["weight_lr", "weight_epochs", "start_epochs"])
def test_impossible_options_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        FedALA(**{name: 0})
