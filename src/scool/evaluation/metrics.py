"""Metrics of a client: numbers that need all its answers at once, such as the area under a curve.

A metric is one entry of `METRICS`. A run computes those that it is asked for (`--metrics auc f1`),
and every table, the page, CSV and JSON show those that a run has. All judge the answers of
`predict`: the outputs of classes that a client never answers with are minus infinity.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from scool.columns import Column
from scool.data.federation import Task
from scool.errors import ConfigError, require, unknown

Function: TypeAlias = Callable[[Tensor, Tensor], Tensor | float]
"""(outputs (s, C), targets (s,), or (s, outputs) of regression) of one client, float64 and on the
CPU -> a number; NaN where it is not defined."""


@dataclass(frozen=True)
class Metric:
    """A number for each client, how it is called and how it is written."""

    name: str
    """In records and on the command line."""
    function: Function
    words: str = ""
    """The heading of its column; its name where it is empty."""
    task: Task | None = None
    """The task it belongs to; None: any."""
    higher_is_better: bool = True
    digits: int = 3
    """Digits behind the point in tables."""

    def check_task(self, task: Task) -> None:
        """
        Raises:
            ConfigError: this metric does not belong to the task.
        """
        fitting = ", ".join(m.name for m in METRICS.values() if m.task in (None, task))
        is_fit = self.task in (None, task)
        require(is_fit, "metrics", self.name, f"this is {task}: give {fitting}")

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        """Its value for one client; NaN where outputs are not numbers.

        Raises:
            ConfigError: the function fails, or gives something else than a number.
        """
        if bool(outputs.isnan().any()):
            return torch.nan
        try:
            return float(self.function(outputs, targets))
        except Exception as error:
            raise ConfigError(
                f"metric {self.name!r} failed on outputs {tuple(outputs.shape)} and targets "
                f"{tuple(targets.shape)} ({type(error).__name__}: {error}): return one number for "
                "the answers of one client, NaN where it is not defined"
            ) from error


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Percent of the samples whose largest output is that of the right class."""
    return 100 * (outputs.argmax(dim=1) == targets).double().mean()


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over the classes in the targets of the percent that is found.

    >>> balanced_accuracy(torch.eye(2).double()[[0, 0, 0, 0]], torch.tensor([0, 0, 0, 1]))
    tensor(50., dtype=torch.float64)
    """
    found, _, there = _counts(outputs, targets)
    return 100 * (found / there)[there > 0].mean()


def f1(outputs: Tensor, targets: Tensor) -> Tensor:
    """F1 of class 1 where there are two classes, else the mean over the classes that are in the
    targets or in the answers."""
    found, answered, there = _counts(outputs, targets)
    scores = 2 * found / (answered + there)  # 0 / 0 is NaN: the class does not occur
    return scores[1] if len(scores) == 2 else scores.nanmean()


def auc(outputs: Tensor, targets: Tensor) -> Tensor:
    """Area under the ROC curve, ties included: of class 1 where there are two classes, else the
    mean over the classes in the targets of each against the rest. Not defined for one class.

    >>> auc(torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([1, 0, 0]))
    tensor(0.7500, dtype=torch.float64)
    """
    if outputs.shape[1] == 2:
        scores, is_it = (outputs[:, 1] - outputs[:, 0])[None], (targets == 1)[None]
    else:
        present = targets.unique()
        scores = outputs.double().softmax(dim=1).T[present].contiguous()
        is_it = targets == present[:, None]
    ranked = scores.sort(dim=1).values
    first, last = (torch.searchsorted(ranked, scores, right=end) for end in (False, True))
    ranks = (first + last + 1).double() / 2  # of equal scores the mean
    ours = is_it.sum(dim=1).double()
    pairs = ours * (len(targets) - ours)
    wins = (ranks * is_it).sum(dim=1) - ours * (ours + 1) / 2
    return (wins / pairs).mean()  # 0 / 0 is NaN


def log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the mean log-probability of the right class."""
    return -outputs.log_softmax(dim=1).gather(1, targets[:, None]).mean()


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Root of the mean squared error, in the unit of the targets."""
    return (outputs - targets).square().mean().sqrt()


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error, in the unit of the targets."""
    return (outputs - targets).abs().mean()


def r2(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of the variance of the targets that is explained. Not defined for constant targets."""
    variance = (targets - targets.mean(dim=0)).square().sum()
    missed = (outputs - targets).square().sum()
    return 1 - missed / variance.masked_fill(variance == 0, torch.nan)


def _counts(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(C,) samples of each class that are found, that are answered with it, and that there are."""
    answers, classes = outputs.argmax(dim=1), outputs.shape[1]
    found = targets[answers == targets]
    a, b, c = (t.bincount(minlength=classes).double() for t in (found, answers, targets))
    return a, b, c


_ENTRIES = (
    Metric("accuracy", accuracy, "accuracy %", "classification", digits=2),
    Metric("balanced_accuracy", balanced_accuracy, "balanced %", "classification", digits=2),
    Metric("auc", auc, "AUC", "classification"),
    Metric("f1", f1, "F1", "classification"),
    Metric("log_loss", log_loss, "log loss", "classification", higher_is_better=False),
    Metric("r2", r2, "R2", "regression"),
    Metric("rmse", rmse, "RMSE", "regression", higher_is_better=False),
    Metric("mae", mae, "MAE", "regression", higher_is_better=False),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ENTRIES}
"""Every metric by name. A metric of your own is added to it when a run is given the function."""

SCORE: dict[Task, str] = {"classification": "accuracy", "regression": "r2"}
"""The metric that is the score of a run, by task."""
ALWAYS: dict[Task, tuple[str, ...]] = {"classification": (), "regression": ("rmse",)}
"""Metrics beside the score that need not be asked for."""


def as_metric(metric: Any) -> Metric:
    """The metric of a name, or of a function of your own.

    Raises:
        ConfigError: it is not a metric.
    """
    if isinstance(metric, str):
        return METRICS[metric] if metric in METRICS else unknown("metric", metric, METRICS)
    remedy = "give a name, e.g. 'auc', or a function (outputs, targets) -> number"
    require(callable(metric), "metric", metric, remedy)
    if isinstance(metric, Metric):
        return metric
    name = getattr(metric, "__name__", type(metric).__name__)
    return Metric(name, cast("Function", metric))


def named(metric: Any) -> str:
    """The name of a metric: of an entry, or of a function or `Metric` of your own, which becomes an
    entry.

    Raises:
        ConfigError: it is not a metric, or has the name of another one.
    """
    found = as_metric(metric)
    remedy = "give a name, or a function (outputs, targets) -> number that has a name"
    require(found.name.isidentifier(), "metrics", metric, remedy)
    is_free = found.name not in {entry.name for entry in _ENTRIES}
    is_free |= METRICS.get(found.name) == found
    require(is_free, "metrics", found.name, "scool has one of that name; choose another")
    METRICS[found.name] = found
    return found.name


def checked_names(metrics: Any) -> tuple[str, ...]:
    """The names of the metrics asked for, each once."""
    several = [metrics] if isinstance(metrics, str | Metric) or callable(metrics) else metrics
    require(isinstance(several, Iterable), "metrics", metrics, "give names, e.g. ('auc', 'f1')")
    return tuple(dict.fromkeys(named(metric) for metric in several))


def metric_columns(rows: Iterable[Mapping[str, Any]]) -> list[Column]:
    """The columns of the metrics that some rows of a run, or summaries of runs, have."""
    rows = list(rows)
    columns: list[Column] = []
    for name in dict.fromkeys(name for row in rows for name in row.get("metrics") or ()):
        known = METRICS.get(name)  # except a function that only another process had
        words, digits = (known.words or name, known.digits) if known else (name, 3)
        columns.append(Column(f"{name}_mean", words, str(digits)))
        if any(row.get(f"{name}_undefined") for row in rows):
            columns.append(Column(f"{name}_undefined", f"clients without {words}", "count"))
    return columns
