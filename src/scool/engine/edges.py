"""A K x K matrix as the list of its pairs: work that grows with the edges, not with K squared."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Edges(NamedTuple):
    """Pairs of clients, row after row; on the CPU."""

    i: Tensor  # (E,)
    j: Tensor  # (E,)

    def take(self, chosen: Tensor) -> "Edges":
        """Some of them, by a mask (E,) or by their places."""
        return Edges(self.i[chosen], self.j[chosen])

    def among(self, active: Tensor) -> "Edges":
        """Those between two clients of (K,) bool."""
        if bool(active.all()):
            return self
        return self.take(active[self.i] & active[self.j])

    def in_turn(self, num_clients: int) -> Iterator[Tensor]:
        """The j of every i (K,), one after the other; -1 where there are no more."""
        count = self.i.bincount(minlength=num_clients)
        turn = torch.arange(len(self.i)) - (count.cumsum(0) - count)[self.i]
        for number in range(int(count.max())):
            some = self.take(turn == number)
            yield torch.full((num_clients,), -1).index_put((some.i,), some.j)


def edges_of(matrix: Tensor) -> Edges:
    """The entries that are not zero.

    >>> edges_of(torch.tensor([[0.0, 2.0], [0.5, 0.0]]))
    Edges(i=tensor([0, 1]), j=tensor([1, 0]))
    """
    return Edges(*matrix.cpu().nonzero(as_tuple=True))


def to_matrix(edges: Edges, values: Tensor, num_clients: int) -> Tensor:
    """(K, K) float64 with a value (E,) at each edge, NaN elsewhere."""
    out = torch.full((num_clients, num_clients), torch.nan, dtype=torch.float64)
    out[edges.i, edges.j] = values
    return out
