"""LocalOnly, FedAvg, D-PSGD and the reference method against their formulas."""

import pytest
import torch

from scool.algorithms import DPSGD, FedAvg, LocalOnly, Truth
from scool.algorithms.shared.sharing import participants
from scool.data.arrays import from_arrays
from scool.errors import ConfigError
from scool.graph.topology import mixing_matrix
from scool.learning.local_sgd import LocalSGD
from toys import assert_trees_close, assert_trees_equal, classification, poisoned, scattered, start

SIZES = (5, 3, 8, 6)
SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)


def test_local_only_is_training_and_sends_nothing() -> None:
    engine, theta0 = start(classification(SIZES))
    state = LocalOnly(sgd=SGD).init(engine, theta0)
    after, info = LocalOnly(sgd=SGD).step(engine, state, 0)
    assert_trees_equal(after.theta, engine.train(state.theta, SGD, 0).theta)
    assert torch.equal(info["graph"], torch.eye(4).double())
    assert engine.ledger.total_messages == 0


def test_fedavg_weighs_by_samples() -> None:
    engine, theta0 = start(classification(SIZES))
    method = FedAvg(sgd=SGD)
    state = method.init(engine, theta0)
    half = engine.train(state.theta, SGD, 0).theta
    after, info = method.step(engine, state, 0)
    share = torch.tensor(SIZES).double() / sum(SIZES)
    for name, t in half.items():
        common = sum(share[i] * t[i] for i in range(4))
        for i in range(4):
            torch.testing.assert_close(after.theta[name][i], common)
    torch.testing.assert_close(info["graph"], share.expand(4, 4))
    assert engine.ledger.messages == {"server": 8}


def test_fedavg_participation() -> None:
    engine, theta0 = start(classification((4,) * 10))
    method = FedAvg(sgd=SGD, participation=0.3)
    state = method.init(engine, theta0)
    sets = [participants(engine, method.participation, t) for t in range(20)]
    assert all(int(chosen.sum()) == 3 for chosen in sets)
    assert len({tuple(chosen.tolist()) for chosen in sets}) > 10
    assert torch.equal(sets[4], participants(engine, method.participation, 4))
    _, info = method.step(engine, state, 4)
    assert ((info["graph"][0] > 0) == sets[4]).all()
    assert (info["train_loss"].isnan() == ~sets[4]).all()
    assert engine.ledger.messages == {"server": 6}
    assert participants(engine, 0.001, 0).sum() == 1
    big, _ = start(classification((3,) * 100))
    assert participants(big, 0.29, 0).sum() == 29


def test_fedavg_leaves_out_the_quarantined_and_survives_without_anybody() -> None:
    engine, theta0 = start(poisoned(classification(SIZES), 2))
    method = FedAvg(sgd=SGD)
    _, info = method.step(engine, method.init(engine, theta0), 0)
    assert info["graph"][0].tolist() == pytest.approx([5 / 14, 3 / 14, 0, 6 / 14])
    federation = classification((4,))
    engine, theta0 = start(poisoned(federation, 0))
    state = method.init(engine, theta0)
    after, info = method.step(engine, state, 0)
    assert_trees_equal(after.theta, state.theta)
    assert info["graph"].tolist() == [[1.0]]


@pytest.mark.parametrize("participation", [0.0, -0.5, 1.01, float("nan")])
def test_a_fraction_outside_the_unit_interval_is_refused(participation: float) -> None:
    with pytest.raises(ConfigError, match="participation"):
        FedAvg(participation=participation)


@pytest.mark.parametrize("order", ["atc", "cta"])
def test_dpsgd_by_hand(order: str) -> None:
    engine, theta0 = start(classification(SIZES))
    method = DPSGD(sgd=SGD, topology="ring", order=order)  # type: ignore[arg-type]
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    w = mixing_matrix("ring", 4)
    half = engine.train(state.theta, SGD, 0).theta
    after, info = method.step(engine, state, 0)
    torch.testing.assert_close(info["graph"], w)
    expected = {}
    for name, t in state.theta.items():
        source = half[name] if order == "atc" else t
        mixed = torch.einsum("ij,j...->i...", w, source)
        expected[name] = mixed if order == "atc" else mixed - (t - half[name])
    assert_trees_close(after.theta, expected)
    assert engine.ledger.messages == {"mix": 8}  # every edge, both directions


def test_truth_mixes_updates_by_the_true_graph_and_needs_one() -> None:
    federation = classification(SIZES)
    engine, theta0 = start(federation)
    method = Truth(sgd=SGD)
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    half = engine.train(state.theta, SGD, 0).theta
    after, _ = method.step(engine, state, 0)
    assert federation.truth is not None
    for name, t in state.theta.items():
        expected = t + torch.einsum("ij,j...->i...", federation.truth, half[name] - t)
        torch.testing.assert_close(after.theta[name], expected)
    own = [(torch.randn(4, 4), torch.tensor([0, 1, 2, 0]))] * 3
    engine, theta0 = start(from_arrays(own))
    with pytest.raises(ConfigError, match="true graph"):
        method.init(engine, theta0)
