"""Which kind of cooperation explains an owner's samples: EM against its definition."""

import math

import pytest
import torch
from torch import Tensor

from scool.priors.tracks import (
    gaussian_log_lik,
    owner_weights,
    population_weights,
    responsibilities,
    track_bound,
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
    found = gaussian_log_lik(errors, outputs=2)
    sigma = math.sqrt(3 / 2)
    expected = -8 / (2 * sigma**2) - 2 * 0.5 * math.log(2 * math.pi * sigma**2)
    assert float(found[0, 0, 1]) == pytest.approx(expected)
