"""FedAvg with fine-tuning against its formula."""

from dataclasses import replace

import pytest

from reference.local_steps import average, local_steps, stacked
from scool.algorithms import FedAvg, FedAvgFT
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import SIZES, assert_trees_close, assert_trees_equal, classification, start, tanh_net

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
K = len(SIZES)


def test_two_rounds_by_hand() -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = FedAvgFT(sgd=SGD, finetune_epochs=3)
    state, common = method.init(engine, theta0), theta0
    passes = replace(SGD, epochs=3)
    for t in range(2):
        state, _ = method.step(engine, state, t)
        common = average(
            [local_steps(federation, module, common, i, SGD, t) for i in range(K)], SIZES
        )
        personal = [local_steps(federation, module, common, i, passes, t) for i in range(K)]
        assert_trees_close(state.theta, stacked(personal), 1e-10)
    assert_trees_close(state.common, stacked([common] * K), 1e-10)


def test_the_common_model_is_fedavg_to_the_bit_and_all_fine_tune_it() -> None:
    engine, theta0 = start(classification((4,) * 6))
    tuned, fedavg = (method(sgd=SGD, participation=0.5) for method in (FedAvgFT, FedAvg))
    a, b = tuned.init(engine, theta0), fedavg.init(engine, theta0)
    for t in range(2):
        a, _ = tuned.step(engine, a, t)
        b, _ = fedavg.step(engine, b, t)
    assert_trees_equal(a.common, b.theta)
    assert all(bool((x != a.common[n]).flatten(1).any(1).all()) for n, x in a.theta.items())


def test_no_fine_tuning_is_another_method() -> None:
    with pytest.raises(ConfigError, match="use the method fedavg"):
        FedAvgFT(finetune_epochs=0)
