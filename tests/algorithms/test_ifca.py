"""IFCA against its formula, its limits and its traffic."""

import pytest
import torch

from reference.local_steps import average, local_steps, own_loss, stacked
from scool.algorithms import IFCA, FedAvg
from scool.data.federation import Federation
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from scool.run.loop import fit
from toys import (
    SIZES,
    assert_trees_close,
    assert_trees_equal,
    classification,
    one,
    poisoned,
    regression,
    start,
    tanh_net,
)

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
K = len(SIZES)


@pytest.mark.parametrize("federation", [classification(), regression()], ids=["class", "regress"])
def test_three_rounds_by_hand(federation: Federation) -> None:
    module = tanh_net(outputs=federation.num_outputs)
    engine, theta0 = start(federation, module)
    method = IFCA(sgd=SGD, num_clusters=3)
    state = method.init(engine, theta0)
    clusters = [one(state.clusters, m) for m in range(3)]
    for t in range(3):
        state, info = method.step(engine, state, t)
        losses = [[own_loss(federation, module, c, i) for c in clusters] for i in range(K)]
        chosen = [row.index(min(row)) for row in losses]
        half = [
            local_steps(federation, module, clusters[m], i, SGD, t) for i, m in enumerate(chosen)
        ]
        graph = torch.zeros(K, K).double()
        for m in range(3):
            members = [i for i in range(K) if chosen[i] == m]
            if members:
                sizes = [SIZES[i] for i in members]
                clusters[m] = average([half[i] for i in members], sizes)
            for i in members:
                for j in members:
                    graph[i, j] = SIZES[j] / sum(SIZES[j] for j in members)
        assert info["blocks"].tolist() == chosen
        torch.testing.assert_close(info["graph"], graph)
        assert_trees_close(state.clusters, stacked(clusters), 1e-10)
        assert_trees_close(state.theta, stacked([clusters[m] for m in chosen]), 1e-10)
    assert len(set(chosen)) > 1  # or the test says little


def test_the_clusters_start_apart_and_the_first_at_theta0() -> None:
    engine, theta0 = start(classification())
    clusters = IFCA(num_clusters=3).init(engine, theta0).clusters
    assert_trees_equal(clusters, IFCA(num_clusters=3).init(engine, theta0).clusters)
    nearer = IFCA(num_clusters=3, spread=0.6).init(engine, theta0).clusters
    other = IFCA(num_clusters=3).init(start(classification(), seed=4)[0], theta0).clusters
    for n, p in theta0.items():
        assert torch.equal(clusters[n][0], p)
        for m in (1, 2):
            torch.testing.assert_close(clusters[n][m].flatten().msort(), p.flatten().msort())
            expected = p.mean() + 0.8 * (p - p.mean()) + 0.6 * (clusters[n][m] - p.mean())
            torch.testing.assert_close(nearer[n][m], expected)
    starts = [*clusters["0.weight"], other["0.weight"][1]]
    assert not any(torch.equal(a, b) for i, a in enumerate(starts) for b in starts[:i])


def test_one_cluster_is_fedavg() -> None:
    engine, theta0 = start(classification())
    mine, fedavg = IFCA(sgd=SGD, num_clusters=1), FedAvg(sgd=SGD)
    a, b = mine.init(engine, theta0), fedavg.init(engine, theta0)
    for t in range(3):
        a, found = mine.step(engine, a, t)
        b, expected = fedavg.step(engine, b, t)
        assert_trees_close(a.theta, b.theta)
        torch.testing.assert_close(found["graph"], expected["graph"])


def test_a_cluster_that_nobody_chose_keeps_its_model() -> None:
    engine, theta0 = start(classification())
    method = IFCA(sgd=SGD, num_clusters=9)
    state = method.init(engine, theta0)
    after, info = method.step(engine, state, 0)
    chosen = set(info["blocks"].tolist())
    assert len(chosen) < 9
    for n, t in after.clusters.items():
        for m in range(9):
            assert torch.equal(t[m], state.clusters[n][m]) == (m not in chosen)


def test_traffic_is_a_sum_of_all_cluster_models() -> None:
    engine, theta0 = start(classification())
    method = IFCA(sgd=SGD, num_clusters=3)
    state = method.init(engine, theta0)
    method.step(engine, state, 0)
    size = sum(p.numel() * 8 for p in theta0.values())
    assert engine.ledger.messages == {"sum": 2 * (K - 1) * len(theta0)}
    assert engine.ledger.total_bytes == 2 * (K - 1) * 3 * size


@pytest.mark.parametrize("client", range(K))
def test_quarantine_leaves_the_others_alone(client: int) -> None:
    engine, theta0 = start(poisoned(classification(), client))
    method = IFCA(sgd=SGD, num_clusters=3)
    state, info = method.step(engine, method.init(engine, theta0), 0)
    others = [i for i in range(K) if i != client]
    assert bool((info["graph"][others, client] == 0).all())
    torch.testing.assert_close(info["graph"].sum(dim=1), torch.ones(K).double())
    assert all(bool(t.isfinite().all()) for t in state.clusters.values())


def test_planted_groups_are_found() -> None:
    """Two groups with other names for the same classes, two clusters."""
    federation = classification((12,) * 8)
    sgd = LocalSGD(lr=0.1, epochs=5, batch_size=4)
    method = IFCA(sgd=sgd, num_clusters=2)
    result = fit(federation, "mlp", method, rounds=8, seed=1, device="cpu")
    assert result.history[-1]["graph_ari"] == 1.0
    assert len(set(result.history[-1]["blocks"])) == 2


@pytest.mark.parametrize("options", [{"num_clusters": 0}, {"spread": 0.0}, {"spread": 1.1}])
def test_impossible_options_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        IFCA(**options)
