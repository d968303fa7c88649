"""From a dense graph to a few neighbours a client."""

import torch
from torch import Tensor


def num_kept(num_clients: int, fraction: float) -> int:
    """floor(K * fraction), safe against round-off, at least one.

    >>> num_kept(100, 0.29)
    29
    """
    return max(1, int(num_clients * fraction + 1e-9))


def keep_top(rank: Tensor, count: int, allowed: Tensor, keep_self: bool = True) -> Tensor:
    """(K, K) bool: for every row the `count` allowed columns with the largest rank.

    Ties go to the smaller index. With `keep_self` the diagonal stays and is not counted.

    >>> rank = torch.tensor([[0.9, 0.1, 0.5]]).expand(3, 3)
    >>> keep_top(rank, 1, torch.ones(3, 3, dtype=torch.bool)).int()
    tensor([[1, 0, 1],
            [1, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """
    own = torch.eye(len(rank), dtype=torch.bool, device=rank.device)
    candidates = allowed & ~own if keep_self else allowed
    score = rank.masked_fill(~candidates, -torch.inf)
    best = score.argsort(dim=1, descending=True, stable=True)[:, :count]
    kept = torch.zeros_like(allowed).scatter_(1, best, True) & candidates
    return kept | own if keep_self else kept
