"""How a run is made (the options that `scool.fit` and the command line share), and how options by
name, from TOML, JSON and `--set`, get into frozen dataclasses."""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import (
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Union,
    final,
    get_args,
    get_origin,
    get_type_hints,
)

from torch import Tensor

from scool.algorithms.between_rounds import check_shares
from scool.attendance import Asked, Availability, as_words
from scool.contracts import Method
from scool.engine.steps.formulation import Precision
from scool.errors import ConfigError, check_fields, nearest, require, unknown
from scool.evaluation.metrics import Function, Metric, checked_names
from scool.health import Attendance
from scool.learning.losses import Loss, Objective, loss_name, weight_words


@final
class Start(str):
    """Where the first models come from: a path, or words for what was given in Python."""

    __slots__ = ("given",)
    given: Any

    @staticmethod
    def of(given: Any) -> "Start | None":
        """A path, a result, or tensors by name, as something that records can hold.

        Raises:
            ConfigError: it is something else.
        """
        if given is None or isinstance(given, Start):
            return given
        if isinstance(given, str | Path):
            start = Start(given)
        elif isinstance(given, Mapping):
            start = Start("a state dict")
        else:
            remedy = "give a file, a run folder, a Result, or tensors by name (a state dict)"
            has_models = hasattr(given, "theta") and hasattr(given, "module")
            require(has_models, "start", type(given).__name__, remedy)
            start = Start(f"a result of {given.method}")
        start.given = given
        return start


@dataclass(frozen=True)
class RunSettings:
    """How a run is made, independent of method, data and network."""

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
    """Precision of the products in local training: float32 (TF32 on a GPU) or bf16."""
    slow_momentum: float = 0.0
    """Each client's momentum over rounds (SlowMo), 0 to below 1."""
    start: str | None = None
    """First models: a .safetensors file for all clients, or a run folder with one per client."""
    loss: str = "auto"
    """The loss: cross_entropy or focal, squared_error or huber; auto: the first of each pair."""
    class_weights: tuple[str, ...] = ()
    """Weights of the classes: balanced (by each client's training samples), or numbers."""
    metrics: tuple[str, ...] = ()
    """Measured besides accuracy or R2: auc, f1, balanced_accuracy, log_loss; rmse, mae."""
    model_average: float = 0.0
    """Score and keep each client's moving average over rounds, with this memory; 0: the last
    model."""
    strict: bool = False
    """Stop when a client's numbers stop being finite, instead of leaving the client out."""
    participation: float = 1.0
    """Share of the clients that take part in a round, drawn for every round."""
    availability: str | None = None
    """A CSV file client,from,to: the rounds in which these clients are there; others always are."""
    joins: tuple[str, ...] = ()
    """Clients that join later: CLIENT=ROUND."""
    stragglers: float = 0.0
    """Chance of a client to be slow in a round."""
    straggler_steps: float = 0.5
    """Share of its local steps that a slow client does."""
    client_lr: tuple[str, ...] = ()
    """Learning rates of single clients: CLIENT=RATE."""
    patience: int = 0
    """Evaluations without a better validation loss before the run stops; 0: it never does."""
    fine_tune: int = 0
    """Epochs that each client trains on alone, after the last round, before its model is judged."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", Start.of(self.start))
        object.__setattr__(self, "loss", loss_name(self.loss))
        object.__setattr__(self, "class_weights", weight_words(self.class_weights))
        check_fields(self)
        for name in ("joins", "client_lr"):
            if (given := getattr(self, name)) is not getattr(RunSettings, name):
                object.__setattr__(self, name, as_words(name, given))
        for name in ("participation", "straggler_steps"):
            value = getattr(self, name)
            require(0 < value <= 1, name, value, "give a fraction in (0, 1]; 1 is all")
        require(0 <= self.stragglers <= 1, "stragglers", self.stragglers, "give a share in [0, 1]")
        require(self.patience >= 0, "patience", self.patience, "give 0 (never stop) or more")
        require(self.fine_tune >= 0, "fine_tune", self.fine_tune, "give epochs, or 0 for none")
        require(self.rounds >= 1, "rounds", self.rounds, "give at least 1")
        require(self.seed >= 0, "seed", self.seed, "give 0 or more")
        require(self.eval_every >= 1, "eval_every", self.eval_every, "give at least 1")
        every = self.checkpoint_every
        require(every >= 0, "checkpoint_every", every, "give a number of rounds, or 0 for none")
        require(self.client_chunk >= 0, "client_chunk", self.client_chunk, "give 0 or more")
        if self.slow_momentum or self.model_average:
            check_shares(self.slow_momentum, self.model_average)
        if self.metrics != ():
            object.__setattr__(self, "metrics", checked_names(self.metrics))
        for name in ("rounds", "seed", "eval_every", "checkpoint_every", "client_chunk"):
            object.__setattr__(self, name, int(vars(self)[name]))  # records hold no numpy numbers

    @property
    def objective(self) -> Objective:
        return Objective(self.loss, self.class_weights)

    def evaluates(self, round: int) -> bool:
        return (round + 1) % self.eval_every == 0 or round + 1 == self.rounds

    def is_over(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether all rounds are done, or the validation loss has not fallen for long enough."""
        waited = history[-1].get("waited") or 0 if history else 0
        return len(history) >= self.rounds or 0 < self.patience <= waited

    def saves(self, done: int, asked: int, is_over: bool) -> bool:
        """Whether a checkpoint is due after `done` rounds. The last round has one where any has
        been `asked` for, so that its newest models are the result."""
        every = self.checkpoint_every
        return (is_over and bool(every or asked)) or bool(every and done % every == 0)

    def attendance(
        self, count: int, names: Sequence[str] | None, method: Method[Any]
    ) -> Attendance:
        """Which of `count` clients takes part when, and how fast each is."""
        asks = self.joins or self.stragglers or self.client_lr or self.availability is not None
        if not asks and self.participation == 1:
            return Attendance(count, self.seed)
        has_own = hasattr(method.plain, "participation")  # see `with_share`
        asked = Asked(
            1.0 if has_own else self.participation,
            self.availability,
            self.joins,
            self.stragglers,
            self.straggler_steps,
            self.client_lr,
        )
        return asked.attendance(self.seed, self.rounds, count, names, method.sgd.lr)


class Changes(TypedDict, total=False):
    """The options of `scool.fit` by name, with their defaults.

    - `rounds` (30): rounds of communication.
    - `seed` (0): decides the first model, the batches and every draw.
    - `device` ("auto"): or "cpu", "cuda".
    - `eval_every` (1): rounds between evaluations; the last is always evaluated.
    - `checkpoint_every` (10): rounds between checkpoints; 0: only when a person stops it.
    - `client_chunk` (0): models trained side by side; 0 chooses by free memory.
    - `precision` ("float32"): of products in local training; or "bf16".
    - `slow_momentum` (0): how much of its last change a client repeats in every round.
    - `model_average` (0): memory of the average that is scored and kept; 0: the last model.
    - `start` (None): first models: a `.safetensors` file or a state dict for all clients; a
      run folder or a `Result`, whose clients go on each from their own.
    - `loss` ("auto"): "cross_entropy" or "focal", "squared_error" or "huber", or a function
      (outputs, targets) -> one number per sample.
    - `class_weights` (none): "balanced" by each client's training samples, or a number for
      each class.
    - `metrics` (none): what is measured besides accuracy or R2: names such as "auc", "f1",
      or functions of your own; see `docs/metrics.md`.
    - `strict` (False): stop when a client's numbers stop being finite, not leave it out.
    - `participation` (1): share of the clients that take part in a round, as drawn.
    - `availability` (None): who is there when: a function (client, round) -> bool, a
      (rounds, K) table, or a CSV file client,from,to; see `docs/owners.md`.
    - `joins` (none): clients that join later, e.g. `{"port": 20}`.
    - `stragglers` (0): chance of a client to be slow in a round.
    - `straggler_steps` (0.5): share of its local steps that a slow client does.
    - `client_lr` (none): learning rates of single clients, `{"port": 0.01}`, or (K,).
    - `patience` (0): evaluations without a better validation loss before the run stops
      and keeps the best models; 0: it never does.
    - `fine_tune` (0): epochs that each client trains on, alone and on its own data, after the
      last round and before its model is judged.
    """

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
    start: str | Path | Mapping[str, Tensor] | Any
    loss: str | Loss
    class_weights: str | Sequence[float] | Sequence[str]
    metrics: Sequence[str | Function | Metric]
    participation: float
    availability: Availability | None
    joins: Mapping[str | int, int] | Sequence[str]
    stragglers: float
    straggler_steps: float
    client_lr: Mapping[str | int, float] | Sequence[float] | Tensor | Sequence[str]
    patience: int
    fine_tune: int


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


T = TypeVar("T")


def as_dict(instance: Any) -> Any:
    """A dataclass as plain values that JSON can hold."""
    if dataclasses.is_dataclass(instance) and not isinstance(instance, type):
        return {f.name: as_dict(getattr(instance, f.name)) for f in dataclasses.fields(instance)}
    if isinstance(instance, Tensor):
        return instance.tolist()
    return list(instance) if isinstance(instance, tuple) else instance


def neutral(instance: Any) -> dict[str, Any]:
    """The default values of an instance's fields."""
    found: dict[str, Any] = {}
    for part in dataclasses.fields(instance) if dataclasses.is_dataclass(instance) else ():
        value = getattr(instance, part.name)
        if dataclasses.is_dataclass(value):
            found[part.name] = neutral(value)
        elif part.default is not dataclasses.MISSING:
            found[part.name] = as_dict(part.default)
    return found


def option_names(instance: Any) -> set[str]:
    """All options of a dataclass and of the dataclasses in it."""
    names: set[str] = set()
    for f in dataclasses.fields(instance):
        value = getattr(instance, f.name)
        names |= option_names(value) if dataclasses.is_dataclass(value) else {f.name}
    return names


def with_options(instance: T, options: Mapping[str, Any], where: str) -> T:
    """A copy with some options changed.

    A key is the name of an option anywhere inside (`num_blocks`, or `num-blocks`), or the name of
    a part with a table of its options (`prior = {num_blocks = 5}`).

    Raises:
        ConfigError: names the unknown option and the nearest known one, or the wrong value.
    """
    left = {name.replace("-", "_"): value for name, value in options.items()}
    changed = _apply(instance, left, where)
    if left:
        name = sorted(left)[0]
        raise ConfigError(
            f"unknown option {name!r} in {where}: {nearest(name, option_names(instance))}"
        )
    return changed


def _apply(instance: Any, left: dict[str, Any], where: str) -> Any:
    """Take from `left` what belongs to this dataclass and its parts."""
    changes: dict[str, Any] = {}
    hints = get_type_hints(type(instance))
    for f in dataclasses.fields(instance):
        value = getattr(instance, f.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if isinstance(left.get(f.name), Mapping):
                value = with_options(value, left.pop(f.name), f"{where}.{f.name}")
            changes[f.name] = _apply(value, left, where)
        elif f.name in left:
            changes[f.name] = _checked(left.pop(f.name), hints[f.name], f.name, where)
    return dataclasses.replace(instance, **changes)


def _checked(value: Any, hint: Any, name: str, where: str) -> Any:
    """The value as the hint wants it."""
    converted = _convert(value, hint)
    if converted is _NO:
        raise ConfigError(f"{name} = {value!r} in {where} is not possible: give {_words(hint)}")
    return converted


_NO = object()


def _convert(value: Any, hint: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        found = [_convert(value, part) for part in get_args(hint)]
        return next((f for f in found if f is not _NO), _NO)
    if origin is Literal:
        return value if value in get_args(hint) else _NO
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return _NO
        kinds = get_args(hint)
        kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
        items = [_convert(v, k) for v, k in zip(value, kinds, strict=False)]
        return _NO if _NO in items or len(items) != len(value) else tuple(items)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, bool):
        return _NO
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is Tensor and isinstance(value, list):
        import torch

        return torch.tensor(value, dtype=torch.float64)
    return value if isinstance(hint, type) and isinstance(value, hint) else _NO


def _words(hint: Any) -> str:
    """A type in plain words."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(part) for part in get_args(hint))
    if origin is Literal:
        return " or ".join(repr(a) for a in get_args(hint))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return names.get(hint, "a list" if origin is tuple else getattr(hint, "__name__", str(hint)))
