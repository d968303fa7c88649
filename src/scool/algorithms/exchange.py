"""Clients that keep what they have."""

import torch
from torch import Tensor

from scool.algorithms.aggregate import per_client
from scool.contracts import Engine
from scool.types import Tree


def choose(engine: Engine, clients: Tensor, then: Tree, otherwise: Tree) -> Tree:
    """`then` for the clients in (K,) bool, `otherwise` for the rest."""
    mine = clients[engine.owned.cpu()]
    return {n: torch.where(per_client(mine, t).bool(), t, otherwise[n]) for n, t in then.items()}


def own_row(w: Tensor) -> Tensor:
    """(K, K) rows that sum to one; an empty row becomes the client alone.

    >>> own_row(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    tensor([[0.7500, 0.2500],
            [0.0000, 1.0000]])
    """
    total = w.sum(dim=1, keepdim=True)
    eye = torch.eye(len(w), dtype=w.dtype)
    return torch.where(total > 0, w / torch.where(total > 0, total, 1.0), eye)
