"""L2C against its formula, torch's own Adam, and its traffic."""

import pytest
import torch

from reference.judged import gradient_on, inner, loss_on, minus, softmax, weighted
from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import L2C
from scool.algorithms.shared.learned_weights import score_gradient, softmax_rows
from scool.data.build import with_validation
from scool.errors import ConfigError, DataError
from scool.learning.local_sgd import LocalSGD
from toys import assert_trees_close, classification, one, poisoned, scattered, start, tanh_net

SIZES = (8, 6, 9, 7)
K = len(SIZES)
SGD = LocalSGD(lr=0.3, epochs=2, batch_size=3)


def federation_of(sizes: tuple[int, ...] = SIZES):
    return with_validation(classification(sizes), 0.4, seed=1)


@pytest.mark.parametrize("average", ["updates", "models"])
def test_three_rounds_by_hand(average: str) -> None:
    federation, module = federation_of(), tanh_net()
    engine, theta0 = start(federation, module)
    method = L2C(sgd=SGD, average=average, meta_lr=0.2, meta_decay=0.03)  # type: ignore
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    models = [one(state.theta, i) for i in range(K)]
    alpha = torch.zeros(K, K, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([alpha], lr=0.2, weight_decay=0.03)
    for t in range(3):
        state, info = method.step(engine, state, t)
        w = [softmax(row) for row in alpha.tolist()]
        torch.testing.assert_close(info["graph"], torch.tensor(w, dtype=torch.float64))
        half = [local_steps(federation, module, m, i, SGD, t) for i, m in enumerate(models)]
        parts = half
        if average == "updates":
            parts = [minus(h, m) for h, m in zip(half, models, strict=True)]
        mixed = [weighted(row, parts) for row in w]
        if average == "updates":
            mixed = [{n: m[n] + x[n] for n in m} for m, x in zip(models, mixed, strict=True)]
        alpha.grad = torch.zeros_like(alpha)
        for i in range(K):
            slope = gradient_on(federation, "val", module, mixed[i], i)
            along = [inner(slope, part) for part in parts]
            mean = sum(w[i][m] * along[m] for m in range(K))
            for j in range(K):
                alpha.grad[i, j] = w[i][j] * (along[j] - mean)
        adam.step()
        models = mixed
    assert_trees_close(state.theta, stacked(models), 1e-9)
    torch.testing.assert_close(state.scores["alpha"], alpha.detach(), rtol=0, atol=1e-7)
    assert float(state.scores["alpha"].abs().max()) > 0.1


def test_the_gradient_is_that_of_the_validation_loss() -> None:
    """By finite differences in the scores."""
    federation, module = federation_of(), tanh_net()
    engine, theta0 = start(federation, module)
    theta, half = (scattered(engine, theta0, seed=seed) for seed in (1, 2))
    parts = {n: half[n] - theta[n] for n in theta}
    scores = torch.randn(K, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    everyone = torch.ones(K, K, dtype=torch.bool)

    def losses(s: torch.Tensor) -> list[float]:
        w = softmax_rows(s, everyone, everyone[0])
        mixed = {n: theta[n] + torch.einsum("ij,j...->i...", w, parts[n]) for n in theta}
        return [float(loss_on(federation, "val", module, one(mixed, i), i)) for i in range(K)]

    w = softmax_rows(scores, everyone, everyone[0])
    mixed = {n: t + engine.mix(w, parts)[n] for n, t in theta.items()}
    found = score_gradient(engine, w, mixed, parts)
    for i in range(K):
        for j in range(K):
            shift = torch.zeros(K, K, dtype=torch.float64)
            shift[i, j] = 1e-6
            slope = (losses(scores + shift)[i] - losses(scores - shift)[i]) / 2e-6
            assert float(found[i, j]) == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_neighbours_are_chosen_once_and_the_rest_stops_travelling() -> None:
    engine, theta0 = start(federation_of((6,) * 8))
    method = L2C(sgd=SGD, sparsify_round=1, fraction=0.25)
    state = method.init(engine, theta0)
    size, kept = size_of(state.theta), None
    for t in range(4):
        state, info = method.step(engine, state, t)
        spent = engine.ledger.close_round()
        edges = 8 * 7 if t < 2 else 8 * 2
        assert spent.messages == {"mix": edges} and spent.total_bytes == edges * size
        if t == 1:
            kept = state.neighbours
            alpha = state.scores["alpha"].clone().fill_diagonal_(-torch.inf)
            best = alpha.argsort(dim=1, descending=True)[:, :2]
            expected = torch.eye(8, dtype=torch.bool).scatter_(1, best, True)
            assert torch.equal(kept, expected)
        if t > 1:
            assert torch.equal(state.neighbours, kept) and torch.equal(info["graph"] > 0, kept)
    never = L2C(sgd=SGD, sparsify_round=-1)
    state = never.init(engine, theta0)
    for t in range(3):
        state, _ = never.step(engine, state, t)
    assert bool(state.neighbours.all())


def test_a_client_in_quarantine_is_in_no_row_and_its_scores_stay() -> None:
    engine, theta0 = start(poisoned(federation_of(), 1))
    method = L2C(sgd=SGD)
    state = method.init(engine, theta0)
    for t in range(2):
        state, info = method.step(engine, state, t)
    assert info["graph"][:, 1].tolist() == [0, 1, 0, 0]
    alpha = state.scores["alpha"]
    assert not bool(alpha[1].any()) and not bool(alpha[:, 1].any()) and bool(alpha[0].any())


@pytest.mark.parametrize(
    "options",
    [
        {"average": "gradients"},
        {"meta_lr": 0.0},
        {"meta_decay": -0.1},
        {"fraction": 1.5},
        {"sparsify_round": -2},
        {"validation": 1.0},
    ],
)
def test_options_that_are_not_possible(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        L2C(**options)


def test_validation_samples_are_needed() -> None:
    engine, theta0 = start(classification(SIZES))
    with pytest.raises(DataError, match="no validation samples"):
        L2C().init(engine, theta0)
