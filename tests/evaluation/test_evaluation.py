"""Masked accuracy, R2, and how far a graph is from the truth."""

import pytest
import torch

from scool.data.arrays import from_arrays
from scool.evaluation.scores import adjusted_rand, communities, correct, evaluate, graph_l1
from scool.graph.mixing import normalise_rows
from toys import classification, regression, scattered, softmax_regression, start


def test_d30_renaming_classes_leaves_masked_accuracy_unchanged() -> None:
    """Catches the remapping quirk, e.g. a client with the class set {8, 0}."""
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 10, generator=rng)
    for own in ([8, 0], [3], [1, 2, 9]):
        targets = torch.tensor(own)[torch.randint(len(own), (50,), generator=rng)]
        classes = torch.zeros(10, dtype=torch.bool)
        classes[own] = True
        plain = correct(logits, targets, classes)
        best = [own[int(row[own].argmax())] for row in logits]
        assert plain.tolist() == [float(b == t) for b, t in zip(best, targets, strict=True)]
        order = torch.randperm(10, generator=rng)  # class c becomes order[c]
        inverse = order.argsort()
        renamed = correct(logits[:, inverse], order[targets], classes[inverse])
        assert torch.equal(renamed, plain)


def test_scores_of_a_federation() -> None:
    federation = regression()
    engine, theta0 = start(federation, softmax_regression(outputs=2))
    theta = scattered(engine, theta0)
    scores = evaluate(engine, theta, federation)
    assert scores.unmasked is None
    for i in range(4):
        x = federation.test.x[federation.test.index[i]].double()
        y = federation.test.y[i].double()
        outputs = x @ theta["0.weight"][i].T + theta["0.bias"][i]
        r2 = 1 - (outputs - y).square().sum() / (y - y.mean(dim=0)).square().sum()
        assert abs(float(scores.score[i]) - float(r2)) < 1e-6
    federation = classification()
    engine, theta0 = start(federation)
    scores = evaluate(engine, engine.replicate(theta0), federation)
    assert bool(((scores.score >= 0) & (scores.score <= 1)).all())


def test_unmasked_accuracy_lets_a_model_answer_with_any_class() -> None:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 20, 4, generator=rng), torch.arange(20) % 2  # two classes of three
    federation = from_arrays([(x[0], y, x[1], y)] * 4, num_classes=3)
    engine, theta0 = start(federation, softmax_regression())
    theta = scattered(engine, theta0)
    masked, unmasked = evaluate(engine, theta, federation)[::2]
    assert unmasked is not None
    for i in range(federation.num_clients):
        x, y = federation.test.x[federation.test.index[i]].double(), federation.test.y[i]
        outputs = x @ theta["0.weight"][i].T + theta["0.bias"][i]
        right = (outputs.argmax(dim=1) == y).double().mean()
        assert float(unmasked[i]) == pytest.approx(float(right))
        right = (outputs[:, :2].argmax(dim=1) == y).double().mean()
        assert float(masked[i]) == pytest.approx(float(right))
    assert not torch.equal(masked, unmasked)


def test_graph_distance() -> None:
    truth = torch.full((4, 4), 0.25)
    assert graph_l1(truth, truth) == 0 and graph_l1(3 * truth, truth) == pytest.approx(0)
    apart = torch.eye(4).roll(1, 0)
    assert graph_l1(apart, torch.eye(4)) == 2
    empty = torch.zeros(4, 4)
    assert torch.equal(normalise_rows(empty), torch.eye(4))


@pytest.mark.parametrize("K", [1, 2, 12])
def test_communities_of_planted_and_degenerate_graphs(K: int) -> None:
    groups = torch.arange(K) % 3
    same = (groups[:, None] == groups[None]).double()
    noisy = same + 0.05 * torch.rand(K, K)
    found = communities(noisy, 3)
    assert found.shape == (K,)
    if K == 12:
        assert adjusted_rand(found, groups) == 1.0
    assert communities(torch.eye(K), 3).tolist() == list(range(K))
    assert len(set(communities(torch.ones(K, K), 1).tolist())) == 1


@pytest.mark.parametrize("seed", range(20))
def test_adjusted_rand_equals_scikit_learns(seed: int) -> None:
    from sklearn.metrics import adjusted_rand_score

    rng = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(0, high, (1 + 2 * seed,), generator=rng) for high in (4, 1 + seed % 5))
    expected = adjusted_rand_score(a.numpy(), b.numpy())
    assert adjusted_rand(a, b) == pytest.approx(expected, abs=1e-12)
