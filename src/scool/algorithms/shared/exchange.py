"""Clients that keep what they have."""

import torch
from torch import Tensor

from scool.algorithms.shared.aggregate import per_client
from scool.contracts import Engine
from scool.types import Tree


def choose(engine: Engine, clients: Tensor, then: Tree, otherwise: Tree) -> Tree:
    """`then` for the clients in (K,) bool, `otherwise` for the rest."""
    mine = clients[engine.owned.cpu()]
    return {n: torch.where(per_client(mine, t).bool(), t, otherwise[n]) for n, t in then.items()}
