"""DPFL against its search written out, its budget, its groups and its traffic."""

import pytest
import torch

from reference.judged import loss_on, weighted
from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import DPFL
from scool.data.build import with_validation
from scool.data.federation import Federation
from scool.errors import ConfigError, DataError
from scool.learning.local_sgd import LocalSGD
from scool.randomness import derive, uniform
from toys import (
    assert_trees_close,
    assert_trees_equal,
    classification,
    poisoned,
    regression,
    softmax_regression,
    start,
    tanh_net,
)

SIZES = (8, 6, 9, 7, 8, 6)
K = len(SIZES)
SGD = LocalSGD(lr=0.3, epochs=2, batch_size=3)


def federation_of(sizes: tuple[int, ...] = SIZES) -> Federation:
    return with_validation(classification(sizes), 0.4, seed=1)


def searched(federation, half, client: int, peers: list[int], budget: int, round: int) -> set[int]:
    """The double greedy search of one client, with sets and a loop."""
    sizes, module = federation.train.mask.sum(dim=1).tolist(), tanh_net()

    def reward(partners: set[int]) -> float:
        total = sum(sizes[j] for j in partners)
        share = [sizes[j] / total if j in partners else 0.0 for j in range(K)]
        return -float(loss_on(federation, "val", module, weighted(share, half), client))

    luck = uniform(derive(3, "dpfl", round), torch.tensor([client]), (2 * K,))[0].tolist()
    x, y = {client}, {client, *peers}
    for s, j in enumerate(sorted(peers, key=lambda j: luck[j])):
        if len(x) > budget:
            break
        a = max(0.0, reward(x | {j}) - reward(x))
        b = max(0.0, reward(y - {j}) - reward(y))
        if luck[K + s] < (a / (a + b) if a + b else 1.0):
            x = x | {j}
        else:
            y = y - {j}
    return x


@pytest.mark.parametrize("fraction", [0.34, 1.0])
def test_four_rounds_by_hand(fraction: float) -> None:
    federation, module = federation_of(), tanh_net()
    engine, theta0 = start(federation, module)
    method = DPFL(sgd=SGD, fraction=fraction, warmup=1, every=2)
    state, models = method.init(engine, theta0), [theta0] * K
    sizes = federation.train.mask.sum(dim=1).double()
    pool = [[j for j in range(K) if j != i] for i in range(K)]
    partners = [{i} for i in range(K)]
    for t in range(4):
        state, info = method.step(engine, state, t)
        half = [local_steps(federation, module, m, i, SGD, t) for i, m in enumerate(models)]
        if t in (1, 3):
            budget = max(1, int(fraction * K))
            partners = [searched(federation, half, i, pool[i], budget, t) for i in range(K)]
        if t == 1:
            pool = [sorted(found - {i}) for i, found in enumerate(partners)]
        graph = torch.zeros(K, K, dtype=torch.float64)
        for i, found in enumerate(partners):
            graph[i, sorted(found)] = sizes[sorted(found)] / sizes[sorted(found)].sum()
        torch.testing.assert_close(info["graph"], graph)
        models = [weighted(graph[i].tolist(), half) for i in range(K)]
        assert_trees_close(state.theta, stacked(models), 1e-9)
    off = sum(len(found) - 1 for found in partners)
    assert 0 < off <= K * max(1, int(fraction * K))  # some chose partners, none too many


def test_it_leaves_out_those_whose_task_differs() -> None:
    federation = with_validation(regression((12,) * 6), 0.3, seed=1)
    engine, theta0 = start(federation, softmax_regression(outputs=2))
    method = DPFL(sgd=LocalSGD(lr=0.1, epochs=3, batch_size=8), fraction=0.5, warmup=5)
    state = method.init(engine, theta0)
    for t in range(12):
        state, _ = method.step(engine, state, t)
    same = torch.arange(6)[:, None] % 2 == torch.arange(6) % 2
    assert not bool(state.partners[~same].any())
    assert bool((state.partners & ~torch.eye(6, dtype=torch.bool)).any())


def test_the_first_search_costs_all_models_and_later_ones_those_of_the_pool() -> None:
    engine, theta0 = start(federation_of())
    method = DPFL(sgd=SGD, fraction=0.5, every=2)
    state = method.init(engine, theta0)
    sent = []
    for t in range(4):
        state, _ = method.step(engine, state, t)
        sent.append(engine.ledger.close_round().total_bytes // size_of(engine.replicate(theta0)))
        pool, partners = int(state.pool.sum()), int(state.partners.sum()) - K
    assert sent[:2] == [0, K * (K - 1)] and sent[3] == pool
    assert partners <= pool < K * (K - 1)


def test_a_client_that_joins_is_searched_once_by_all() -> None:
    engine, theta0 = start(federation_of())
    method = DPFL(sgd=SGD, fraction=0.5)
    engine.health.absent = torch.arange(K) == 5
    state = method.init(engine, theta0)
    for t in range(3):
        state, _ = method.step(engine, state, t)
    assert not bool(state.pool[:, 5].any()) and bool(state.untried[:5, 5].all())
    engine.health.absent = torch.zeros(K, dtype=torch.bool)
    state, _ = method.step(engine, method.admit(state, torch.tensor([5])), 3)
    assert not bool(state.untried.any())
    assert torch.equal(state.pool[:, 5], state.partners[:, 5] & (torch.arange(K) != 5))


def test_nobody_learns_from_who_is_in_quarantine() -> None:
    engine, theta0 = start(poisoned(federation_of(), 2))
    method = DPFL(sgd=SGD, warmup=0, fraction=1.0)
    _, info = method.step(engine, method.init(engine, theta0), 0)
    alone = torch.eye(K, dtype=torch.float64)[2]
    assert torch.equal(info["graph"][2], alone) and torch.equal(info["graph"][:, 2], alone)


def test_one_client_learns_alone() -> None:
    engine, theta0 = start(federation_of((9,)))
    method = DPFL(sgd=SGD, warmup=0)
    state, info = method.step(engine, method.init(engine, theta0), 0)
    alone = engine.train(engine.replicate(theta0), SGD, 0).theta
    assert_trees_equal(state.theta, alone)
    assert info["graph"].tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("name", "value"), [("fraction", 0.0), ("warmup", -1), ("every", 0), ("validation", 1.0)]
)
def test_impossible_options_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        DPFL(**{name: value})  # type: ignore[arg-type]


def test_validation_samples_are_needed() -> None:
    engine, theta0 = start(classification())
    with pytest.raises(DataError, match="no validation samples"):
        DPFL().init(engine, theta0)
