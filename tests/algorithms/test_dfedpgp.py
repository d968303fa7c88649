"""DFedPGP against its formula, and what push-sum promises."""

from dataclasses import replace

import pytest
import torch

from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import DFedPGP
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import assert_trees_close, classification, poisoned, start, tanh_net

SIZES = (5, 3, 8, 6, 4)
K = len(SIZES)
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")
SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)


def test_three_rounds_of_push_sum_by_hand() -> None:
    """Sums u and masses mu are pushed along the arrows of each round, as published, and the body is
    u / mu."""
    federation, module = classification(SIZES), tanh_net()
    engine, theta0 = start(federation, module)
    method = DFedPGP(sgd=SGD, head_epochs=3, degree=2)
    state, models, mass = method.init(engine, theta0), [theta0] * K, [1.0] * K
    passes = replace(SGD, epochs=3)
    for t in range(3):
        state, info = method.step(engine, state, t)
        half = []
        for i, m in enumerate(models):
            m = local_steps(federation, module, m, i, passes, t, only=HEAD)
            half.append(local_steps(federation, module, m, i, SGD, t, only=BODY))
        arrows = info["graph"] > 0
        assert arrows.sum(dim=0).tolist() == [3] * K and bool(arrows.diagonal().all())
        pushed = [sum(mass[j] / 3 for j in range(K) if arrows[i, j]) for i in range(K)]
        for i in range(K):
            sources = [j for j in range(K) if arrows[i, j]]
            u = {n: sum(mass[j] * half[j][n] / 3 for j in sources) for n in BODY}
            models[i] = half[i] | {n: u[n] / pushed[i] for n in BODY}
        mass = pushed
        assert_trees_close(state.theta, stacked(models), 1e-10)
    assert state.mass.tolist() == pytest.approx(mass)
    assert max(mass) > 1.05  # rows of P do not sum to one
    bodies = {n: state.theta[n] for n in BODY}
    assert engine.ledger.messages == {"mix": 3 * 2 * K}
    assert engine.ledger.total_bytes == 3 * 2 * K * size_of(bodies)


def test_without_learning_all_bodies_end_at_the_mean() -> None:
    """Which averages along such arrows do not without the masses."""
    engine, theta0 = start(classification(SIZES))
    method = DFedPGP(sgd=LocalSGD(lr=1e-300), degree=1)
    state = method.init(engine, theta0)
    first = torch.arange(K).double()[:, None].expand(K, 5).clone()
    state = state._replace(theta=state.theta | {"0.bias": first})
    for t in range(60):
        state, _ = method.step(engine, state, t)
    torch.testing.assert_close(state.theta["0.bias"], torch.full((K, 5), 2.0).double())
    assert float(state.mass.sum()) == pytest.approx(K)


def test_who_is_in_quarantine_keeps_its_mass() -> None:
    engine, theta0 = start(poisoned(classification(SIZES), 1))
    method = DFedPGP(sgd=SGD, degree=2)
    state, info = method.step(engine, method.init(engine, theta0), 0)
    assert info["graph"][1].tolist() == [0, 1, 0, 0, 0] and info["graph"][:, 1].sum() == 1
    assert float(state.mass[1]) == 1 and float(state.mass.sum()) == pytest.approx(K)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"degree": 0}, "degree"), ({"head_epochs": 0}, "head_epochs"), ({"personal": ""}, "dpsgd")],
)
def test_impossible_options_are_refused(options: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        DFedPGP(**options)
