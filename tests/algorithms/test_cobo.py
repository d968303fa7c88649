"""CoBo against its formula, its pairings, and groups that it has to find."""

import pytest
import torch
from torch.func import functional_call

from reference.local_steps import local_steps, stacked
from scool.algorithms import CoBo
from scool.algorithms.cobo import partners
from scool.data.federation import Federation
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import LOSSES
from scool.types import Params
from toys import (
    SIZES,
    assert_trees_close,
    classification,
    own_data,
    poisoned,
    regression,
    softmax_regression,
    start,
    tanh_net,
)

K = len(SIZES)
SGD = LocalSGD(lr=0.1, epochs=1, batch_size=3)


def whole_gradient(federation: Federation, client: int, theta: Params) -> Params:
    x, y = own_data(federation, client, torch.float64)
    leaves = {n: t.clone().requires_grad_() for n, t in theta.items()}
    loss = LOSSES["classification"](functional_call(tanh_net(), leaves, (x,)), y).mean()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def test_three_rounds_by_hand() -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = CoBo(sgd=SGD, rho=0.7, gamma=3.0, meetings=2)
    state, models, w = method.init(engine, theta0), [theta0] * K, torch.ones(K, K).double()
    for t in range(3):
        met = [pairs.nonzero().tolist() for pairs in method._pairings(engine, t)]
        state, info = method.step(engine, state, t)
        assert [len(pairs) for pairs in met] == [K, K]
        for i, j in [pair for pairs in met for pair in pairs]:
            middle = {n: (models[i][n] + models[j][n]) / 2 for n in theta0}
            a, b = (whole_gradient(federation, k, middle) for k in (i, j))
            agree = sum(float((a[n] * b[n]).sum()) for n in a)
            w[i, j] = min(1.0, max(0.0, float(w[i, j]) + 3.0 * agree))
        half = [local_steps(federation, module, m, i, SGD, t) for i, m in enumerate(models)]
        degree = w.sum(dim=1)
        after = []
        for i in range(K):
            model = dict(half[i])
            for j in set(range(K)) - {i}:
                r = 0.7 * w[i, j] / max(degree[i], degree[j])
                assert float(info["graph"][i, j]) == pytest.approx(float(r), abs=1e-9)
                model = {n: model[n] - r * (models[i][n] - models[j][n]) for n in model}
            after.append(model)
        models = after
        assert_trees_close(state.theta, stacked(models), 1e-9)
    torch.testing.assert_close(state.w, w)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_pairings_of_a_tournament_are_all_pairs_once(count: int) -> None:
    seen = torch.zeros(count, count, dtype=torch.int64)
    for turn in range(count - 1 + count % 2):
        there = partners(count, turn)
        assert torch.equal(there[there], torch.arange(count))
        seen[torch.arange(count), there] += 1
    assert bool((seen.fill_diagonal_(1) == 1).all())


def test_it_finds_groups_whose_tasks_differ() -> None:
    """Linear maps of two groups: gradients half-way agree within a group alone."""
    engine, theta0 = start(regression((8,) * 6), softmax_regression(outputs=2))
    method = CoBo(sgd=LocalSGD(lr=0.05, epochs=2, batch_size=8), gamma=1.0, meetings=5)
    state = method.init(engine, theta0)
    for t in range(30):
        state, _ = method.step(engine, state, t)
    same = torch.arange(6)[:, None] % 2 == torch.arange(6) % 2
    assert float(state.w[same].min()) > 0.9 and float(state.w[~same].max()) < 0.1


def test_nobody_meets_who_is_in_quarantine() -> None:
    engine, theta0 = start(poisoned(classification(), 2))
    method = CoBo(sgd=SGD, meetings=3)
    state, info = method.step(engine, method.init(engine, theta0), 0)
    assert state.w[2].tolist() == [1, 1, 1, 1] and info["graph"][2].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(("name", "value"), [("rho", 1.5), ("gamma", 0.0), ("meetings", 0)])
def test_impossible_options_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        CoBo(**{name: value})  # type: ignore[arg-type]
