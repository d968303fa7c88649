"""How well models explain held-out samples, one by one."""

from typing import NamedTuple

import torch
from torch import Tensor

from scool.contracts import Engine, PerClient
from scool.learning.losses import LOSSES
from scool.priors.tracks import gaussian_log_lik, mean_log_lik, owner_variances
from scool.types import Tree

SHARPNESS = tuple(2.0**power for power in (-3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1))
TRUST = (0.0, 6.0)  # nats by which classes that a client does not hold are less likely
TRIED = tuple((beta, trust) for trust in TRUST for beta in SHARPNESS)
WORST = 1e4  # loss of a model that fails on a sample: it gets no weight, and all stays finite
WORST_ERROR = 1e30  # the same of regression, whatever the unit of its targets


class HeldOut(NamedTuple):
    """How A models of each client explain its validation samples."""

    log_lik: Tensor  # (K, S, A); NaN where a client has no more samples, or takes no part
    sharpness: Tensor  # (A,) beta, with which they are most likely; 1 in regression
    trust: Tensor  # (A,) lambda, likewise; 0 in regression
    scores: Tensor  # (K, A) percent that are right; of regression minus the mean squared error


class Numbers(NamedTuple):
    """What A models of each client say of its validation samples, and what they would say if they
    were surer; NaN where a client has no more samples, or takes no part."""

    numbers: Tensor  # (K, 1 + len(TRIED), S, A): right or not (minus squared error), then losses
    outputs: Tensor  # (K,) targets of regression, else 0


def numbers_of(engine: Engine, thetas: list[Tree]) -> Numbers:
    """Judge the models of all clients, each on its own samples."""
    most = int(engine.val_sizes.max())
    count = 1 + most * (1 + len(TRIED))
    found = torch.stack([engine.judge(t, "val", _per_sample(most), count) for t in thetas], dim=-1)
    found[~engine.active] = torch.nan
    numbers = found[:, 1:].reshape(len(found), 1 + len(TRIED), most, len(thetas))
    return Numbers(numbers, found[:, 0, 0])


def held_out(engine: Engine, thetas: list[Tree]) -> HeldOut:
    r"""[TRACK-beta] $\ell_{isa} = \log\mathrm{softmax}(\beta_a f_{\theta_{ia}}(x_{is}) - \lambda_a
    (1 - c_i))_{y_{is}}$ with the $\beta_a$ and $\lambda_a$ of a kind that explain the samples of
    the mean owner best; $c_i$ is 1 for the classes that owner i holds. Models that have memorised
    their samples are too confident, and models of others answer with classes that this owner does
    not have. A mixture would correct that, and mistake it for evidence for other kinds."""
    numbers, wide = numbers_of(engine, thetas)
    outputs = int(wide.nan_to_num(0.0).max())
    right = numbers[:, 0]  # (K, S, A)
    if outputs:
        ones = torch.ones(len(thetas), dtype=torch.float64)
        scores = right.nanmean(1)
        log_lik = gaussian_log_lik(-right, outputs, variances_of(-scores, outputs, engine))
        return HeldOut(log_lik, ones, torch.zeros_like(ones), scores)
    tried = [-numbers[:, 1 + b] for b in range(len(TRIED))]
    best = torch.stack([mean_log_lik(log_lik) for log_lik in tried]).argmax(dim=0)  # (A,)
    log_lik = torch.stack([tried[int(b)][..., a] for a, b in enumerate(best)], dim=-1)
    return HeldOut(log_lik, *of_tried(best), 100 * right.nanmean(1))


def of_tried(best: Tensor) -> tuple[Tensor, Tensor]:
    r"""(A,) $\beta$ and (A,) $\lambda$ by their places in the list of those tried."""
    sharpness, trust = torch.tensor(TRIED, dtype=torch.float64)[best].T
    return sharpness, trust


def classes_held(engine: Engine, theta: Tree) -> Tensor:
    """(K, C), 1 for the classes that a client holds; all where it has no validation samples or is
    not here, (K, 1) in regression."""

    def count(outputs: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
        del outputs
        return torch.tensor([1 if targets.is_floating_point() else len(classes)]).double()

    def held(outputs: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
        del outputs
        return torch.ones(1).double() if targets.is_floating_point() else classes.double()

    wide = engine.judge(theta, "val", count, 1).nan_to_num(1.0)
    width = int(wide.max()) if len(wide) else 1
    return engine.judge(theta, "val", held, width).nan_to_num(1.0)


def variances_of(errors: Tensor, outputs: int, engine: Engine) -> Tensor:
    """(K,) of each owner's targets, by the mean squared errors (K, A) of its kinds."""
    least = errors.clamp(max=WORST_ERROR).nan_to_num(torch.inf).amin(dim=1) / outputs
    return owner_variances(least, outputs * engine.val_sizes.double())


def _per_sample(most: int) -> PerClient:
    """A metric: 0 or the number of targets of regression, then of each sample whether it is right,
    then its loss for each sharpness and trust."""

    def numbers(outputs: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
        rows = torch.full((1 + len(TRIED), most), torch.nan, dtype=torch.float64)
        size = len(outputs)
        if targets.is_floating_point():
            wide = torch.tensor([targets.shape[1]])
            errors = 2 * LOSSES["regression"](outputs, targets)
            rows[0, :size] = -errors.nan_to_num(WORST_ERROR).clamp(max=WORST_ERROR)
        else:
            wide = torch.tensor([0])
            rows[0, :size] = (outputs.argmax(dim=1) == targets).double()
            absent = 1 - classes.double()
            tried = torch.stack([beta * outputs - trust * absent for beta, trust in TRIED])
            again = targets.expand(len(TRIED), -1)
            losses = LOSSES["classification"](tried.flatten(0, 1), again.flatten())
            losses = losses.nan_to_num(WORST, posinf=WORST).clamp(max=WORST)
            rows[1:, :size] = losses.view(len(TRIED), size)
        return torch.cat([wide.double(), rows.flatten()])

    return numbers
