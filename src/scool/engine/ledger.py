"""Pairs of clients that meet, and what each meeting costs: counted at the engine's verbs, for every
method and every engine alike, as if each client were a machine of its own."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from scool.contracts import Route
from scool.graph.edges import Edges, Matrix
from scool.types import Tree


@dataclass
class Ledger:
    """Traffic by purpose. One float of a float32 model is four bytes; framing is not counted."""

    messages: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    samples: int = 0  # training samples that gradients were taken of, over all clients and models

    def add(self, purpose: str, messages: int, bytes_each: int) -> None:
        """Count `messages` messages of `bytes_each` bytes."""
        self.messages[purpose] = self.messages.get(purpose, 0) + messages
        self.bytes[purpose] = self.bytes.get(purpose, 0) + messages * bytes_each

    def add_samples(self, samples: int) -> None:
        """Count gradients of so many training samples."""
        self.samples += samples

    @property
    def total_messages(self) -> int:
        return sum(self.messages.values())

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())

    def close_round(self) -> "Ledger":
        """The traffic since the last call; resets the count."""
        closed = Ledger(dict(self.messages), dict(self.bytes), self.samples)
        self.messages.clear()
        self.bytes.clear()
        self.samples = 0
        return closed


class PairList(NamedTuple):
    """Pairs of clients, row after row; on the CPU."""

    i: Tensor  # (E,)
    j: Tensor  # (E,)

    def take(self, chosen: Tensor) -> "PairList":
        """Some of the pairs, by a mask (E,) or by their places."""
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


def model_bytes(tree: Tree) -> int:
    """Bytes of one client's model when it travels."""
    return sum(t[0].numel() * t.element_size() for t in tree.values())


def _between(edges: PairList) -> int:
    """The number of pairs of two different clients."""
    return int((edges.i != edges.j).sum())


def count_train_at(ledger: Ledger, theta: Tree, edges: PairList) -> None:
    """A model travels there and back, unless it trains at its own client."""
    ledger.add("train_at", 2 * _between(edges), model_bytes(theta))


def count_mix(ledger: Ledger, tree: Tree, edges: PairList, active: Tensor, via: Route) -> None:
    """One model per nonzero weight; with a server each participant fetches the common model and
    sends its own."""
    if via == "server":
        participants = edges.j[active[edges.i]].unique()
        ledger.add("server", 2 * len(participants), model_bytes(tree))
    elif via == "peers":
        ledger.add("mix", _between(edges), model_bytes(tree))


def count_fetch(ledger: Ledger, tree: Tree, edges: PairList) -> None:
    ledger.add("fetch", _between(edges), model_bytes(tree))


def count_cross(ledger: Ledger, theta: Tree, edges: PairList, num_clients: int) -> None:
    """theta_i travels to j, one number comes back, and all clients get all rows."""
    ledger.add("cross_models", _between(edges), model_bytes(theta))
    ledger.add("cross_losses", _between(edges), 4)
    longest = int(edges.i.bincount(minlength=1).max())
    ledger.add("rows", num_clients * (num_clients - 1), 4 * longest)


def count_peers(ledger: Ledger, theta: Tree, edges: PairList) -> None:
    ledger.add("peer_models", _between(edges), model_bytes(theta))


def count_cross_gradient(ledger: Ledger, theta: Tree, edges: PairList) -> None:
    """The model travels there, the gradient back."""
    ledger.add("cross_gradients", 2 * _between(edges), model_bytes(theta))


def count_gather(ledger: Ledger, rows: Tensor, num_clients: int) -> None:
    """Every client's row to all others."""
    size = rows[0].numel() * rows.element_size()
    ledger.add("gather", num_clients * (num_clients - 1), size)


def count_total(ledger: Ledger, x: Tensor, num_clients: int) -> None:
    """Every client's part to one, and the sum back."""
    ledger.add("sum", 2 * (num_clients - 1), x.numel() * x.element_size())
