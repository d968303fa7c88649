"""What the data of its neighbours would do to a client's model, and the step that suits all."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from scool.algorithms.quadratic import RIDGE, bounded_minimum
from scool.contracts import Engine, Trained
from scool.types import Tree

COLUMNS = 1 << 24  # numbers that are looked at in one go
MOST_ROWS = 64  # updates of a client that a program of a GPU holds
LARGE = 64  # numbers an update: below, products are singular where float32 is not enough
ROUGH = 1e-5  # a ridge above the errors of products in float32
HAS_TRITON = find_spec("triton") is not None


class _Group(NamedTuple):
    """c clients that have m updates each."""

    clients: Tensor  # (c,) positions among those held here
    rows: Tensor  # (c, m) rows of what `train_at` gave back; -1: nothing that could be used


@final
class CrossUpdates:
    r"""$g_{ij} = \theta_i - \theta_{ij}$: what the steps of client j take off the model of i, one
    row a pair, row after row as `Engine.train_at` gives them; oneself is among them."""

    def __init__(
        self, engine: Engine, w: Tensor, pairs: Tensor, theta: Tree, found: Trained
    ) -> None:
        self.theta, self.trained = theta, found.theta
        self.device, owned = engine.owned.device, engine.owned.cpu()
        i, j = pairs[owned].nonzero(as_tuple=True)
        self.is_own = owned[i] == j  # (E,)
        self.pi = w[owned][i, j]
        self.is_good = found.loss[owned][i, j].isfinite() & (self.pi != 0)
        self.count = pairs[owned].sum(dim=1)  # (n,) rows of each client held here
        self.first = self.count.cumsum(0) - self.count

    def combine(self, variant: Literal["vector", "tensor"], margin: float) -> Tree:
        """The step of every client held here, one number of neighbours after the other. An update
        that is not finite, or of weight 0, constrains nothing."""
        out = {n: t.new_zeros(t.shape) for n, t in self.theta.items()}  # contiguous, to be cut
        for count in sorted(set(map(int, self.count)) - {0}):
            clients = (self.count == count).nonzero()[:, 0]
            rows = self.first[clients][:, None] + torch.arange(count)  # (c, m)
            pi, own = self.pi[rows] * self.is_good[rows], self.is_own[rows]
            usable = rows.where(self.is_good[rows], -1)
            group = _Group(clients.to(self.device), usable.to(self.device))
            grams = torch.stack([self._products(n, group) for n in out]).cpu()  # (T, c, m, m)
            grams = pi[:, :, None] * grams * pi[:, None, :]
            ridges = [ROUGH if self._has_kernel(n, group) else RIDGE for n in out]
            if variant == "vector":
                share = _shares(grams.sum(dim=0), own, margin, max(ridges))
                shares = share.expand(len(out), *pi.shape)
            else:
                both = zip(grams, ridges, strict=True)
                shares = torch.stack([_shares(gram, own, margin, ridge) for gram, ridge in both])
            for n, weight in zip(out, (pi * shares).to(self.device), strict=True):
                self._add_up(n, group, weight.to(out[n].dtype), out[n].flatten(1))
        return out

    def _products(self, name: str, group: _Group) -> Tensor:
        """(c, m, m) float64 inner products of the updates of each client."""
        if self._has_kernel(name, group):
            from scool.algorithms.triton_updates import products

            return products(*self._flat(name), *group)
        total = torch.zeros(*group.rows.shape, group.rows.shape[1], device=self.device).double()
        for _, block in self._blocks(name, group):
            block = block.double()
            total += block @ block.mT
        return total

    def _add_up(self, name: str, group: _Group, weight: Tensor, out: Tensor) -> None:
        """Sums of the updates by weights (c, m), into the clients' rows of out (n, D)."""
        group = group._replace(rows=group.rows.where(weight != 0, -1))  # 0 times infinity is NaN
        if self._has_kernel(name, group):
            from scool.algorithms.triton_updates import weighted_sum

            return weighted_sum(*self._flat(name), *group, weight, out)
        for part, block in self._blocks(name, group):
            out[group.clients, part] = (weight[:, None, :] @ block)[:, 0]

    def _flat(self, name: str) -> tuple[Tensor, Tensor]:
        """The clients' own models (n, D), and what came of them (E, D)."""
        mine, theirs = self.theta[name], self.trained[name]
        return mine.flatten(1).contiguous(), theirs.flatten(1).contiguous()

    def _has_kernel(self, name: str, group: _Group) -> bool:
        t, count = self.theta[name], group.rows.shape[1]
        is_float32 = t.is_cuda and t.dtype == torch.float32
        is_large = t[0].numel() >= LARGE * count
        return HAS_TRITON and is_float32 and is_large and count <= MOST_ROWS

    def _blocks(self, name: str, group: _Group) -> Iterator[tuple[slice, Tensor]]:
        """The updates of one tensor by clients (c, m, columns), some columns at a time, so that
        they take little memory beside the models."""
        mine, theirs = self._flat(name)
        missing = (group.rows < 0)[:, :, None]
        width = max(1, COLUMNS // group.rows.numel())
        for begin in range(0, mine.shape[1], width):
            part = slice(begin, begin + width)
            block = mine[group.clients, part][:, None] - theirs[:, part][group.rows]
            yield part, block.masked_fill_(missing, 0.0)


def _shares(gram: Tensor, own: Tensor, margin: float, ridge: float) -> Tensor:
    """(c, m) how much of each row enters the step: all of one's `own` (c, m), u of the others."""
    is_finite = gram.diagonal(dim1=1, dim2=2).isfinite()
    used = ~own & is_finite & (is_finite | ~own).all(dim=1, keepdim=True)
    Q = gram.where(used[:, :, None] & used[:, None, :], 0.0)  # a variable without size is left out
    p = gram.where(used[:, :, None] & own[:, None, :], 0.0).sum(dim=2)
    return torch.where(own, 1.0, bounded_minimum(Q, p, margin, ridge))
