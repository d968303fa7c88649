"""PENS against its formula, its choice of neighbours and its traffic."""

import pytest
import torch

from reference.judged import loss_on, weighted
from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import PENS
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
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
ALL = CrossDraw(cross_samples=0)


def test_two_rounds_of_selection_by_hand() -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = PENS(sgd=SGD, draw=ALL, fraction=1.0, top=2)
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    models = [one(state.theta, i) for i in range(K)]
    picked = torch.zeros(K, K, dtype=torch.int64)
    for t in range(2):
        state, info = method.step(engine, state, t)
        half = [local_steps(federation, module, m, i, SGD, t) for i, m in enumerate(models)]
        models = []
        for i in range(K):
            losses = [float(loss_on(federation, "train", module, h, i)) for h in half]
            best = sorted((j for j in range(K) if j != i), key=lambda j: losses[j])[:2]
            picked[i, best] += 1
            row = [1 / 3 if j in best or j == i else 0.0 for j in range(K)]
            torch.testing.assert_close(info["graph"][i], torch.tensor(row, dtype=torch.float64))
            models.append(weighted(row, half))
    assert_trees_close(state.theta, stacked(models), 1e-10)
    assert torch.equal(state.picked, picked)
    assert engine.ledger.messages == {"peer_models": 2 * K * (K - 1)}
    assert engine.ledger.total_bytes == 2 * K * (K - 1) * size_of(state.theta)


def test_selection_tries_a_few_random_peers() -> None:
    k = 10
    engine, theta0 = start(classification((4,) * k))
    method = PENS(sgd=SGD, fraction=0.3, top=2, select_rounds=30)
    state = method.init(engine, theta0)
    for t in range(12):
        before = state.picked
        state, info = method.step(engine, state, t)
        assert bool(((state.picked - before).sum(dim=1) == 2).all())
        assert bool(((info["graph"] > 0).sum(dim=1) == 3).all())
        assert engine.ledger.close_round().messages == {"peer_models": 3 * k}
    assert int((state.picked > 0).sum()) > 3 * k  # not always the same peers
    assert not bool(state.picked.diagonal().any())


def test_neighbours_are_those_picked_more_often_than_by_chance() -> None:
    method = PENS(top=2, select_rounds=6)  # chance: 6 * 2 / 4 = 3 times
    picked = torch.tensor(
        [[0, 4, 3, 4, 1], [9, 0, 0, 0, 3], [3, 3, 0, 3, 3], [0, 0, 0, 0, 0], [5, 5, 1, 1, 0]]
    )
    found = method._neighbours(picked, ~torch.eye(5, dtype=torch.bool))
    assert [row.nonzero()[:, 0].tolist() for row in found] == [[1, 3], [0], [0], [0], [0, 1]]


def test_after_the_selection_clients_gossip_with_their_neighbours() -> None:
    k = 6
    engine, theta0 = start(classification((5,) * k))
    method = PENS(sgd=SGD, top=2, select_rounds=3)
    picked = torch.zeros(k, k, dtype=torch.int64)
    picked[0, 1:5] = 3  # four neighbours
    picked[1, 4] = 2  # one
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0), picked=picked)
    rows = []
    for t in range(3, 15):
        half = engine.train(state.theta, SGD, t).theta
        after, info = method.step(engine, state, t)
        graph = info["graph"]
        expected = {n: torch.einsum("ij,j...->i...", graph, x) for n, x in half.items()}
        assert_trees_close(after.theta, expected, 1e-12)
        assert torch.equal(after.picked, picked)
        assert graph[1].tolist() == [0, 0.5, 0, 0, 0.5, 0]
        assert int((graph[0] > 0).sum()) == 3 and float(graph[0, 0]) == pytest.approx(1 / 3)
        assert float(graph[0, 5]) == 0
        edges = int((graph > 0).sum()) - k
        assert engine.ledger.close_round().messages == {"mix": edges}
        rows.append(tuple(graph[0].tolist()))
    assert len(set(rows)) > 3  # two random ones of the four


def test_nobody_tries_a_client_in_quarantine() -> None:
    engine, theta0 = start(poisoned(classification(), 1))
    method = PENS(sgd=SGD, fraction=1.0, top=3, select_rounds=1)
    state = method.init(engine, theta0)
    for t in range(2):
        state, info = method.step(engine, state, t)
        assert info["graph"][:, 1].tolist() == [0, 1, 0, 0]
        if t == 0:
            assert info["graph"][0].tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    assert not bool(state.picked[:, 1].any())


def test_a_model_whose_loss_is_no_number_is_not_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, theta0 = start(classification())
    losses = torch.rand(K, K, dtype=torch.float64)
    losses[:, 2] = torch.nan
    monkeypatch.setattr(engine, "peer_loss", lambda *_: losses)
    method = PENS(sgd=SGD, fraction=1.0, top=1)
    state, info = method.step(engine, method.init(engine, theta0), 0)
    assert info["graph"][:, 2].tolist() == [0, 0, 0.5, 0]
    assert state.picked.sum(dim=1).tolist() == [1] * K


@pytest.mark.parametrize("options", [{"fraction": 0.0}, {"top": 0}, {"select_rounds": 0}])
def test_options_that_are_not_possible(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        PENS(**options)
