"""How good each client's model is on its own task, how far a graph is from the true one, and all
that is recorded of a round as one row of numbers."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from scool.contracts import Engine, Split
from scool.data.federation import Federation, Task
from scool.evaluation.metrics import ALWAYS, SCORE, Metric, as_metric
from scool.graph.edges import SMALL, Edges, Matrix, as_matrix
from scool.graph.mixing import normalise_rows
from scool.learning.losses import squared_error
from scool.types import Info, Tree


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
    measured[broken] = torch.nan  # answers to non-finite samples mean nothing
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


# ---------------------------------------------------------------------- the row of a round


def describe_round(
    t: int, info: Info, scores: Scores | None, engine: Engine, federation: Federation
) -> dict[str, Any]:
    """The row of round t. Nothing in it depends on the clock. Closes the ledger's round."""
    traffic = engine.ledger.close_round()
    row: dict[str, Any] = {"round": t, "train_loss": finite(_mean(info["train_loss"]))}
    if scores is not None:
        row |= _describe_scores(scores, federation)
        row |= describe_graph(info["graph"], engine.active, federation, engine.health.absent)
    for name, value in info.items():
        if name in ("graph", "train_loss"):
            continue
        row[name] = _plain(value)
    if isinstance(blocks := row.get("blocks"), list):  # clients in quarantine are in none
        row["blocks"] = [None if i in engine.health.reasons else b for i, b in enumerate(blocks)]
    row |= {
        "messages": traffic.total_messages,
        "bytes": traffic.total_bytes,
        "epochs": traffic.samples / int(engine.sizes.sum()),
        "traffic": {name: traffic.bytes[name] for name in sorted(traffic.bytes)},
        "quarantined": {str(client): why for client, why in engine.health.words.items()},
    }
    return row


def _plain(value: Tensor | float | Mapping[str, Any]) -> Any:
    """Numbers and lists that JSON can hold; whole numbers stay whole."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if not isinstance(value, Tensor) or value.dim() == 0:
        return finite(value)
    return [_plain(v) for v in value] if value.is_floating_point() else value.tolist()


def _mean(value: Tensor | float) -> Tensor | float:
    return value.nanmean() if isinstance(value, Tensor) else value


def _describe_scores(scores: Scores, federation: Federation) -> dict[str, Any]:
    """Accuracy in percent (or R^2): mean and spread over clients, and the score of each."""
    is_class = federation.task == "classification"
    name, score = ("accuracy", 100 * scores.score) if is_class else ("r2", scores.score)
    row = {
        f"{name}_mean": finite(score.nanmean()),
        f"{name}_std": finite(spread(score)),
        "test_loss": finite(scores.loss.nanmean()),
        "scores": [finite(s) for s in score],
    }
    for metric, values in scores.metrics.items():
        row[f"{metric}_mean"] = finite(values.nanmean())
        row[f"{metric}_std"] = finite(spread(values))
        row[f"{metric}_undefined"] = int((values.isnan() & ~scores.loss.isnan()).sum())
    if scores.metrics:
        row["metrics"] = {m: [finite(v) for v in values] for m, values in scores.metrics.items()}
    if scores.unmasked is not None:
        row["unmasked_accuracy_mean"] = finite(100 * scores.unmasked.nanmean())
    return row


def describe_owners(engine: Engine, slow: list[int]) -> dict[str, Any]:
    """Clients that took no part in the round or did fewer steps, if any; with many clients only
    their number."""
    absent = engine.health.absent.nonzero()[:, 0].tolist()
    shown = {"absent": absent, "slow": [c for c in slow if bool(engine.active[c])]}
    is_few = engine.num_clients <= SMALL
    return {name: who if is_few else len(who) for name, who in shown.items() if who}


def describe_graph(
    graph: Matrix | float, active: Tensor, federation: Federation, absent: Tensor | None = None
) -> dict[str, Any]:
    """Distance to the true graph, and how well its groups show among the clients that are not in
    quarantine."""
    assert isinstance(graph, Tensor | Edges)
    row: dict[str, Any] = {}
    if federation.truth is None and federation.groups is None:
        return row
    graph = as_matrix(graph)  # as large as the true one
    present = None if absent is None else ~absent
    if federation.truth is not None:  # absent clients mixed nothing
        row["graph_l1"] = graph_l1(graph.cpu(), federation.truth.cpu(), present)
    if federation.groups is not None:
        groups, among = federation.groups.cpu()[active], graph.cpu()[active][:, active]
        found = communities(among, int(groups.unique().numel()))
        row["graph_ari"] = adjusted_rand(found, groups)
    return row


def spread(score: Tensor) -> Tensor:
    """Standard deviation over the clients that have a score; NaN if none has."""
    return (score - score.nanmean()).square().nanmean().sqrt()


def finite(value: Tensor | float) -> float | None:
    """A number that JSON can hold: None for NaN and infinities."""
    number = float(value)
    return number if math.isfinite(number) else None
