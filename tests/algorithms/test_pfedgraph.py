"""pFedGraph against its formula, the optimality of its rows, its limits and its traffic."""

import pytest
import torch
from torch import Tensor

from reference.judged import inner, minus, weighted
from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import FedAvg, PFedGraph
from scool.algorithms.pfedgraph import cosines, project_rows
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
SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)


def naive_projection(x: list[float]) -> list[float]:
    """Try every shift by bisection: sum_j max(0, x_j - shift) = 1."""
    low, high = min(x) - 1, max(x)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(0, v - middle) for v in x) > 1 else (low, middle)
    return [max(0, v - low) for v in x]


@pytest.mark.parametrize("mu", [0.0, 0.6])
@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_two_rounds_by_hand(alpha: float, mu: float) -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = PFedGraph(sgd=SGD, alpha=alpha, mu=mu)
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0, scale=0.1))
    models = [one(state.theta, i) for i in range(K)]
    for t in range(2):
        state, info = method.step(engine, state, t)
        half = [
            local_steps(federation, module, m, i, SGD, t, anchor=m, strength=mu)
            for i, m in enumerate(models)
        ]
        moved = [minus(h, theta0) for h in half]
        rows = []
        for i in range(K):
            wanted = []
            for j in range(K):
                length = (inner(moved[i], moved[i]) * inner(moved[j], moved[j])) ** 0.5
                cosine = inner(moved[i], moved[j]) / length
                cosine = 1.0 if cosine > 0.9 else cosine
                wanted.append(SIZES[j] / sum(SIZES) + cosine / (2 * alpha))
            rows.append(naive_projection(wanted))
        torch.testing.assert_close(
            info["graph"], torch.tensor(rows, dtype=torch.float64), rtol=0, atol=1e-9
        )
        models = [weighted(row, half) for row in rows]
    assert_trees_close(state.theta, stacked(models), 1e-8)
    assert engine.ledger.messages == {"server": 2 * 2 * K}
    assert engine.ledger.total_bytes == 2 * 2 * K * size_of(state.theta)


def test_rows_minimise_the_objective() -> None:
    """No feasible row near the found one is better: alpha |w - p|^2 - <w, c>."""
    rng = torch.Generator().manual_seed(0)
    c = 2 * torch.rand(6, 6, generator=rng, dtype=torch.float64) - 1
    p = torch.rand(6, generator=rng, dtype=torch.float64)
    p = p / p.sum()
    w = project_rows(p + c / (2 * 0.8))

    def objective(rows: Tensor) -> Tensor:
        return 0.8 * (rows - p).square().sum(dim=1) - (rows * c).sum(dim=1)

    torch.testing.assert_close(w.sum(dim=1), torch.ones(6, dtype=torch.float64))
    assert bool((w >= 0).all()) and bool((w == 0).any())
    for _ in range(200):
        other = torch.rand(6, 6, generator=rng, dtype=torch.float64) ** 3
        other = 0.9 * w + 0.1 * other / other.sum(dim=1, keepdim=True)
        assert bool((objective(other) >= objective(w)).all())


def test_with_a_large_alpha_it_is_fedavg() -> None:
    engine, theta0 = start(classification())
    mine, other = PFedGraph(sgd=SGD, alpha=1e12), FedAvg(sgd=SGD)
    a, b = mine.init(engine, theta0), other.init(engine, theta0)
    for t in range(2):
        (a, info), (b, theirs) = mine.step(engine, a, t), other.step(engine, b, t)
    torch.testing.assert_close(info["graph"], theirs["graph"])
    assert_trees_close(a.theta, b.theta, 1e-9)


def test_with_a_small_alpha_everyone_is_alone_unless_models_moved_alike() -> None:
    engine, theta0 = start(classification())
    method = PFedGraph(sgd=SGD, alpha=1e-3)
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0, scale=3.0))
    _, info = method.step(engine, state, 0)
    torch.testing.assert_close(info["graph"], torch.eye(K, dtype=torch.float64))
    x = torch.tensor([[1.0, 0.0], [0.99, 0.05], [0.0, 1.0], [0.0, 0.0]]).double()
    found = cosines(x @ x.T)
    assert found[0].tolist() == [1, 1, 0, 0] and found[3].tolist() == [0, 0, 0, 1]


def test_who_is_in_quarantine_gets_nothing_and_gives_nothing() -> None:
    engine, theta0 = start(poisoned(classification(), 1))
    method = PFedGraph(sgd=SGD, alpha=1e12)
    _, info = method.step(engine, method.init(engine, theta0), 0)
    assert info["graph"][:, 1].tolist() == [0, 1, 0, 0]
    assert info["graph"][0].tolist() == pytest.approx([5 / 19, 0, 8 / 19, 6 / 19])
    assert engine.ledger.messages == {"server": 2 * 3}
    engine, theta0 = start(poisoned(classification((8,) * 5), 1))
    method = PFedGraph(sgd=LocalSGD(lr=1e-9), alpha=5.0)
    state = method.init(engine, theta0)
    side = torch.tensor([1.0, 0.0, -1.0, -1.0, -1.0])  # client 0 against the rest
    theta = {n: t + side.view(-1, *[1] * (t.dim() - 1)) for n, t in state.theta.items()}
    _, info = method.step(engine, state._replace(theta=theta), 0)
    assert info["graph"][0].tolist() == pytest.approx([0.4, 0, 0.2, 0.2, 0.2])
    method = PFedGraph(sgd=SGD, alpha=1e12)
    engine, theta0 = start(poisoned(classification((4,)), 0))
    state = method.init(engine, theta0)
    after, info = method.step(engine, state, 0)
    assert after is state and info["graph"].tolist() == [[1.0]]


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"mu": -0.1}, {"mu": 1000.0}])
def test_options_that_are_not_possible(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        PFedGraph(**options)
