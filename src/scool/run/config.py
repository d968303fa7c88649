"""A run in full: the method, the data, the model, and everything that decides the numbers; and the
settings that suit each method on each dataset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from scool.algorithms import METHODS, AnyAlgorithm
from scool.algorithms.between_rounds import check_goes_on
from scool.algorithms.tracks import KINDS
from scool.contracts import Recorder
from scool.data.catalogue import DataConfig, find, load
from scool.data.federation import Federation
from scool.errors import ConfigError, RunError, unknown
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.models import ModelConfig
from scool.run.checks import as_method, completed
from scool.run.identity import check_gone, modern
from scool.run.loop import carry_out
from scool.run.options import RunSettings, as_dict, with_options
from scool.run.plugins import SOURCES
from scool.run.prepare import how_to_go_on
from scool.run.result import Result


@dataclass(frozen=True)
class Recipe:
    """Defaults of one method on one dataset."""

    algorithm: AnyAlgorithm
    model: ModelConfig
    rounds: int
    eval_every: int
    between: Mapping[str, Any] = field(default_factory=dict)
    """`Settings.between`: what a client does with its own model, whatever the method."""


def recipe(method: str, data: DataConfig) -> Recipe:
    """The defaults of a method on a dataset.

    The image datasets have the paper's: 100 rounds of 5 epochs, batch 10, SGD 0.01. The small
    ones learn in 30 rounds.
    """
    if method not in METHODS:
        unknown("method", method, METHODS)
    algorithm = METHODS[method][1]
    dataset = find(data.dataset)
    is_drawn = method == "scool-drawn"
    if dataset.read is None:
        is_class = data.task == "classification"
        sgd = LocalSGD(lr=dataset.rate if is_class else dataset.regression_rate, batch_size=8)
        options = {"fraction": 0.225, "drawn_fraction": 0.225, "average": "models"}
        small = _adjust(algorithm, sgd=sgd, **options)
        between = {"slow_momentum": 0.5, "model_average": 0.8} if is_drawn else {}
        return Recipe(small, ModelConfig(dataset.model), rounds=30, eval_every=1, between=between)
    is_sbm = data.partition == "sbm"
    released = method.endswith("-released")
    groups = _groups(data)
    options: dict[str, Any] = {"fraction": 0.1}
    if is_sbm:
        # A whole group: keeping half of it for good cost five to six points on CIFAR-10, one seed,
        # because models drift apart (benchmarks/2026-11-15-drift).
        options["fraction"] = 0.2 if released else max(0.1, 1 / groups)
        options["shuffle"] = True  # clients are listed by group, which no fixed graph may exploit
    if released and is_sbm:  # the temperatures of the authors' scripts
        options["temperature"] = 1.0 if method == "scool-sbm-released" else 9.0
    elif not released and (groups > 5 or not is_sbm):  # more class sets than five
        options["num_blocks"] = options["num_clusters"] = max(10, groups)
    between: dict[str, Any] = {}
    momentum = 0.5 if is_sbm else 0.7  # benchmarks/2026-11-15-beyond
    options |= {"drawn_momentum": momentum, "drawn_average": 0.9, "drawn_fraction": 0.1}
    options |= {"drawn_noise": 0.0 if is_sbm else 0.1, "kinds": ",".join(KINDS)}
    if is_drawn:
        between = {"slow_momentum": momentum, "model_average": 0.9}
        options["fraction"] = 0.1
        if not is_sbm:
            # Class sets overlap: no blocks, but losses that tell the share of samples understood.
            options |= {"num_blocks": 1, "b_in": 0.2, "draw": CrossDraw(cross_noise=0.1)}
    network = ModelConfig(dataset.model, relu_logits=released)
    return Recipe(
        _adjust(algorithm, **options), network, rounds=100, eval_every=10, between=between
    )


def _groups(data: DataConfig) -> int:
    """Groups of the sbm partition: five of ten classes, ten of a hundred."""
    dataset = find(data.dataset)
    per_client = data.classes_per_client or dataset.classes_per_client
    return max(1, dataset.num_classes // max(1, per_client))


def _adjust(algorithm: AnyAlgorithm, **options: Any) -> AnyAlgorithm:
    """Set those options that the method has (or its prior, or its kind `drawn`). One that finds a
    learning rate finds the number of peers, too."""
    mine = _own(algorithm, options)
    if as_method(algorithm).finds_rate:
        mine.pop("fraction", None)
        mine["sgd"] = replace(mine.get("sgd", algorithm.sgd), lr=algorithm.sgd.lr)
    for name in ("prior", "drawn"):
        if hasattr(algorithm, name):
            part = getattr(algorithm, name)
            mine[name] = replace(part, **_own(part, options))
    return replace(algorithm, **mine)


def _own(instance: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are fields of this dataclass."""
    return {f.name: options[f.name] for f in fields(instance) if f.name in options}


BETWEEN = ("slow_momentum", "model_average", "fine_tune")
"""Settings that recipes choose and that a comparison may give a single method."""


@dataclass(frozen=True)
class Settings(RunSettings):
    """What a run has besides its method; the same for all methods of a comparison."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)

    @property
    def between(self) -> dict[str, Any]:
        """What a client does with its own model, whatever the method: those of BETWEEN."""
        return {name: getattr(self, name) for name in BETWEEN}


@dataclass(frozen=True)
class RunConfig:
    """One run, ready to start; what `run.json` keeps."""

    method: str
    algorithm: AnyAlgorithm
    settings: Settings

    def __post_init__(self) -> None:
        if self.settings.slow_momentum:
            check_goes_on(as_method(self.algorithm), self.settings.slow_momentum)

    def complete(self) -> "RunConfig":
        """The same with the contents of the files that options of the method name."""
        return replace(self, algorithm=completed(self.algorithm))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `from_dict` gives the same configuration back. A method of a plugin is
        recorded with its source."""
        source = SOURCES.get(self.method)
        return as_dict(self) | ({"plugin": source} if source else {})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfig":
        values = modern(values)
        check_gone(values)
        start = default_run(values["method"], DataConfig())
        algorithm = with_options(start.algorithm, values["algorithm"], "algorithm")
        settings = with_options(start.settings, values["settings"], "settings")
        return cls(values["method"], algorithm, settings)


def default_run(method: str, data: DataConfig) -> RunConfig:
    """A method with the defaults that suit a dataset."""
    chosen = recipe(method, data)
    settings = Settings(
        data=data,
        model=chosen.model,
        rounds=chosen.rounds,
        eval_every=chosen.eval_every,
        **chosen.between,
    )
    return RunConfig(method, chosen.algorithm, settings)


def with_recipe(settings: Settings, method: str) -> Settings:
    """Common settings; where they leave options between rounds open, those of the method's
    recipe."""
    own = default_run(method, settings.data).settings.between
    return replace(settings, **{n: value or own[n] for n, value in settings.between.items()})


def execute(
    config: RunConfig,
    *,
    out: Path | None = None,
    resume: bool = False,
    recorders: Sequence[Recorder] = (),
    federation: Federation | None = None,
) -> Result:
    """Load the data and run. `federation` is one that is already loaded."""
    settings, config = config.settings, config.complete()
    return carry_out(
        federation or load(settings.data, settings.seed),
        settings.model,
        config.algorithm,
        settings,
        out=out,
        resume=resume,
        recorders=recorders,
        method=config.method,
        config=config.to_dict(),
    )


def config_of(header: Mapping[str, Any], path: Path) -> RunConfig:
    """The configuration that a run folder was made with."""
    if "format" not in header:
        raise RunError(
            f"{path / 'run.json'} is damaged: it does not say what it is. Bring back a whole copy"
        )
    if header.get("held"):
        raise RunError(
            f"{path} is one owner's part of a run on peers: {how_to_go_on(header, path)} continues "
            "it; to repeat it all owners make a new agreement"
        )
    if not header.get("config"):
        raise RunError(
            f"{path} was made from Python, and only Python has its data and model: continue it by "
            f"{how_to_go_on(header, path)} with what it was started with"
        )
    try:
        return RunConfig.from_dict(header["config"])
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        problem = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(
            f"the configuration in {path / 'run.json'} cannot be used ({problem}): restore the "
            "file, or start again with `scool run`"
        ) from error
