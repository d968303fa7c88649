"""The batched quadratic programs against their optimality conditions and another solver."""

import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from scool.algorithms.shared.cross_updates import bounded_minimum


def problem(batch: int, m: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows G (B, m, dim) and the vector a (B, dim) that must not contradict them."""
    rng = torch.Generator().manual_seed(seed)
    common = torch.randn(batch, 1, dim, generator=rng, dtype=torch.float64)
    G = torch.randn(batch, m, dim, generator=rng, dtype=torch.float64) + 0.5 * common
    return G, torch.randn(batch, dim, generator=rng, dtype=torch.float64) - common[:, 0]


def solve(G: Tensor, a: Tensor, lower: float = 0.0) -> tuple[Tensor, Tensor]:
    """u and z = a + G^T u."""
    u = bounded_minimum(G @ G.mT, (G @ a[..., None])[..., 0], lower)
    return u, a + (u[:, None] @ G)[:, 0]


def residual(G: Tensor, a: Tensor, lower: float = 0.0) -> float:
    """The worst breach of the optimality conditions, in units of |g_j| |a|."""
    u, z = solve(G, a, lower)
    size = G.norm(dim=2)
    there = size > 0
    slack = (G @ z[..., None])[..., 0] / (size * a.norm(dim=1, keepdim=True)).where(there, 1.0)
    over = (u - lower) * size / a.norm(dim=1, keepdim=True)
    assert bool((u[~there] == 0).all()) and bool((u[there] >= lower).all())
    worst = torch.maximum(-slack, torch.minimum(slack.abs(), over.abs()))  # feasible, and either 0
    return float(worst.where(there, 0.0).max())


@pytest.mark.parametrize("lower", [0.0, 0.5])
@pytest.mark.parametrize(("m", "dim"), [(1, 5), (2, 30), (10, 200), (10, 4), (30, 10), (98, 300)])
def test_optimality_conditions(m: int, dim: int, lower: float) -> None:
    for seed in range(3):
        assert residual(*problem(40 if m < 50 else 4, m, dim, seed), lower) < 1e-6


@pytest.mark.parametrize("m", [3, 12])
def test_another_solver_finds_the_same_step(m: int) -> None:
    G, a = problem(20, m, 50, seed=7)
    _, z = solve(G, a)
    for b in range(20):
        u, _ = nnls(G[b].T.numpy(), -a[b].numpy(), maxiter=10_000)
        torch.testing.assert_close(z[b], a[b] + torch.from_numpy(u) @ G[b], rtol=0, atol=1e-8)


def test_degenerate_programs() -> None:
    """Equal, opposite and missing rows, of very different sizes."""
    G, a = problem(30, 6, 20, seed=3)
    G[:, 1] = 3 * G[:, 0]
    G[:, 2] = -G[:, 3]
    G[:, 4] = 0
    G = G * 10.0 ** torch.arange(-6, 24).double().view(-1, 1, 1)
    assert residual(G, a) < 1e-6
    assert residual(torch.zeros_like(G), a) == 0
    nearly = G[:, :2] + 0.0
    nearly[:, 1] += 1e-9 * G[:, 5]
    assert residual(nearly, a) < 1e-6


def test_without_conflict_nothing_changes_and_an_opponent_leaves_no_trace() -> None:
    a = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).double()
    friendly = torch.stack([a, 2 * a], dim=1)
    u, z = solve(friendly, a)
    assert not bool(u.any()) and torch.equal(z, a)
    u, z = solve(-3 * a[:, None], a)
    torch.testing.assert_close(u, torch.full((5, 1), 1 / 3).double())
    assert float(z.abs().max()) < 1e-8
    half = torch.zeros_like(a)
    half[:, :4] = -a[:, :4]
    _, z = solve(half[:, None], a)
    assert float((half * z).sum(dim=1).abs().max()) < 1e-8
    torch.testing.assert_close(z[:, 4:], a[:, 4:])


def test_no_rows() -> None:
    assert bounded_minimum(torch.zeros(3, 0, 0), torch.zeros(3, 0)).shape == (3, 0)
