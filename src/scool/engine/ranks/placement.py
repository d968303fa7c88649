"""Which rank holds which clients: those that learn from each other should be together. And what a
rank holds: the data of its clients, and a device."""

import os
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from scool.data.federation import Federation, Split
from scool.engine.ledger import PairList, edges_of
from scool.engine.machine import resolve_device
from scool.errors import ConfigError, require
from scool.graph.edges import Matrix, as_matrix

SPARSE = 0.5  # above this share of nonzero weights every rank needs all clients, wherever they are
WORTH = 0.8  # clients move if at most this share of the traffic is left


def check_ranks(ranks: int, num_clients: int) -> None:
    """Refuse more ranks than there are clients."""
    remedy = (
        f"there are {num_clients} clients, and every rank holds one at least. Start fewer ranks"
    )
    require(ranks <= num_clients, "ranks", ranks, remedy)


@final
class Placement:
    """Which rank holds which clients. Equal on all ranks."""

    def __init__(self, holder: Tensor, ranks: int) -> None:
        """`holder` (K,) is the rank of each client; every rank holds one at least."""
        self.holder = holder
        self.ranks = ranks
        self.held = [(holder == rank).nonzero()[:, 0] for rank in range(ranks)]  # ids, in order
        self.counts = [len(ids) for ids in self.held]
        self.position = torch.empty_like(holder)  # (K,) the row of each client on its rank
        for ids in self.held:
            self.position[ids] = torch.arange(len(ids))
        self._order = torch.cat(self.held).argsort()  # from rank after rank to client after client

    @classmethod
    def even(cls, num_clients: int, ranks: int) -> "Placement":
        """Blocks of neighbouring ids, as equal as can be.

        >>> Placement.even(5, 2).held
        [tensor([0, 1, 2]), tensor([3, 4])]
        """
        check_ranks(ranks, num_clients)
        parts = torch.arange(num_clients).tensor_split(ranks)
        sizes = torch.tensor([len(part) for part in parts])
        return cls(torch.repeat_interleave(torch.arange(ranks), sizes), ranks)

    def in_order(self, rows: Tensor) -> Tensor:
        """Rows of rank after rank -> rows of client after client."""
        return rows[self._order.to(rows.device)]

    def wanted(self, i: Tensor, j: Tensor) -> Tensor:
        """(ranks, K) bool: the clients that a rank needs if client i[e] needs j[e]."""
        out = torch.zeros(self.ranks, len(self.holder), dtype=torch.bool)
        out[self.holder[i], j] = True
        return out

    def abroad(self, edges: PairList) -> int:
        """The number of rows that travel between ranks if client i needs j for each edge."""
        wanted = self.wanted(edges.i, edges.j)
        return int((wanted & (self.holder != torch.arange(self.ranks)[:, None])).sum())


def better_placement(placement: Placement, graph: Matrix) -> Placement | None:
    """A placement by the communities of a sparse graph (K, K), where it saves enough traffic.

    Every rank keeps its number of clients. Equal graphs give equal answers on all ranks.
    """
    if placement.ranks == 1:
        return None
    edges = edges_of(graph)
    now = placement.abroad(edges)
    if len(edges.i) > SPARSE * len(graph) ** 2 or not now:
        return None
    together = Placement(
        by_community((as_matrix(graph) != 0).cpu(), placement.counts), placement.ranks
    )
    return together if together.abroad(edges) <= WORTH * now else None


def by_community(pairs: Tensor, counts: list[int]) -> Tensor:
    """(K,) the rank of each client: rank after rank takes the client that shares the most edges
    with those it has, the lowest id among equals, until it is full.

    >>> ring = torch.tensor([[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]).bool()
    >>> by_community(ring, [2, 2]).tolist()
    [0, 1, 0, 1]
    """
    edges = pairs.numpy()
    mutual = (edges.astype(np.float32) + edges.T).astype(np.float32)
    np.fill_diagonal(mutual, 0)
    holder = np.full(len(edges), -1)
    for rank, count in enumerate(counts):
        shared = np.zeros(len(edges), dtype=np.float32)  # edges with the clients taken so far
        for _ in range(count):
            client = int(np.where(holder < 0, shared, -1).argmax())
            holder[client] = rank
            shared += mutual[client]
    return torch.from_numpy(holder.astype(np.int64))


@dataclass(frozen=True)
class Shard(Federation):
    """Some clients of a federation. It may lack what others hold, so it is not checked again."""

    def __post_init__(self) -> None:
        pass


def cut(federation: Federation, clients: Tensor) -> Shard:
    """The clients `clients` (n,) with the samples they use, and no others."""

    def part(split: Split) -> Split:
        index = split.index[clients]
        used, rows = index.unique(return_inverse=True)
        return Split(split.x[used], rows.view_as(index), split.mask[clients], split.y[clients])

    return Shard(
        name=federation.name,
        train=part(federation.train),
        val=part(federation.val),
        test=part(federation.test),
        classes=federation.classes[clients],
        task=federation.task,
        transform=federation.transform,
    )


def rank_device(name: str, rank: int) -> str:
    """The device of a rank: on a machine with GPUs, one each."""
    local_rank = int(os.environ.get("LOCAL_RANK", rank))  # on its own machine, says torchrun
    device = resolve_device(name)
    if device.type != "cuda" or device.index is not None:
        return str(device)
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"device = {name!r} is not possible: this machine has {count} GPUs and more ranks. "
            f"Start {count} ranks on it, or use --device cpu"
        )
    return f"cuda:{local_rank}"
