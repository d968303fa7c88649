"""FedAMP against its formula, its limits and its traffic."""

import math

import pytest
import torch

from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import FedAMP, LocalOnly
from scool.algorithms.fedamp import attention
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import (
    SIZES,
    assert_trees_close,
    assert_trees_equal,
    classification,
    one,
    poisoned,
    scattered,
    start,
    tanh_net,
)

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
K = len(SIZES)
ALL = torch.ones(K, dtype=torch.bool)


def naive_xi(models: list, sigma: float, alpha: float) -> list[list[float]]:
    """A'(x) = exp(-x / s) / s with s = sigma times the mean distance, and the largest step."""
    k = len(models)
    x = [[sum(float((a[n] - b[n]).square().sum()) for n in a) for b in models] for a in models]
    mean = sum(map(sum, x)) / (k * (k - 1))
    s = sigma * mean
    slope = [[math.exp(-x[i][j] / s) / s if i != j else 0.0 for j in range(k)] for i in range(k)]
    largest = 1 / max(map(sum, slope))
    xi = [[alpha * largest * slope[i][j] for j in range(k)] for i in range(k)]
    for i in range(k):
        xi[i][i] = 1 - sum(xi[i])
    return xi


@pytest.mark.parametrize(("sigma", "alpha"), [(0.3, 0.6), (2.0, 1.0)])
def test_two_rounds_by_hand(sigma: float, alpha: float) -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = FedAMP(sgd=SGD, sigma=sigma, alpha=alpha, lam=0.8)
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    models = [one(state.theta, i) for i in range(K)]
    for t in range(2):
        state, info = method.step(engine, state, t)
        xi = naive_xi(models, sigma, alpha)
        cloud = [
            {n: sum(share * m[n] for share, m in zip(row, models, strict=True)) for n in theta0}
            for row in xi
        ]
        models = [
            local_steps(federation, module, m, i, SGD, t, anchor=cloud[i], strength=0.8)
            for i, m in enumerate(models)
        ]
    torch.testing.assert_close(info["graph"], torch.tensor(xi).double(), atol=1e-6, rtol=0)
    assert_trees_close(state.theta, stacked(models), 1e-10)
    assert engine.ledger.messages == {"server": 2 * 2 * K}
    assert engine.ledger.total_bytes == 2 * 2 * K * size_of(state.theta)


def test_without_a_pull_it_is_local_sgd_to_the_bit() -> None:
    engine, theta0 = start(classification())
    mine, local = FedAMP(sgd=SGD, lam=0.0), LocalOnly(sgd=SGD)
    a, b = mine.init(engine, theta0), local.init(engine, theta0)
    for t in range(3):
        a, b = mine.step(engine, a, t)[0], local.step(engine, b, t)[0]
        assert_trees_equal(a.theta, b.theta)


def test_limits_of_the_attention() -> None:
    position = torch.tensor([0.0, 1.0, 10.0, 11.5]).double()
    distances = (position[:, None] - position).square()
    none = attention(distances, ALL, sigma=1.0, alpha=0.0)
    assert torch.equal(none, torch.eye(K).double())
    wide = attention(distances, ALL, sigma=1e9, alpha=(K - 1) / K)  # the mean of all models
    torch.testing.assert_close(wide, torch.full((K, K), 1 / K).double())
    near = attention(distances, ALL, sigma=1e-3, alpha=1.0)  # the closest pair becomes one
    assert near[0, :2].tolist() == pytest.approx([0.0, 1.0])
    assert near[3, 3] == pytest.approx(1.0)
    equal = attention(torch.zeros(K, K).double(), ALL, sigma=0.1, alpha=0.9)
    torch.testing.assert_close(equal, torch.full((K, K), 0.3).double().fill_diagonal_(0.1))
    for xi in (none, wide, near, equal, attention(distances * 1e12, ALL, 0.1, 1.0)):
        assert torch.equal(xi, xi.T) and bool((xi >= 0).all())
        torch.testing.assert_close(xi.sum(dim=1), torch.ones(K).double())
    torch.testing.assert_close(
        attention(distances * 1e12, ALL, 0.1, 1.0), attention(distances, ALL, 0.1, 1.0)
    )


def test_the_attention_stays_finite_when_models_are_not() -> None:
    distances = torch.ones(K, K).double().fill_diagonal_(0)
    distances[2] = distances[:, 2] = torch.nan
    active = torch.tensor([True, True, False, True])
    xi = attention(distances, active, sigma=0.1, alpha=0.8)
    expected = torch.full((K, K), 0.4).double().fill_diagonal_(0.2)
    expected[2] = expected[:, 2] = 0
    expected[2, 2] = 1
    torch.testing.assert_close(xi, expected)
    alone = attention(distances, torch.arange(K) == 1, sigma=0.1, alpha=0.8)
    assert torch.equal(alone, torch.eye(K).double())
    assert attention(torch.zeros(1, 1).double(), ALL[:1], 0.1, 0.9).tolist() == [[1.0]]


def test_quarantine_leaves_the_others_alone() -> None:
    engine, theta0 = start(poisoned(classification(), 1))
    method = FedAMP(sgd=SGD)
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    state.theta["0.weight"][1] = torch.nan
    after, info = method.step(engine, state, 0)
    assert info["graph"][1].tolist() == [0, 1, 0, 0]
    assert all(bool(t[[0, 2, 3]].isfinite().all()) for t in after.theta.values())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"sigma": 0.0}, "sigma"),
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 1.1}, "alpha"),
        ({"lam": -1.0}, "lam"),
        ({"lam": 20.0}, "overshoots"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        FedAMP(sgd=SGD, **options)
