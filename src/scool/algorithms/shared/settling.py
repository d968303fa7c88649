"""When the weights of kinds of cooperation have settled, so that judging is over."""

import torch
from torch import Tensor

CALM = 20  # fewest rounds without a change of the weights after which they have settled
MOVED = 0.05  # of its weight that the mean owner gives to other kinds: above this, not settled
LEAST = 0.05  # weights of an owner below this become 0 when judging ends
OVER = 1 << 30  # rounds of calm: judging is over


def needed_calm(round: int, memory: float = 0.0) -> float:
    r"""[TRACK-calm] Rounds without a change after which weights have settled in round t (from 1):
    $\max(20, \frac{t}{2}, \frac{2}{1 - m})$. Kinds that learn slowly pay later: nothing may have
    changed while the run doubled its length, nor while a kind that answers with an average of
    memory m still remembered its first models.

    >>> needed_calm(9), needed_calm(99), round(needed_calm(99, 0.98))
    (20, 50.0, 100)
    """
    return max(CALM, (round + 1) / 2, 2 / (1 - memory))


def settled(
    weights: Tensor, anchor: Tensor, calm: Tensor, needed: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights (K, A), those when they last moved, and the rounds since then: `OVER`, and small
    weights are 0, if these are enough."""
    moved = (weights - anchor).abs().sum(dim=1).mean() / 2
    if moved > MOVED:
        return weights, weights, torch.zeros_like(calm)
    if calm + 1 < needed:
        return weights, anchor, calm + 1
    return without_small(weights), anchor, torch.full_like(calm, OVER)


def without_small(weights: Tensor) -> Tensor:
    """(K, A) as they are when judging is over."""
    weights = weights.where(weights >= LEAST, 0.0)
    return weights / weights.sum(dim=1, keepdim=True)
