"""APFL against its formula, step by step, and its limits."""

import pytest

from reference.local_steps import average, batch_gradient, stacked
from scool.algorithms import APFL, FedAvg
from scool.data.federation import Federation
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import (
    SIZES,
    assert_trees_close,
    assert_trees_equal,
    classification,
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
    method = APFL(sgd=SGD, alpha=0.6)
    state = method.init(engine, theta0)
    common, own, alpha = theta0, [theta0] * K, [0.6] * K
    most = max(2 * -(-n // 3) for n in SIZES)
    for t in range(2):
        state, _ = method.step(engine, state, t)
        copies = []
        for i, size in enumerate(SIZES):
            w, v, a = common, own[i], alpha[i]
            for s in range(2 * -(-size // 3)):
                mixed = {n: a * v[n] + (1 - a) * w[n] for n in w}
                slope = batch_gradient(federation, module, mixed, i, t * most + s, 3)
                plain = batch_gradient(federation, module, w, i, t * most + s, 3)
                towards = sum(float(((v[n] - w[n]) * slope[n]).sum()) for n in w)
                v = {n: v[n] - 0.1 * a * slope[n] for n in w}
                w = {n: w[n] - 0.1 * plain[n] for n in w}
                a = min(1.0, max(0.0, a - 0.1 * towards))
            own[i], alpha[i] = v, a
            copies.append(w)
        common = average(copies, SIZES)
        mixed = [
            {n: a * v[n] + (1 - a) * common[n] for n in v} for a, v in zip(alpha, own, strict=True)
        ]
        assert_trees_close(state.theta, stacked(mixed), 1e-10)
    assert state.alpha.tolist() == pytest.approx(alpha, abs=1e-10)
    assert len({round(a, 6) for a in alpha}) == K and alpha != [0.6] * K  # they have learned it


def test_nothing_personal_is_fedavg_whatever_the_data() -> None:
    federation = classification((6,) * 4)  # equal sizes: both go through the same batches
    engine, theta0 = start(federation)
    apfl, fedavg = APFL(sgd=SGD, alpha=0.0, adaptive=False), FedAvg(sgd=SGD)
    a, b = apfl.init(engine, theta0), fedavg.init(engine, theta0)
    for t in range(2):
        a, _ = apfl.step(engine, a, t)
        b, _ = fedavg.step(engine, b, t)
    assert_trees_close(a.theta, b.theta, 1e-12)
    assert_trees_equal(a.own, apfl.init(engine, theta0).own)  # its gradient is times alpha


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"alpha": 1.5}, "alpha"),
        ({"sgd": LocalSGD(momentum=0.9)}, "momentum"),
        ({"sgd": LocalSGD(optimizer="adam")}, "plain SGD"),
    ],
)
def test_impossible_options_are_refused(options: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        APFL(**options)
