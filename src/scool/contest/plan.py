"""What a contest is: settings and who takes part, from `natural.toml` and `methods.toml`."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from scool.contest.field import MASKED
from scool.data.catalogue import DataConfig
from scool.errors import require, unknown
from scool.evaluation.metrics import METRICS, SCORE
from scool.models import ModelConfig
from scool.recording.seals import sha256
from scool.run.config import Settings, default_run
from scool.run.options import with_options
from scool.sweep.runner import Job
from scool.sweep.search import Options, Search

STUDIES = ("natural", "field")
Stage = Literal["tune", "test"]
ALONE = "local"
"""The entry that the others are compared with."""


@dataclass(frozen=True)
class Entry:
    """Who takes part."""

    name: str
    title: str
    method: str = ""
    """A key of METHODS; its name where it is empty."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What departs from the recipe of the method."""
    tries: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of the option that matters beside the learning rate."""
    control: str = ""
    """What this row is for, where it does not compete: it has no rank."""
    in_gains: bool = False
    """Whether it is in the short table of what methods gain over learning alone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", self.method or self.name)


@dataclass(frozen=True)
class Setting:
    """One federation, its network and length, and how methods are tuned on it."""

    name: str
    title: str
    data: Mapping[str, Any]
    """Options of `DataConfig`."""
    metric: str
    """What is judged by: accuracy, r2, or another metric of its task."""
    rates: Sequence[float]
    """Learning rates to try."""
    rounds: int
    seeds: int
    tuning_seeds: int
    candidates: int
    """Of each method: the budget of stage one, each with so many seeds."""
    validation: float
    """Share of the training samples that stage one judges by."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the local steps of all methods."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Options of `ModelConfig`; default: the network of the dataset."""
    clients: int = 0
    """Most clients, evenly from their list; 0: all."""
    samples: int = 0
    """Most training samples of a client; 0: all."""
    device: str = "auto"
    digits: int = 2
    same_clients: bool = False
    """Whether client k is the same one with every seed."""
    answers: Literal["own", "all"] = "own"
    """Which classes a model may answer: those of its client, or all; then the accuracy among those
    of the client is told beside."""
    poisoned: float = 0.0
    """Share of the clients whose labels are drawn at random; they are not judged."""
    eval_every: int = 0
    """Rounds between evaluations on test data, of which the best is told; 0: at the end only."""
    published: Mapping[str, float] = field(default_factory=dict)
    """What others state, by the name of an entry."""
    source: str = ""
    """Who states it."""
    differs: str = ""
    """What is not as there."""
    about: str = ""

    def __post_init__(self) -> None:
        for name in ("rounds", "seeds", "tuning_seeds", "candidates"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "give at least 1")

    @property
    def sign(self) -> int:
        """1 where larger is better, -1 where smaller is."""
        known = METRICS.get(self.metric)
        return 1 if known is None or known.higher_is_better else -1

    def config(self, data_dir: str | None, stage: Stage) -> DataConfig:
        """The data of a stage: only the first needs validation samples."""
        share = self.validation if stage == "tune" else 0.0
        return DataConfig(**self.data, data_dir=data_dir, val_fraction=share)

    def job(self, entry: Entry, data_dir: str | None = None) -> Job:
        """The run of a method: its recipe, what all have in common, and options of its own."""
        start = default_run(entry.method, DataConfig(**self.data, data_dir=data_dir))
        where = f"{entry.name} in {self.name}"
        algorithm = with_options(start.algorithm, {**self.options, **entry.options}, where)
        task = start.settings.data.task
        settings: Settings = replace(
            start.settings,
            rounds=self.rounds,
            device=self.device,
            eval_every=self.rounds,
            checkpoint_every=0,
            metrics=self.metrics(SCORE[task]),
        )
        model = ModelConfig(**self.model) if self.model else start.settings.model
        return Job(entry.name, algorithm, model, settings)

    def metrics(self, score: str) -> tuple[str, ...]:
        """What is measured besides the score of the task."""
        own = () if self.metric == score else (self.metric,)
        return (*own, MASKED) if self.answers == "all" else own

    def search(self, entry: Entry, data_dir: str | None = None) -> Search:
        """The candidates of a method: as many as every other has."""
        job = self.job(entry, data_dir)
        space = {"lr": list(self.rates), **entry.tries}
        budget = self.candidates * self.tuning_seeds
        return Search({entry.name: job}, job.settings, space, budget, self.tuning_seeds)


class Task(NamedTuple):
    """One run of a contest."""

    setting: Setting
    entry: Entry
    stage: Stage
    options: Options
    seed: int

    @property
    def name(self) -> str:
        return f"{self.setting.name} {self.entry.name} {self.stage} seed={self.seed}"

    @property
    def key(self) -> str:
        """Equal for tasks whose numbers are the same."""
        setting, entry = self.setting, self.entry
        said = [setting.data, setting.metric, setting.rounds, setting.options, setting.model]
        said += [setting.clients, setting.samples, entry.method, entry.options]
        if setting.answers == "all" or setting.poisoned:
            said += [setting.answers, setting.poisoned]
        said += [self.stage, setting.validation if self.stage == "tune" else 0]
        said += [self.options, self.seed]
        return sha256(json.dumps(said, sort_keys=True).encode())[:16]


@dataclass(frozen=True)
class Study:
    """A contest: every method in every setting."""

    name: str
    title: str
    settings: tuple[Setting, ...]
    entries: tuple[Entry, ...]
    data_dir: str | None = None
    about: str = ""

    def changed(self, **changes: Any) -> "Study":
        """The same with other values in all settings; None and 0 change nothing."""
        wanted = {name: value for name, value in changes.items() if value}
        return replace(self, settings=tuple(_changed(s, wanted) for s in self.settings))


def _changed(setting: Setting, wanted: Mapping[str, Any]) -> Setting:
    """Runs of another length are not compared with what others state."""
    found = replace(setting, **wanted)
    if found.rounds == setting.rounds:
        return found
    about = f"{setting.about} {found.rounds:,} rounds, the setting has {setting.rounds:,}."
    return replace(found, published={}, source="", about=about.strip())


def read_study(name: str, settings: str = "all", methods: str = "all") -> Study:
    """A contest with all its settings and methods, or those named with commas between."""
    if name not in STUDIES:
        unknown("study", name, STUDIES)
    values = _read(f"{name}.toml")
    own = {key: values.pop(key) for key in ("title", "about", "setting") if key in values}
    every = [Setting(**{**values, **entry}) for entry in own.pop("setting")]
    entries = [Entry(**entry) for entry in _read("methods.toml")["method"]]
    return Study(
        name=name,
        settings=tuple(_chosen("dataset", every, settings)),
        entries=tuple(_chosen("method", entries, methods)),
        **own,
    )


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads((files("scool.contest") / file).read_text(encoding="utf-8"))


def _chosen(what: str, items: Sequence[Any], words: str) -> list[Any]:
    """All items, or those named, in the order of the file."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    require(bool(names), f"{what}s", words, "give names with commas between, or all")
    known = [item.name for item in items]
    for name in names:
        if name not in ("all", *known):
            unknown(what, name, ["all", *known])
    return [item for item in items if "all" in names or item.name in names]
