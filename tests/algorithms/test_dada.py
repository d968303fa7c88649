"""Dada against its formulas: the pull on the models, the steps on the graph, the traffic."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from reference.judged import inner, minus, weighted
from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import Dada, LocalOnly
from scool.algorithms.dada import GraphObjective
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import (
    SIZES,
    assert_trees_close,
    classification,
    one,
    poisoned,
    scattered,
    start,
    tanh_net,
)

K = len(SIZES)
SGD = LocalSGD(lr=0.2, epochs=2, batch_size=3)
PAIRS = ~torch.eye(8, dtype=torch.bool)


def symmetric(k: int = 8, seed: int = 0) -> Tensor:
    w = torch.rand(k, k, generator=torch.Generator().manual_seed(seed)).double()
    return (w + w.T).fill_diagonal_(0)


def float64(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def naive_objective(w: Tensor, z: Tensor, loss: list[float], mu: float, lam: float) -> float:
    k = len(w)
    degree = [sum(float(w[i, j]) for j in range(k)) for i in range(k)]
    total = sum(d * x for d, x in zip(degree, loss, strict=True))
    graph = -sum(math.log(d) for d in degree)
    for i in range(k):
        for j in range(i + 1, k):
            graph += float(w[i, j] * z[i, j]) + lam * mu / 2 * float(w[i, j]) ** 2
    return total + mu / 2 * graph


def test_the_objective_and_its_gradient() -> None:
    w, z = symmetric(), symmetric(seed=1)
    loss = torch.rand(8, generator=torch.Generator().manual_seed(2)).double()
    objective = GraphObjective(z, loss, mu=0.7, lam=3.0)
    expected = naive_objective(w, z, loss.tolist(), 0.7, 3.0)
    assert float(objective(w)) == pytest.approx(expected, rel=1e-12)
    gradient = objective.gradient(w)
    for i, j in ((0, 1), (2, 7), (5, 4)):
        values = []
        for sign in (1, -1):
            moved = w.clone()
            moved[i, j] += sign * 1e-6
            moved[j, i] += sign * 1e-6
            values.append(float(objective(moved)))
        slope = (values[0] - values[1]) / 2e-6
        assert float(gradient[i, j]) == pytest.approx(slope, rel=1e-6)
        assert float(gradient[i, j]) == float(gradient[j, i])


@pytest.mark.parametrize("length", [1e-3, 10.0])
@pytest.mark.parametrize("lam", [0.0, 1.0, 100.0])
def test_the_objective_never_grows_and_the_graph_stays_a_graph(length: float, lam: float) -> None:
    w, z = symmetric(), 2 * symmetric(seed=1)
    objective = GraphObjective(z, torch.rand(8).double(), mu=1.0, lam=lam)
    pairs = (symmetric(seed=3) > 0.6) & PAIRS
    step, before = torch.tensor(length).double(), w
    values = [float(objective(w))]
    for _ in range(200):
        after, longer = objective.descend(w, pairs, step, 1)
        factor = round(float(longer / step), 9)
        assert factor == 1.05 or (factor == 0.5 and torch.equal(after, w))
        w, step = after, longer
        values.append(float(objective(w)))
    assert all(b <= a for a, b in pairwise(values)) and values[-1] < values[0]
    assert bool((w >= 0).all()) and torch.equal(w, w.T) and bool((w.sum(dim=1) > 0).all())
    assert torch.equal(w[~pairs], before[~pairs])
    together, _ = objective.descend(before, pairs, torch.tensor(length).double(), 200)
    assert torch.equal(together, w)


def test_the_graph_ends_where_no_weight_wants_to_move() -> None:
    objective = GraphObjective(2 * symmetric(seed=1), torch.full((8,), 0.1).double(), 1.0, 2.0)
    w, _ = objective.descend(symmetric(), PAIRS, torch.tensor(0.01).double(), 5000)
    slope = objective.gradient(w)[PAIRS]
    inside = w[PAIRS] > 0
    assert float(slope[inside].abs().max()) < 1e-3 and float(slope[~inside].min()) > -1e-3
    assert 0 < int((~inside).sum()) < 56


def test_two_rounds_by_hand() -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = Dada(sgd=SGD, mu=0.8, lam=2.0, fraction=1.0, kappa=0, graph_steps=7)
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    models = [one(state.theta, i) for i in range(K)]
    w = [[0.0 if i == j else 1 / (K - 1) for j in range(K)] for i in range(K)]
    length = state.length
    for t in range(2):
        state, info = method.step(engine, state, t)
        degree = [sum(row) for row in w]
        rows = [[x / d for x in row] for row, d in zip(w, degree, strict=True)]
        anchors = [weighted(row, models) for row in rows]
        torch.testing.assert_close(info["graph"], float64(rows))
        z = torch.zeros(K, K).double()
        for i in range(K):
            for j in range(K):
                away = minus(models[i], models[j])
                z[i, j] = inner(away, away)
        z = z / (z.sum() / (K * (K - 1)))
        objective = GraphObjective(z, info["train_loss"], 0.8, 2.0)
        pairs = float64(w) > 0
        new, length = objective.descend(float64(w), pairs, length, 7)
        w = new.tolist()
        models = [
            local_steps(federation, module, m, i, SGD, t, anchor=anchors[i], strength=0.8)
            for i, m in enumerate(models)
        ]
        assert float(info["graph_objective"]) == pytest.approx(float(objective(new)))
    assert_trees_close(state.theta, stacked(models), 1e-10)
    torch.testing.assert_close(state.w, new)


def test_neighbours_and_strangers_are_all_that_travels() -> None:
    engine, theta0 = start(classification((4,) * 10))
    method = Dada(sgd=SGD, fraction=0.3, kappa=2)
    state = method.init(engine, theta0)
    seen = torch.zeros(10, 10, dtype=torch.bool)
    for t in range(3):
        near, met = method._meet(engine, state.w, t)
        seen |= met
        assert bool((near <= met).all()) and bool(((met & ~near).sum(dim=1) == 2).all())
        state, info = method.step(engine, state, t)
        assert torch.equal(info["graph"] > 0, near) and bool((near.sum(dim=1) <= 3).all())
        spent = engine.ledger.close_round()
        assert spent.messages == {"fetch": int(met.sum())}
        assert spent.total_bytes == int(met.sum()) * size_of(state.theta)
    assert int(seen.sum()) > int(met.sum())  # other strangers every round


def test_pairs_that_have_not_met_keep_their_weight() -> None:
    engine, theta0 = start(classification((4,) * 10))
    method = Dada(sgd=SGD, fraction=0.2, kappa=1)
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    _, met = method._meet(engine, state.w, 0)
    after, _ = method.step(engine, state, 0)
    met = met | met.T
    assert torch.equal(after.w[~met], state.w[~met])
    assert not torch.equal(after.w[met], state.w[met]) and torch.equal(after.w, after.w.T)


def test_close_models_become_neighbours() -> None:
    engine, theta0 = start(classification((6,) * 8))
    method = Dada(sgd=SGD, lam=1.0, fraction=1.0)
    theta = scattered(engine, theta0, scale=0.1)
    for t in theta.values():
        t[::2] += 1.0
    state, _ = method.step(engine, method.init(engine, theta0)._replace(theta=theta), 0)
    group = torch.arange(8) % 2
    same = (group[:, None] == group) & PAIRS
    assert float(state.w[same].min()) > 5 * float(state.w[~same].max())


def test_a_client_without_peers_learns_alone() -> None:
    engine, theta0 = start(classification((6,)))
    mine, local = Dada(sgd=SGD), LocalOnly(sgd=SGD)
    a, b = mine.init(engine, theta0), local.init(engine, theta0)
    for t in range(2):
        (a, info), (b, _) = mine.step(engine, a, t), local.step(engine, b, t)
    assert_trees_close(a.theta, b.theta, 0.0)
    assert info["graph"].tolist() == [[1.0]] and engine.ledger.total_messages == 0


def test_without_a_pull_it_is_local_sgd() -> None:
    engine, theta0 = start(classification())
    mine, local = Dada(sgd=SGD, mu=1e-12), LocalOnly(sgd=SGD)
    a, b = mine.init(engine, theta0), local.init(engine, theta0)
    for t in range(2):
        a, b = mine.step(engine, a, t)[0], local.step(engine, b, t)[0]
    assert_trees_close(a.theta, b.theta, 1e-9)


def test_who_loses_its_last_neighbour_starts_over() -> None:
    engine, theta0 = start(poisoned(classification(), 2))
    method = Dada(sgd=SGD)
    state = method.init(engine, theta0)
    w = torch.zeros(K, K).double()
    w[0, 2] = w[2, 0] = w[1, 3] = w[3, 1] = 0.5  # client 0 knows only the one in quarantine
    after, info = method.step(engine, state._replace(w=w), 0)
    assert not bool(after.w[2].any()) and not bool(after.w[:, 2].any())
    assert bool(after.w[0].any()) and bool(info["graph"][0].any())
    torch.testing.assert_close(info["graph"].sum(dim=1), torch.ones(K).double())


@pytest.mark.parametrize(
    "options",
    [
        {"mu": 0.0},
        {"mu": 1000.0},
        {"lam": -1.0},
        {"fraction": 0.0},
        {"kappa": -1},
        {"graph_steps": 0},
    ],
)
def test_options_that_are_not_possible(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Dada(**options)
