"""First memberships: symmetry between blocks must be broken before the first sweep."""

import torch
from torch import Tensor

SHARPNESS = 10.0  # similarities lie in [0, 1]; ten nats separate a seed's peers from strangers


def random_omega(num_clients: int, num_blocks: int, rng: torch.Generator) -> Tensor:
    """(K, M) rows drawn from the flat Dirichlet distribution."""
    draws = torch.empty(num_clients, num_blocks, dtype=torch.float64)
    draws = draws.exponential_(generator=rng)
    return draws / draws.sum(1, keepdim=True)


def similarity(log_lik: Tensor, seen: Tensor) -> Tensor:
    """(K, K) mean of exp(l_ij) and exp(l_ji) over the directions measured; 1 for i = j."""
    likelihood = torch.where(seen, log_lik.clamp(max=0).exp(), 0.0)
    count = (seen.double() + seen.T.double()).clamp(min=1)
    near = (likelihood + likelihood.T) / count
    near.fill_diagonal_(1.0)
    return near


def farthest_seeds(near: Tensor, count: int, first: int) -> list[int]:
    """Clients picked one after another, each the least similar to those already picked."""
    seeds = [first]
    closest = near[first].clone()
    while len(seeds) < min(count, len(near)):
        closest[seeds] = torch.inf
        nxt = int(closest.argmin())
        seeds.append(nxt)
        closest = torch.maximum(closest, near[nxt])
    return seeds


def seeded_omega(near: Tensor, num_blocks: int, first: int) -> Tensor:
    """(K, M) softmax of the similarity to M farthest points; surplus blocks (M > K) start empty."""
    seeds = farthest_seeds(near, num_blocks, first)
    scores = torch.zeros(len(near), num_blocks, dtype=torch.float64)
    scores[:, : len(seeds)] = near[:, seeds]
    return (SHARPNESS * scores).softmax(1)


def first_omega(
    near: Tensor, num_blocks: int, seeded: bool, attempt: int, rng: torch.Generator
) -> Tensor:
    """Memberships for one start; later attempts begin their seeding at a random client."""
    if not seeded:
        return random_omega(len(near), num_blocks, rng)
    first = int(near.sum(1).argmax())
    if attempt > 0:
        first = int(torch.randint(len(near), (), generator=rng))
    return seeded_omega(near, num_blocks, first)
