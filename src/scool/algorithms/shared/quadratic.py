"""Many small quadratic programs at once."""

from collections.abc import Callable

import torch
from torch import Tensor

# torch's stubs leave its type open
solve: Callable[[Tensor, Tensor], Tensor] = torch.linalg.solve  # pyright: ignore

RIDGE = 1e-10  # of the unit diagonal: what makes a singular program have one answer
TOLERANCE = 1e-10  # a number that small, beside the largest of p, counts as 0
PATIENCE = 3  # exchanges of whole sets without progress before single ones; Kim and Park's value


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

    Guess the set of free variables, solve for them, exchange those whose sign or gradient is
    wrong; where that goes in circles exchange one at a time, the last, which ends after finitely
    many steps (Murty). What is left after the last pass is cut to the bound.
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
