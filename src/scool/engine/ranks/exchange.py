"""How rows of clients get from the rank that holds them to the ranks that need them, and back."""

from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor

from scool.engine.ledger import PairList, model_bytes
from scool.engine.ranks.group import Ranks
from scool.engine.ranks.placement import Placement
from scool.types import Tree


def take_rows(tree: Tree, rows: Tensor) -> Tree:
    """Some rows of a tree; the tree itself where these are all, in order."""
    if len(rows) == len(next(iter(tree.values()))):
        return tree
    return {name: stacked[rows.to(stacked.device)] for name, stacked in tree.items()}


@final
class Exchange:
    """The exchange under one placement. Every rank calls the same verbs with the same plan."""

    def __init__(self, ranks: Ranks, placement: Placement) -> None:
        self.ranks, self.placement = ranks, placement
        self._mine = placement.held[ranks.rank]  # (n,) ids, on the CPU

    def visits(self, purpose: str, tree: Tree, wanted: Tensor) -> Iterator[tuple[Tensor, Tree]]:
        """(ids, their rows): first all clients held here, then those of each other rank that this
        one wants, once each. `wanted` (ranks, K) is equal everywhere. One pair of ranks at a time,
        so that at most one other shard is in memory here.
        """
        yield self._mine, tree
        self._count(purpose, tree, wanted)
        for hop in range(1, self.ranks.size):
            ids, sent = self._hop(wanted, hop)
            guests = self._trade(take_rows(tree, sent), -hop, len(ids), tree, hop)
            if len(ids):
                yield ids, guests

    def errands(
        self, purpose: str, tree: Tree, wanted: Tensor, work: Callable[[Tensor, Tree], Tree]
    ) -> Iterator[tuple[Tensor, Tree]]:
        """Rows travel to the ranks that want them, `work(ids, rows)` is done there, and the results
        travel back: (positions here, results), for every rank that had some."""
        self._count(purpose, tree, wanted, times=2)
        for hop in range(self.ranks.size):
            ids, sent = self._hop(wanted, hop)
            guests = take_rows(tree, sent)
            if hop:
                guests = self._trade(guests, -hop, len(ids), tree, hop)
            done = work(ids, guests) if len(ids) else {}
            if hop:
                done = self._trade(done, hop, len(sent), tree, -hop)
            if len(sent):
                yield sent.to(next(iter(tree.values())).device), done

    def _hop(self, wanted: Tensor, hop: int) -> tuple[Tensor, Tensor]:
        """The ids that come from `hop` ranks ahead, and the positions that go as far back."""
        ranks, rank = self.ranks, self.ranks.rank
        ahead, behind = (rank + hop) % ranks.size, (rank - hop) % ranks.size
        theirs = self.placement.held[ahead]
        coming = theirs[wanted[rank, theirs]]
        return coming, wanted[behind, self._mine].nonzero()[:, 0]

    def _trade(self, outgoing: Tree, to: int, incoming: int, like: Tree, source: int) -> Tree:
        """Send to the rank `to` ahead, receive from the one `source` ahead."""
        size, rank = self.ranks.size, self.ranks.rank
        receiver, sender = (rank + to) % size, (rank + source) % size
        return self.ranks.trade(outgoing, receiver, incoming, like, sender)

    def _count(self, purpose: str, tree: Tree, wanted: Tensor, times: int = 1) -> None:
        """Count what travels between ranks, over all of them."""
        abroad = wanted & (self.placement.holder != torch.arange(self.ranks.size)[:, None])
        self.ranks.ledger.add(purpose, times * int(abroad.sum()), model_bytes(tree))

    def of_edges(self, mine: Tensor, edges: PairList) -> Tensor:
        """(E,) from the values of the edges whose j is held here."""
        holder = self.placement.holder[edges.j]
        order = holder.argsort(stable=True)  # rank after rank
        values = self.ranks.gather(mine, holder.bincount(minlength=self.ranks.size).tolist())
        return torch.empty_like(values).index_put_((order,), values)

    def rows(self, mine: Tensor) -> Tensor:
        """Rows of the clients held here -> rows of all K, in order."""
        if not self.ranks.is_group:
            return mine
        return self.placement.in_order(self.ranks.gather(mine, self.placement.counts))
