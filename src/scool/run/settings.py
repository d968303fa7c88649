"""How a run is made: the options that `scool.fit` and the command line share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from scool.algorithms.between_rounds import check_shares
from scool.engine.steps.formulation import Precision
from scool.errors import check_fields, require, unknown
from scool.evaluation.metrics import Function, Metric, checked_names


@dataclass(frozen=True)
class RunSettings:
    """How a run is made, whatever the method, the data and the network."""

    rounds: int = 30
    """Communication rounds."""
    seed: int = 0
    """Decides the partition, the first model, the batches and every draw."""
    device: str = "auto"
    """auto, cpu or cuda."""
    eval_every: int = 1
    """Rounds between evaluations; the last round is always evaluated."""
    checkpoint_every: int = 10
    """Rounds between checkpoints; 0: none, unless somebody stops the run."""
    client_chunk: int = 0
    """Models trained side by side; 0 chooses by free memory. No influence on results."""
    precision: Precision = "float32"
    """Of the products in local training: float32 (TF32 on a GPU) or bf16."""
    slow_momentum: float = 0.0
    """Each client's momentum over rounds (SlowMo), 0 to below 1."""
    metrics: tuple[str, ...] = ()
    """Measured besides accuracy or R2: auc, f1, balanced_accuracy, log_loss; rmse, mae."""
    model_average: float = 0.0
    """Score and keep each client's moving average over rounds, with this memory; 0: the last."""
    strict: bool = False
    """Stop when a client's numbers stop being finite, instead of leaving the client out."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.rounds >= 1, "rounds", self.rounds, "give at least 1")
        require(self.seed >= 0, "seed", self.seed, "give 0 or more")
        require(self.eval_every >= 1, "eval_every", self.eval_every, "give at least 1")
        every = self.checkpoint_every
        require(every >= 0, "checkpoint_every", every, "give a number of rounds, or 0 for none")
        require(self.client_chunk >= 0, "client_chunk", self.client_chunk, "give 0 or more")
        check_shares(self.slow_momentum, self.model_average)
        object.__setattr__(self, "metrics", checked_names(self.metrics))
        for name in ("rounds", "seed", "eval_every", "checkpoint_every", "client_chunk"):
            object.__setattr__(self, name, int(vars(self)[name]))  # records hold no numpy numbers

    def evaluates(self, round: int) -> bool:
        return (round + 1) % self.eval_every == 0 or round + 1 == self.rounds

    def saves(self, done: int, asked: int) -> bool:
        """Whether a checkpoint is due after `done` rounds. The last round has one where any has
        been `asked` for: nobody shall take older models for the result."""
        every = self.checkpoint_every
        is_last = done == self.rounds and bool(every or asked)
        return is_last or bool(every and done % every == 0)


class Changes(TypedDict, total=False):
    """The fields of `RunSettings` as keyword arguments of `scool.fit`, for type checkers."""

    rounds: int
    seed: int
    device: str
    eval_every: int
    checkpoint_every: int
    client_chunk: int
    precision: Precision
    slow_momentum: float
    model_average: float
    strict: bool
    metrics: Sequence[str | Function | Metric]


def with_changes(settings: RunSettings | None, changes: Mapping[str, Any]) -> RunSettings:
    """The settings (the defaults for None) with some of them changed.

    >>> with_changes(None, {"round": 5})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    scool.errors.ConfigError: unknown option of fit 'round': did you mean 'rounds'? Known: ...
    """
    settings = RunSettings() if settings is None else settings
    is_right = isinstance(settings, RunSettings)
    require(is_right, "settings", settings, "give RunSettings(...), or single options by name")
    known = [field.name for field in fields(RunSettings)]
    for name in changes:
        if name not in known:
            unknown("option of fit", name, known)
    return replace(settings, **changes)
