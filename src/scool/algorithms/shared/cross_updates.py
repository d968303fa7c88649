"""What the data of its neighbours would do to a client's model, and the step that suits all."""

from typing import Literal, final

import torch
from torch import Tensor

from scool.algorithms.shared.quadratic import RIDGE, bounded_minimum
from scool.contracts import Engine, Trained, Updates
from scool.types import Tree


@final
class CrossUpdates:
    r"""$g_{ij} = \theta_i - \theta_{ij}$: what the steps of client j take off the model of i, one
    row a pair, row after row as `Engine.train_at` gives them; oneself is among them."""

    def __init__(
        self, engine: Engine, w: Tensor, pairs: Tensor, theta: Tree, found: Trained
    ) -> None:
        self.engine, self.theta, self.visited = engine, theta, found.theta
        owned = engine.owned.cpu()
        i, j = pairs[owned].nonzero(as_tuple=True)
        self.is_own = owned[i] == j  # (E,)
        self.pi = w[owned][i, j]
        self.is_good = found.loss[owned][i, j].isfinite() & (self.pi != 0)
        self.count = pairs[owned].sum(dim=1)  # (n,) rows of each client held here
        self.first = self.count.cumsum(0) - self.count

    def combine(self, variant: Literal["vector", "tensor"], margin: float) -> Tree:
        """The step of every client held here, one number of neighbours after the other. An update
        that is not finite, or of weight 0, constrains nothing."""
        out = {n: torch.zeros_like(t) for n, t in self.theta.items()}
        device = self.engine.owned.device
        for count in sorted(set(map(int, self.count)) - {0}):
            clients = (self.count == count).nonzero()[:, 0]
            rows = self.first[clients][:, None] + torch.arange(count)  # (c, m)
            pi, own = self.pi[rows] * self.is_good[rows], self.is_own[rows]
            usable = rows.where(self.is_good[rows], -1)
            updates = Updates(self.theta, self.visited, clients.to(device), usable.to(device))
            grams, errors = self.engine.products(updates)  # (T, c, m, m)
            grams = pi[:, :, None] * grams * pi[:, None, :]
            if variant == "vector":
                share = _shares(grams.sum(dim=0), own, margin, max(errors))
                shares = share.expand(len(out), *pi.shape)
            else:
                both = zip(grams, errors, strict=True)
                shares = torch.stack([_shares(gram, own, margin, error) for gram, error in both])
            steps = self.engine.weighted_sums(updates, pi * shares)
            for n, step in steps.items():
                out[n][updates.clients] = step
        return out


def _shares(gram: Tensor, own: Tensor, margin: float, error: float) -> Tensor:
    """(c, m) how much of each row enters the step: all of one's `own` (c, m), u of the others.
    A ridge above the error of the products keeps the programs convex."""
    is_finite = gram.diagonal(dim1=1, dim2=2).isfinite()
    used = ~own & is_finite & (is_finite | ~own).all(dim=1, keepdim=True)
    Q = gram.where(used[:, :, None] & used[:, None, :], 0.0)  # a variable without size is left out
    p = gram.where(used[:, :, None] & own[:, None, :], 0.0).sum(dim=2)
    return torch.where(own, 1.0, bounded_minimum(Q, p, margin, max(RIDGE, error)))
