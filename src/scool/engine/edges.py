"""Pairs of clients in the engines' own hands: rows of a stack, turns, places on a rank."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from scool.graph.edges import Edges, Matrix


class PairList(NamedTuple):
    """Pairs of clients, row after row; on the CPU."""

    i: Tensor  # (E,)
    j: Tensor  # (E,)

    def take(self, chosen: Tensor) -> "PairList":
        """Some of them, by a mask (E,) or by their places."""
        return PairList(self.i[chosen], self.j[chosen])

    def among(self, active: Tensor) -> "PairList":
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


def edges_of(matrix: Matrix) -> PairList:
    """The entries that are not zero.

    >>> edges_of(torch.tensor([[0.0, 2.0], [0.5, 0.0]]))
    PairList(i=tensor([0, 1]), j=tensor([1, 0]))
    """
    if isinstance(matrix, Edges):
        graph = matrix.nonzero_pairs()
        return PairList(graph.i, graph.j)
    return PairList(*matrix.cpu().nonzero(as_tuple=True))


def to_matrix(edges: PairList, values: Tensor, num_clients: int) -> Tensor:
    """(K, K) float64 with a value (E,) at each edge, NaN elsewhere."""
    out = torch.full((num_clients, num_clients), torch.nan, dtype=torch.float64)
    out[edges.i, edges.j] = values
    return out
