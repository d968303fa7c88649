"""What the data of its neighbours would do to a client's model, and a step that suits all of
them."""

from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor

from scool.contracts import Engine, Trained, Updates
from scool.graph.edges import Edges, Matrix, values_at
from scool.types import Tree

# torch's stubs leave its type open
solve: Callable[[Tensor, Tensor], Tensor] = torch.linalg.solve  # pyright: ignore

RIDGE = 1e-10  # of the unit diagonal: what makes a singular program have one answer
TOLERANCE = 1e-10  # a number this small, relative to the largest of p, counts as 0
PATIENCE = 3  # exchanges of whole sets without progress before single ones; Kim and Park's value


@final
class CrossUpdates:
    r"""$g_{ij} = \theta_i - \theta_{ij}$: minus the change that the steps of client j make to the
    model of i, one row for each pair as `Engine.train_at` returns them, (i, i) included."""

    def __init__(self, engine: Engine, w: Matrix, pairs: Edges, theta: Tree, found: Trained):
        self.engine, self.theta, self.visited = engine, theta, found.theta
        owned = engine.owned.cpu()
        place = _places(pairs, owned)  # of the pairs of the clients held here
        self.is_own = pairs.is_loop[place]  # (E,)
        self.pi = values_at(w, pairs)[place]
        self.is_good = found.loss[place].isfinite() & (self.pi != 0)
        self.count = pairs.degrees[owned]  # (n,) rows of each client held here
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


def _places(pairs: Edges, clients: Tensor) -> Tensor:
    """(E,) where the pairs of these receivers are listed, receiver after receiver."""
    count = pairs.degrees[clients]
    rank = torch.arange(int(count.sum())) - (count.cumsum(0) - count).repeat_interleave(count)
    return pairs.ends[clients].repeat_interleave(count) + rank


def _shares(gram: Tensor, own: Tensor, margin: float, error: float) -> Tensor:
    """(c, m) how much of each row enters the step: all of the client's `own` (c, m), u of the
    others. A ridge above the error of the products keeps the programs convex."""
    is_finite = gram.diagonal(dim1=1, dim2=2).isfinite()
    used = ~own & is_finite & (is_finite | ~own).all(dim=1, keepdim=True)
    Q = gram.where(used[:, :, None] & used[:, None, :], 0.0)  # a variable without size is left out
    p = gram.where(used[:, :, None] & own[:, None, :], 0.0).sum(dim=2)
    return torch.where(own, 1.0, bounded_minimum(Q, p, margin, max(RIDGE, error)))


def bounded_minimum(Q: Tensor, p: Tensor, lower: float = 0.0, ridge: float = RIDGE) -> Tensor:
    r"""$\arg\min_u \frac12 u^\top Q u + p^\top u$ with $u \ge$ `lower`, for B programs.

    A variable whose diagonal entry is 0 is left out: it is 0, whatever the bound.

    >>> bounded_minimum(torch.eye(2).double()[None], torch.tensor([[-1.0, 2.0]]).double()).round()
    tensor([[1., 0.]], dtype=torch.float64)

    Args:
        Q: (B, m, m) float64, symmetric, positive semidefinite.
        p: (B, m), in the range of Q.
        ridge: above the errors of Q, beside its diagonal.
    """
    if not p.shape[1]:
        return p
    size = Q.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()  # (B, m)
    is_there = size > 0
    base = lower * is_there.double()
    inverse = torch.where(is_there, 1 / size.where(is_there, 1.0), 0.0)
    shifted = (p + (Q @ base[..., None])[..., 0]) * inverse
    scaled = inverse[..., None] * Q * inverse[:, None, :]
    eye = torch.eye(p.shape[1], dtype=Q.dtype)
    scaled = torch.where(eye.bool(), 1 + ridge, scaled)
    return base + _nonnegative_minimum(scaled, shifted) * inverse


def _nonnegative_minimum(Q: Tensor, p: Tensor) -> Tensor:
    """Block principal pivoting (Judice and Pires, 1994; Kim and Park, 2011) with a unit diagonal.

    Guess the set of free variables, solve for them, exchange those whose sign or gradient is wrong;
    if that cycles, exchange one at a time, the last, which ends after finitely many steps (Murty).
    What is left after the last pass is cut to the bound.
    """
    eye = torch.eye(p.shape[1], dtype=Q.dtype)
    index = torch.arange(p.shape[1])
    small = TOLERANCE * p.abs().amax(dim=1, keepdim=True)
    free = torch.zeros_like(p, dtype=torch.bool)
    x, y = torch.zeros_like(p), p  # y: the gradient, Q x + p
    fewest = torch.full((len(p),), p.shape[1] + 1)
    patience = torch.full((len(p),), PATIENCE)
    for _ in range(50 + 5 * p.shape[1]):
        wrong = torch.where(free, x < -small, y < -small)
        count = wrong.sum(dim=1)
        if not bool(count.any()):
            break
        better = count < fewest
        fewest = torch.minimum(fewest, count)
        patience = torch.where(better, PATIENCE, patience - 1)
        last = (wrong * (index + 1)).amax(dim=1, keepdim=True) - 1
        free = free ^ torch.where((patience >= 0)[:, None], wrong, wrong & (index == last))
        both = free[:, :, None] & free[:, None, :]
        A = torch.where(both, Q, 0.0) + (~free)[:, None, :] * eye
        solved = solve(A, torch.where(free, -p, 0.0)[..., None])
        x = solved[..., 0]
        y = (Q @ solved)[..., 0] + p
    return x.clamp(min=0)
