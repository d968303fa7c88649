"""A learning rate that suits a federation, found by what owners learn alone in a few rounds."""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from scool.algorithms.shared.evidence import told_by_all
from scool.algorithms.shared.held_out import numbers_of
from scool.contracts import Engine
from scool.errors import QuarantineError
from scool.learning.local_sgd import LocalSGD
from scool.types import Tree

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
GUARD = 1.0  # tried, too, and never taken: with few samples it looks better than it is
ROUNDS = 5  # of learning alone, of each owner and with each rate
LEAST = 1e-12  # mean squared error below which a fit is perfect


class Tried(NamedTuple):
    """What owners who learn alone say of one rate; NaN in the rows of those who say nothing."""

    start: Tensor  # (K,) training loss of the first round
    end: Tensor  # (K,) of the last one
    held_out: Tensor  # (K,) loss on held-out samples then
    is_sound: bool  # nobody's numbers broke


def find_rate(engine: Engine, theta: Tree, sgd: LocalSGD) -> float:
    r"""[TRACK-eta] The learning rate with which owners who learn alone explain held-out samples
    best.

    With each rate $\eta$ of `RATES` every owner learns alone for `ROUNDS` rounds, without the
    samples held out. $V_i(\eta)$ is its held-out loss then, with the sharpness that suits the mean
    owner best; $T(\eta)$ the mean of the training losses in the last round. In regression both are
    logs of mean squared errors, so that owners with large targets count as others do.

    A rate counts if nobody's numbers break with it, nor with the next larger one, as a run is
    longer than this; and if T falls at least half as far as with the fastest such rate: where
    owners have too few samples to learn anything alone, not learning would look best. $\eta$ is the
    smallest of these whose $V_i$ are, in the mean, within one standard error of the best. Owners
    tell means only.
    """
    rates = (*RATES, GUARD)
    return RATES[chosen([_try(engine, theta, replace(sgd, lr=rate)) for rate in rates])]


def chosen(tried: list[Tried]) -> int:
    """The index of the rate, which is not the last one; that of the smallest if all break."""
    start = tried[0].start.nanmean()  # the smallest rate: hardly moved
    is_safe = [one.is_sound and next_.is_sound for one, next_ in pairwise(tried)]
    falls = [
        float(start - one.end.nanmean()) if safe else -torch.inf
        for one, safe in zip(tried, is_safe, strict=False)
    ]
    learn = [a for a, fall in enumerate(falls) if fall > -torch.inf and fall >= max(falls) / 2]
    if not learn:
        return 0
    means = {a: float(tried[a].held_out.nanmean()) for a in learn}
    best = min(learn, key=lambda a: (means[a] != means[a], means[a]))
    for a in learn:
        apart = tried[a].held_out - tried[best].held_out
        apart = apart[apart.isfinite()]
        if len(apart) > 1 and apart.mean() <= apart.std() / len(apart) ** 0.5:
            return a
    return best


def _try(engine: Engine, theta: Tree, sgd: LocalSGD) -> Tried:
    view = engine.view(f"rate {sgd.lr:g}")
    view.health.absent = engine.health.absent
    once = replace(sgd, lr_schedule="constant", lr_decay=1.0)
    theta = {name: t.clone() for name, t in theta.items()}
    losses: list[Tensor] = []
    for t in range(ROUNDS):
        try:
            theta, loss = view.train(theta, once, t)
        except QuarantineError:  # strict: here it says that the rate is too large, no more
            loss = torch.full((engine.num_clients,), torch.nan)
        losses.append(loss.double())
    seen = numbers_of(view, [theta])
    numbers = seen.numbers[..., 0].nanmean(dim=2)  # (K, 1 + B)
    told = told_by_all(engine, torch.cat([torch.stack([losses[0], losses[-1]], 1), numbers], 1))
    start, end, right, surer = told[:, 0], told[:, 1], told[:, 2], told[:, 3:]
    is_sound = view.health.reasons.keys() <= engine.health.reasons.keys()
    if bool((seen.outputs.nan_to_num(0.0) > 0).any()):
        start, end, held_out = (x.clamp_min(LEAST).log() for x in (start, end, -right))
        return Tried(start, end, held_out, is_sound)
    best = surer.nanmean(dim=0).nan_to_num(torch.inf).argmin()
    return Tried(start, end, surer[:, int(best)], is_sound)
