"""What the data of its neighbours would do to a client's model, and the step that suits all."""

from collections.abc import Iterator
from typing import Literal, final

import torch
from torch import Tensor

from scool.algorithms.quadratic import bounded_minimum
from scool.contracts import Engine
from scool.types import Tree

COLUMNS = 1 << 24  # numbers that the Gram matrices look at in one go, in float64


@final
class CrossUpdates:
    """What each neighbour would take off a client's model: one row an edge, oneself first."""

    def __init__(self, engine: Engine, w: Tensor, theta: Tree) -> None:
        self.engine, self.theta = engine, theta
        joined = w.clone().fill_diagonal_(0) != 0
        degree = joined.sum(dim=1)
        order = joined.int().argsort(dim=1, descending=True, stable=True)
        listed = order[:, : int(degree.max())]
        listed = listed.where(torch.arange(listed.shape[1]) < degree[:, None], -1)
        oneself = torch.arange(len(w))[:, None]
        self.hosts = torch.cat([oneself, listed], dim=1)  # (K, 1 + most neighbours), -1: none
        owned = engine.owned.cpu()
        self.count = 1 + degree[owned]  # (n,) rows of each client held here
        self.first = self.count.cumsum(0) - self.count
        self.pi = w[owned].gather(1, self.hosts[owned].clamp(min=0))
        rows = int(self.count.sum())
        self.moved = {n: t.new_zeros(rows, *t.shape[1:]) for n, t in theta.items()}

    def put(self, slot: int, hosts: Tensor, trained: Tree, loss: Tensor) -> None:
        """The updates of the clients that have a neighbour in this slot; what is not finite, or
        comes from nobody, stays 0 and constrains nothing."""
        good = ((hosts >= 0) & loss.isfinite())[self.engine.owned.cpu()].nonzero()[:, 0]
        rows = (self.first + slot)[good]
        for n, moved in self.moved.items():
            mine = (self.theta[n] - trained[n])[good.to(moved.device)]
            moved[rows.to(moved.device)] = mine

    def combine(self, variant: Literal["vector", "tensor"], margin: float) -> Tree:
        """The step of every client held here, one number of neighbours after the other."""
        out = {n: t.new_zeros(t.shape) for n, t in self.theta.items()}  # contiguous, to be cut
        for count in sorted(set(map(int, self.count))):
            clients = (self.count == count).nonzero()[:, 0]
            rows = self.first[clients][:, None] + torch.arange(count)  # (c, 1 + neighbours)
            pi = self.pi[clients, :count]
            grams = {n: pi[:, :, None] * self._gram(n, rows) * pi[:, None, :] for n in out}
            if variant == "vector":
                shares = dict.fromkeys(out, _shares(sum(grams.values(), torch.zeros(())), margin))
            else:
                shares = {n: _shares(gram, margin) for n, gram in grams.items()}
            for n, share in shares.items():
                target = out[n].flatten(1)  # a view
                weight, places = (pi * share)[:, None, :].to(target), clients.to(target.device)
                for part, block in self._blocks(n, rows):
                    target[places, part] = (weight @ block)[:, 0]
        return out

    def _gram(self, name: str, rows: Tensor) -> Tensor:
        """(c, m, m) inner products of the rows of each client, in float64."""
        device = self.moved[name].device
        gram = torch.zeros(*rows.shape, rows.shape[1], dtype=torch.float64, device=device)
        for _, block in self._blocks(name, rows):
            block = block.double()
            gram += block @ block.mT
        return gram.cpu()

    def _blocks(self, name: str, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """The updates of one tensor by clients (c, m, columns), some columns at a time, so that
        the copy stays small beside the updates themselves."""
        flat = self.moved[name].flatten(1)
        rows = rows.to(flat.device)
        width = max(1, COLUMNS // rows.numel())
        for begin in range(0, flat.shape[1], width):
            part = slice(begin, begin + width)
            yield part, flat[:, part][rows]


def _shares(gram: Tensor, margin: float) -> Tensor:
    """(c, m) how much of each row enters the step: all of one's own, u of the neighbours'."""
    u = bounded_minimum(gram[:, 1:, 1:], gram[:, 1:, 0], margin)
    return torch.cat([torch.ones(len(u), 1, dtype=u.dtype), u], dim=1)
