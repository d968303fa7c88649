"""FedFomo against its formula, its limits, its choice of candidates and its traffic."""

import pytest
import torch

from reference.judged import inner, loss_on, minus, weighted
from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import FedFomo
from scool.algorithms.shared.sharing import participants
from scool.data.build import with_validation
from scool.errors import ConfigError, DataError
from scool.learning.local_sgd import LocalSGD
from toys import (
    assert_trees_close,
    assert_trees_equal,
    classification,
    one,
    poisoned,
    scattered,
    start,
    tanh_net,
)

SIZES = (8, 6, 9, 7)
K = len(SIZES)
SGD = LocalSGD(lr=0.3, epochs=2, batch_size=3)
EVERYONE = FedFomo(sgd=SGD, fraction=1.0, epsilon=0.0)


def federation_of(sizes: tuple[int, ...] = SIZES):
    return with_validation(classification(sizes), 0.4, seed=1)


def test_three_rounds_by_hand() -> None:
    federation, module = federation_of(), tanh_net()
    engine, theta0 = start(federation, module)
    state = EVERYONE.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    a = [one(state.theta, i) for i in range(K)]
    affinity = torch.zeros(K, K).double()
    for t in range(3):
        state, info = EVERYONE.step(engine, state, t)
        sent = [local_steps(federation, module, m, i, SGD, t) for i, m in enumerate(a)]
        after = []
        for i in range(K):
            before = float(loss_on(federation, "val", module, a[i], i))
            omega = []
            for n in range(K):
                gain = before - float(loss_on(federation, "val", module, sent[n], i))
                away = minus(sent[n], a[i])
                omega.append(gain / inner(away, away) ** 0.5)
                affinity[i, n] += omega[n]
            positive = [max(0.0, o) for o in omega]
            total = sum(positive)
            share = [p / total for p in positive] if total else [float(i == n) for n in range(K)]
            torch.testing.assert_close(info["graph"][i], torch.tensor(share, dtype=torch.float64))
            after.append(weighted(share, sent) if total else a[i])
        a = after
        assert_trees_close(state.sent, stacked(sent), 1e-10)
    assert_trees_close(state.theta, stacked(a), 1e-9)
    torch.testing.assert_close(state.affinity, affinity, rtol=1e-7, atol=1e-10)
    assert 0 < int((info["graph"] == 0).sum()) < K * K  # some helped and some did not


def test_fetched_models_are_all_that_travels() -> None:
    engine, theta0 = start(federation_of((6,) * 10))
    method = FedFomo(sgd=SGD, fraction=0.3)
    method.step(engine, method.init(engine, theta0), 0)
    assert engine.ledger.messages == {"peer_models": 30}
    assert engine.ledger.total_bytes == 30 * size_of(engine.replicate(theta0))


def test_alone_a_client_takes_its_own_step_where_that_helps_and_else_stays() -> None:
    federation = with_validation(classification((9,)), 0.4, seed=1)
    engine, theta0 = start(federation)
    for lr, helps in ((0.1, True), (50.0, False)):
        method = FedFomo(sgd=LocalSGD(lr=lr, epochs=3, batch_size=3))
        state = method.init(engine, theta0)
        after, info = method.step(engine, state, 0)
        assert_trees_equal(after.theta, after.sent if helps else state.theta)
        assert info["graph"].tolist() == [[1.0]]


def chosen(method: FedFomo, affinity: torch.Tensor, rounds: int = 1) -> torch.Tensor:
    """(rounds, K, K) bool."""
    engine, _ = start(federation_of((4,) * len(affinity)))
    return torch.stack([method._candidates(engine, affinity, t) for t in range(rounds)])


def test_candidates_are_the_best_by_affinity() -> None:
    k = 10
    affinity = torch.rand(k, k, generator=torch.Generator().manual_seed(0)).double()
    found = chosen(FedFomo(fraction=0.3, epsilon=0.0), affinity)[0]
    best = affinity.fill_diagonal_(-1).argsort(dim=1, descending=True)[:, :3]
    assert all(set(found[i].nonzero()[:, 0].tolist()) == set(best[i].tolist()) for i in range(k))


def test_equal_affinities_are_drawn_and_exploration_fades() -> None:
    k = 10
    nothing = torch.zeros(k, k).double()
    found = chosen(FedFomo(fraction=0.3, epsilon=0.0), nothing, rounds=40)
    assert bool((found.sum(dim=2) == 3).all()) and not bool(found.diagonal(dim1=1, dim2=2).any())
    often = found.double().mean(dim=0)[~torch.eye(k, dtype=torch.bool)]
    assert 0.05 < float(often.min()) and float(often.max()) < 0.7  # 1/3 on average
    known = torch.arange(k).double().expand(k, -1).clone()  # the last three are the best
    explores = FedFomo(fraction=0.3, epsilon=0.3, epsilon_decay=0.0)
    found = chosen(explores, known, rounds=200)[:, : k - 3]
    strange = float(found[:, :, : k - 3].sum()) / float(found.sum())
    assert 0.15 < strange < 0.3  # of 0.3 random places, 7 of 9 peers are not among the best
    fades = chosen(FedFomo(fraction=0.3, epsilon=0.3, epsilon_decay=0.05), known, rounds=10)
    assert bool(fades[:3, :, : k - 3].any()) and not bool(fades[6:, : k - 3, : k - 3].any())
    assert torch.equal(fades, chosen(FedFomo(fraction=0.3), known, rounds=10))


def test_who_does_not_take_part_keeps_its_models() -> None:
    engine, theta0 = start(federation_of((6,) * 6))
    method = FedFomo(sgd=SGD, fraction=0.5, participation=0.5)
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    takes_part = participants(engine, 0.5, 0)
    after, info = method.step(engine, state, 0)
    for n in after.theta:
        for tree, before in ((after.theta, state.theta), (after.sent, state.sent)):
            assert torch.equal(tree[n][~takes_part], before[n][~takes_part])
        assert not torch.equal(after.sent[n][takes_part], state.sent[n][takes_part])
    assert torch.equal(info["graph"][~takes_part], torch.eye(6).double()[~takes_part])
    assert torch.equal(info["train_loss"].isfinite(), takes_part)
    assert engine.ledger.messages == {"peer_models": 3 * 3}


def test_nobody_takes_from_a_client_in_quarantine() -> None:
    engine, theta0 = start(poisoned(federation_of(), 1))
    state = EVERYONE.init(engine, theta0)
    for t in range(2):
        state, info = EVERYONE.step(engine, state, t)
    assert info["graph"][:, 1].tolist() == [0, 1, 0, 0]
    assert not bool(state.affinity[:, 1].any()) and not bool(state.affinity[1].any())


@pytest.mark.parametrize(
    "options",
    [{"fraction": 0.0}, {"epsilon": 1.5}, {"epsilon_decay": -1.0}, {"participation": 0.0}],
)
def test_options_that_are_not_possible(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        FedFomo(**options)


def test_validation_samples_are_needed() -> None:
    engine, theta0 = start(classification(SIZES))
    with pytest.raises(DataError, match="client 0 has no validation samples"):
        FedFomo().init(engine, theta0)
