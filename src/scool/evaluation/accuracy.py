"""How good each client's model is on the client's own task."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scool.contracts import Engine, Split
from scool.data.federation import Federation
from scool.evaluation.metrics import Metric
from scool.learning.losses import squared_error
from scool.types import Tree


def own_outputs(outputs: Tensor, classes: Tensor) -> Tensor:
    """The outputs (..., O), minus infinity for classes (..., C) that are not the client's own and
    for outputs beyond the C classes.

    >>> own_outputs(torch.tensor([9.0, 1.0, 2.0]), torch.tensor([False, True]))
    tensor([-inf, 1., -inf])
    """
    beyond = outputs.shape[-1] - classes.shape[-1]
    return outputs.masked_fill(~nn.functional.pad(classes, (0, beyond)), -torch.inf)


def correct(outputs: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
    """1 where the largest logit among the client's own classes is the right one, else 0.

    The mask is the paper's protocol: a client is never asked about classes it does not have.

    >>> logits = torch.tensor([[9.0, 1.0, 2.0]])
    >>> correct(logits, torch.tensor([2]), torch.tensor([False, True, True]))
    tensor([1.])
    """
    return (own_outputs(outputs, classes).argmax(dim=-1) == targets).to(outputs.dtype)


class Scores(NamedTuple):
    """Numbers of each client; NaN where one has no such samples, or some that are not finite."""

    score: Tensor  # (K,) accuracy, or R^2 for regression
    loss: Tensor  # (K,) mean loss over all C logits (unmasked)
    unmasked: Tensor | None = None  # (K,) accuracy where all C classes may be answered
    metrics: Mapping[str, Tensor] = {}  # (K,) of each other metric; NaN also where not defined


def evaluate(
    engine: Engine,
    theta: Tree,
    federation: Federation,
    split: Split = "test",
    metrics: Sequence[Metric] = (),
) -> Scores:
    """Every client's model on the client's own samples of a split."""
    scores = _scores(engine, theta, federation, split)
    return scores._replace(metrics=judge(engine, theta, federation, split, metrics))


def judge(
    engine: Engine,
    theta: Tree,
    federation: Federation,
    split: Split,
    metrics: Sequence[Metric],
) -> dict[str, Tensor]:
    """(K,) float64 values of metrics that see all answers of a client, by name."""
    if not metrics:
        return {}
    is_class = federation.task == "classification"

    def of_client(outputs: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
        if is_class:
            outputs = own_outputs(outputs, classes)
        else:
            outputs, targets = federation.in_unit(outputs), federation.in_unit(targets)
        return torch.tensor([metric(outputs, targets) for metric in metrics], dtype=torch.float64)

    found = engine.judge(theta, split, of_client, len(metrics))
    found[~getattr(federation, split).is_finite().to(found.device)] = torch.nan
    return {metric.name: found[:, n] for n, metric in enumerate(metrics)}


def _scores(engine: Engine, theta: Tree, federation: Federation, split: Split) -> Scores:
    """Score and loss, which are means over samples."""
    is_classification = federation.task == "classification"

    def metric(outputs: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
        loss = engine.loss(outputs, targets)
        if not is_classification:
            return torch.stack([loss, squared_error(outputs, targets)], dim=-1)
        right = correct(outputs, targets, classes)
        right_of_all = (outputs.argmax(dim=-1) == targets).to(outputs.dtype)
        return torch.stack([loss, right, right_of_all], dim=-1)

    measured = engine.measure(theta, split, metric)
    broken = ~getattr(federation, split).is_finite().to(measured.device)
    measured[broken] = torch.nan  # whatever a model answers to what is no number
    loss, *scores = measured.unbind(dim=-1)
    if is_classification:
        return Scores(scores[0], loss, scores[1])
    variance = _target_variance(federation, split)
    return Scores(1 - 2 * scores[0] / variance.masked_fill(variance == 0, torch.nan), loss)


def _target_variance(federation: Federation, split: Split) -> Tensor:
    """(K,) mean squared distance of the targets to their own mean, the yardstick of R^2."""
    part = getattr(federation, split)
    y, mask = part.y.double(), part.mask[..., None].double()
    count = mask.sum(dim=1, keepdim=True)
    mean = (y * mask).sum(dim=1, keepdim=True) / count
    return (((y - mean) * mask).square().sum(dim=(1, 2)) / count[:, 0, 0]).cpu()
