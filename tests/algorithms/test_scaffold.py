"""SCAFFOLD against its formula, and the drift that it is for."""

import pytest
import torch

from reference.local_steps import average, batch_gradient, local_steps, size_of, stacked
from scool.algorithms import FedAvg, Scaffold
from scool.algorithms.shared.sharing import participants
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import (
    SIZES,
    assert_trees_close,
    classification,
    regression,
    softmax_regression,
    start,
    tanh_net,
)

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
K = len(SIZES)


def test_three_rounds_by_hand() -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = Scaffold(sgd=SGD, server_lr=0.8, participation=0.5)
    state, x = method.init(engine, theta0), theta0
    zero = {n: torch.zeros_like(t) for n, t in x.items()}
    c, own = zero, [zero] * K
    for t in range(3):
        state, _ = method.step(engine, state, t)
        chosen = participants(engine, 0.5, t).nonzero()[:, 0].tolist()
        models, change = [], zero
        for i in chosen:
            push = {n: c[n] - own[i][n] for n in c}
            y = local_steps(federation, module, x, i, SGD, t, push=push)
            steps = 2 * -(-SIZES[i] // 3)
            new = {n: own[i][n] - c[n] + (x[n] - y[n]) / (steps * 0.1) for n in c}
            share = SIZES[i] / sum(SIZES)
            change = {n: change[n] + share * (new[n] - own[i][n]) for n in c}
            own[i] = new
            models.append(y)
        mean = average(models, [SIZES[i] for i in chosen])
        x = {n: t + 0.8 * (mean[n] - t) for n, t in x.items()}
        c = {n: c[n] + change[n] for n in c}
    assert_trees_close(state.theta, stacked([x] * K), 1e-10)
    assert_trees_close(state.common, stacked([c] * K), 1e-10)
    assert_trees_close(state.own, stacked(own), 1e-10)
    size = size_of(state.theta)
    assert engine.ledger.messages == {"server": 3 * 2 * 2}
    assert engine.ledger.total_bytes == 3 * 2 * 2 * 2 * size


def test_the_first_round_is_fedavg() -> None:
    engine, theta0 = start(classification())
    scaffold, fedavg = Scaffold(sgd=SGD), FedAvg(sgd=SGD)
    a, _ = scaffold.step(engine, scaffold.init(engine, theta0), 0)
    b, _ = fedavg.step(engine, fedavg.init(engine, theta0), 0)
    assert_trees_close(a.theta, b.theta, 1e-12)


def test_many_local_steps_end_where_the_pooled_loss_is_least_and_those_of_fedavg_do_not() -> None:
    """The paper's point: clients whose minima differ, and steps long enough to reach them. Both
    learn from all samples in every step, and all clients take as many."""
    federation = regression((6,) * 4)
    module = softmax_regression(outputs=2)
    sgd = LocalSGD(lr=0.05, epochs=10, batch_size=6)
    left = {}
    for method in (Scaffold(sgd=sgd), FedAvg(sgd=sgd)):
        engine, theta0 = start(federation, module)
        state = method.init(engine, theta0)
        for t in range(150):
            state, _ = method.step(engine, state, t)
        x = {n: t[0] for n, t in state.theta.items()}
        slopes = [batch_gradient(federation, module, x, i, 0, 6) for i in range(K)]
        mean = average(slopes, [6] * K)
        left[type(method)] = max(float(g.abs().max()) for g in mean.values())
    assert left[Scaffold] < 1e-4 < 1e-2 < left[FedAvg]


def test_who_does_not_take_part_keeps_its_control_variate() -> None:
    engine, theta0 = start(classification((4,) * 6))
    method = Scaffold(sgd=SGD, participation=0.5)
    state, _ = method.step(engine, method.init(engine, theta0), 1)
    chosen = participants(engine, 0.5, 1)
    for t in state.own.values():
        assert torch.equal((t != 0).flatten(1).any(dim=1), chosen)
    assert_trees_close(state.common, {n: t[:1].expand_as(t) for n, t in state.common.items()})


@pytest.mark.parametrize(
    ("options", "word"),
    [({"server_lr": 0.0}, "server_lr"), ({"sgd": LocalSGD(momentum=0.5)}, "plain SGD")],
)
def test_impossible_options_are_refused(options: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Scaffold(**options)
