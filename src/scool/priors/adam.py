"""Adam as a pure function: moments in, moments out."""

from typing import NamedTuple

import torch
from torch import Tensor

from scool.types import Params

EPSILON = 1e-8


class Moments(NamedTuple):
    """Running means of the gradient and of its square, and how many steps they have seen."""

    first: Params
    second: Params
    steps: Tensor  # int64 scalar


def start(phi: Params, copies: int | None = None) -> Moments:
    """Zero moments of phi, or of `copies` copies of it along a first axis."""
    lead = () if copies is None else (copies,)
    zeros = {name: x.new_zeros((*lead, *x.shape)) for name, x in phi.items()}
    return Moments(zeros, {name: x.clone() for name, x in zeros.items()}, torch.tensor(0))


def descend(
    phi: Params,
    gradient: Params,
    moments: Moments,
    lr: float,
    betas: tuple[float, float],
    weight_decay: float,
    decoupled: bool,
) -> tuple[Params, Moments]:
    """One step of Adam (decay in the gradient) or AdamW (`decoupled`).

    A gradient with a leading axis of copies takes one step on each copy and averages the copies.
    """
    steps = moments.steps + 1
    t, (b1, b2) = int(steps), betas
    new: Params = {}
    first: Params = {}
    second: Params = {}
    for name, x in phi.items():
        g = gradient[name] if decoupled else gradient[name] + weight_decay * x
        first[name] = b1 * moments.first[name] + (1 - b1) * g
        second[name] = b2 * moments.second[name] + (1 - b2) * g * g
        size = (second[name] / (1 - b2**t)).sqrt() + EPSILON
        direction = first[name] / (1 - b1**t) / size
        if direction.ndim > x.ndim:
            direction = direction.mean(0)
        shrink = 1 - lr * weight_decay if decoupled else 1.0
        new[name] = shrink * x - lr * direction
    return new, Moments(first, second, steps)
