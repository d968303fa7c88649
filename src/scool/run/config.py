"""A run in full: the method, the data, the model, and everything that decides the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scool.algorithms import AnyAlgorithm
from scool.algorithms.between_rounds import check_goes_on
from scool.contracts import Recorder
from scool.data.catalogue import DataConfig, load
from scool.data.federation import Federation
from scool.errors import ConfigError, RunError
from scool.models import ModelConfig
from scool.run.loop import fit
from scool.run.migrations import check_gone, modern
from scool.run.options import as_dict, with_options
from scool.run.recipes import recipe
from scool.run.result import Result
from scool.run.settings import RunSettings

BETWEEN = ("slow_momentum", "model_average")
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
        check_goes_on(self.algorithm, self.settings.slow_momentum)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `from_dict` gives the same configuration back."""
        return as_dict(self)

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
    """Common settings, and what the recipe of a method does between rounds unless they say."""
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
    """Load the data and run. A federation that is already loaded may be handed in."""
    settings = config.settings
    config = replace(config, algorithm=config.algorithm.complete())
    return fit(
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
    if not header.get("config"):
        raise RunError(
            f"{path} was made from Python with data of its own: continue it with "
            "`scool.fit(..., out=..., resume=True)`"
        )
    try:
        return RunConfig.from_dict(header["config"])
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        problem = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(
            f"the configuration in {path / 'run.json'} cannot be used ({problem}): restore the "
            "file, or start anew with `scool run`"
        ) from error
