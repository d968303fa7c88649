"""Which kind of cooperation explains an owner's samples: EM against its definition."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from scool.priors.tracks import (
    GRID,
    STRANGERS,
    gaussian_log_lik,
    owner_variances,
    owner_weights,
    population_weights,
    responsibilities,
    track_bound,
    with_strangers,
)

K, S, A = 4, 9, 3
SIZES = (9, 5, 1, 0)


@pytest.fixture
def log_lik() -> Tensor:
    rng = torch.Generator().manual_seed(0)
    found = torch.randn(K, S, A, generator=rng, dtype=torch.float64)
    found[0, :, 1] += 1.5  # owner 0 is explained best by kind 1, owner 1 by kind 2
    found[1, :, 2] += 1.5
    for owner, size in enumerate(SIZES):
        found[owner, size:] = torch.nan
    return found


def test_responsibilities_are_those_of_plain_loops(log_lik: Tensor) -> None:
    weights = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).expand(K, -1)
    found = responsibilities(log_lik, weights)
    for i, size in enumerate(SIZES):
        for s in range(S):
            terms = [float(weights[i, a]) * math.exp(float(log_lik[i, s, a])) for a in range(A)]
            for a in range(A):
                expected = terms[a] / sum(terms) if s < size else 0.0
                assert float(found[i, s, a]) == pytest.approx(expected)


def test_the_population_counts_every_owner_alike(log_lik: Tensor) -> None:
    """[TRACK-pi] no other weights explain the mean owner better."""

    def objective(pi: Tensor) -> float:
        means = [
            float(torch.logsumexp(log_lik[i, :size] + pi.log(), dim=-1).mean())
            for i, size in enumerate(SIZES)
            if size
        ]
        return sum(means)

    pi = population_weights(log_lik)
    assert float(pi.sum()) == pytest.approx(1) and bool((pi >= 0).all())
    rng = torch.Generator().manual_seed(1)
    for other in torch.rand(50, A, generator=rng, dtype=torch.float64):
        mixed = 0.9 * pi + 0.1 * other / other.sum()
        assert objective(mixed) <= objective(pi.clamp_min(1e-12)) + 1e-7


@pytest.mark.parametrize("pooling", [0.5, 20.0])
def test_weights_of_an_owner_maximise_the_bound(log_lik: Tensor, pooling: float) -> None:
    """[TRACK-w]: a stationary point on the simplex, and no step of EM lowers [TRACK-bound]."""
    pi = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    weights = owner_weights(log_lik, pi, pooling)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(K, dtype=torch.float64))
    logits = weights.log().requires_grad_()
    track_bound(log_lik, logits.softmax(dim=1), pi, pooling).sum().backward()
    assert logits.grad is not None and float(logits.grad.abs().max()) < 1e-5
    assert weights[0, 1] > pi[1] and weights[1, 2] > pi[2]
    assert pooling > 1 or weights[:2].argmax(dim=1).tolist() == [1, 2]
    torch.testing.assert_close(weights[3], pi)  # nothing seen: the population's
    now = pi.expand(K, -1)
    for _ in range(5):
        r = responsibilities(log_lik, now).sum(dim=1)
        counts = torch.tensor(SIZES, dtype=torch.float64)[:, None]
        new = (r + pooling * pi) / (counts + pooling)
        before, after = (track_bound(log_lik, w, pi, pooling) for w in (now, new))
        assert bool((after >= before - 1e-12).all())
        now = new


def test_an_owner_without_a_prior_believes_its_samples(log_lik: Tensor) -> None:
    pi = population_weights(log_lik)
    weights = owner_weights(log_lik, pi, 0.0)
    assert bool(weights.isfinite().all())
    torch.testing.assert_close(weights[3], pi)
    assert weights[2].argmax() == log_lik[2, 0].argmax()


def test_nobody_has_a_sample() -> None:
    nothing = torch.full((2, 3, 2), torch.nan, dtype=torch.float64)
    pi = population_weights(nothing)
    assert pi.tolist() == [0.5, 0.5]
    assert owner_weights(nothing, pi, 5.0).tolist() == [[0.5, 0.5]] * 2


def test_squared_errors_as_densities() -> None:
    errors = torch.tensor([[[2.0, 8.0], [4.0, 1.0]]], dtype=torch.float64)  # means 3 and 4.5
    both = torch.cat([errors, 100 * errors])
    variances = torch.tensor([1.5, 150.0], dtype=torch.float64)
    found = gaussian_log_lik(both, outputs=2, variances=variances)
    for owner, variance in enumerate(variances.tolist()):
        error = float(both[owner, 0, 1])
        expected = -error / (2 * variance) - 2 * 0.5 * math.log(2 * math.pi * variance)
        assert float(found[owner, 0, 1]) == pytest.approx(expected)
    apart = found[..., 0] - found[..., 1]
    torch.testing.assert_close(apart[0], apart[1])  # the unit of an owner says nothing


def test_every_owner_has_a_variance_of_its_own() -> None:
    """[TRACK-sigma]: a fixed point, by plain loops; owners in other units do not disturb."""
    errors, counts = [2.0, 5.0, 3.0, 1e6, 7.0], [4, 9, 1, 6, 0]
    found = owner_variances(
        torch.tensor(errors, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)
    ).tolist()
    usual = 4 / sum(1 / variance for variance in found[:4])
    for variance, error, n in zip(found, errors, counts, strict=True):
        assert variance == pytest.approx((n * error + 2 * usual) / (n + 2), rel=1e-6)
    assert found[4] == pytest.approx(usual) and found[3] > 1e5 and max(found[:3]) < 10


def test_variances_of_nothing_and_of_perfect_models() -> None:
    none = torch.full((2,), torch.nan, dtype=torch.float64)
    assert owner_variances(none, torch.ones(2, dtype=torch.float64)).tolist() == [1.0, 1.0]
    perfect = torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = owner_variances(perfect, torch.full((2,), 5.0, dtype=torch.float64))
    assert bool((found > 0).all()) and float(found[1]) == pytest.approx(5 / 7, rel=1e-3)


def test_a_stranger_is_not_pulled_to_what_suits_the_others() -> None:
    """[TRACK-stranger]: five samples that only kind 0 explains, where all others have kind 1."""
    p = torch.full((3, 5, 2), 0.05, dtype=torch.float64)
    p[0, :, 0], p[1, :, 1], p[2, :, :] = 0.5, 0.5, 0.3
    log_lik = p.log()
    pi = torch.tensor([1e-9, 1 - 1e-9], dtype=torch.float64)
    pooled = owner_weights(log_lik, pi, 20.0)
    assert float(pooled[0, 0]) < 0.25
    weights = with_strangers(log_lik, pooled)
    assert float(weights[0, 0]) > 0.8 and float(weights[1, 0]) < 0.02
    assert float(weights[2, 0]) == pytest.approx(0.1 * 0.5, abs=1e-6)  # its samples say nothing


def test_strangers_by_plain_loops(log_lik: Tensor) -> None:
    pooled = owner_weights(log_lik, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 20.0)
    found = with_strangers(log_lik, pooled)
    steps = [(a, b) for a in range(GRID + 1) for b in range(GRID + 1 - a)]
    grid = [(a / GRID, b / GRID, (GRID - a - b) / GRID) for a, b in steps]
    for i, size in enumerate(SIZES):
        p = log_lik[i, :size].exp().tolist()

        def explained(w: Sequence[float], p: list[list[float]] = p) -> float:
            return math.prod(sum(a * b for a, b in zip(w, row, strict=True)) for row in p)

        every = [explained(g) for g in grid]
        own = STRANGERS * sum(every) / len(grid)
        alpha = own / (own + (1 - STRANGERS) * explained(pooled[i].tolist())) if size else 0.0
        for kind in range(A):
            mean = sum(g[kind] * value for g, value in zip(grid, every, strict=True)) / sum(every)
            expected = (1 - alpha) * float(pooled[i, kind]) + alpha * mean
            assert float(found[i, kind]) == pytest.approx(expected)
