"""How good each client's model is on the client's own task, and how far a graph is from the true
one."""

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from scool.contracts import Engine, Split
from scool.data.federation import Federation, Task
from scool.evaluation.metrics import ALWAYS, SCORE, Metric, as_metric
from scool.graph.mixing import normalise_rows
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


def chosen_metrics(names: Sequence[str], task: Task) -> list[Metric]:
    """The metrics of a run beside its score: those asked for, and those that its task always has.

    Raises:
        ConfigError: one of them belongs to another task.
    """
    for name in names:
        as_metric(name).check_task(task)
    wanted = dict.fromkeys((*names, *ALWAYS[task]))
    return [as_metric(name) for name in wanted if name != SCORE[task]]


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
    measured[broken] = torch.nan  # whatever a model answers to what is not a number
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


# ---------------------------------------------------------------------- graphs


def graph_l1(w: Tensor, truth: Tensor, among: Tensor | None = None) -> float:
    r"""$\frac1K \sum_i \sum_j |\hat w_{ij} - w^*_{ij}|$, between 0 and 2; of the clients i
    in `among` (K,) bool where that is given.

    >>> graph_l1(torch.eye(2), torch.full((2, 2), 0.5))
    1.0
    """
    off = (normalise_rows(w.double()) - normalise_rows(truth.double())).abs().sum(1)
    return float((off if among is None else off[among]).mean())


def communities(w: Tensor, count: int) -> Tensor:
    """(K,) the `count` groups that a graph shows: spectral clustering of the mutual weights.

    A graph without edges has K groups of one; a graph without contrast has one group of K.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    k = len(w)
    affinity = normalise_rows(w.double().cpu())
    affinity = (affinity + affinity.T) / 2
    affinity.fill_diagonal_(0)
    if not bool((affinity > 1e-12).any()):
        return torch.arange(k)
    off = affinity[~torch.eye(k, dtype=torch.bool)]
    if count < 2 or float(off.max() - off.min()) < 1e-9:
        return torch.zeros(k, dtype=torch.int64)
    scale = affinity.sum(1).clamp(min=1e-12).rsqrt()
    _, vectors = torch.linalg.eigh(scale[:, None] * affinity * scale)
    embedding = vectors[:, -min(count, k) :]
    embedding = embedding / embedding.norm(dim=1, keepdim=True).clamp(min=1e-12)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # fewer distinct rows than groups is an answer, not a fault
        labels = KMeans(min(count, k), n_init="auto", random_state=0).fit_predict(embedding.numpy())
    return torch.from_numpy(labels.astype(np.int64))


def adjusted_rand(a: Tensor, b: Tensor) -> float:
    """Agreement of two groupings: 1 for the same up to names, about 0 for unrelated ones.

    >>> adjusted_rand(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 3, 3]))
    1.0
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(a.cpu().numpy(), b.cpu().numpy()))
