"""A run in full: the method, the data, the model, and everything that decides the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scool.algorithms import AnyAlgorithm
from scool.algorithms.between_rounds import check_between, wrapped
from scool.contracts import Recorder
from scool.data.catalogue import DataConfig, load
from scool.data.federation import Federation
from scool.engine.steps.formulation import Precision
from scool.errors import ConfigError, RunError, require
from scool.models import ModelConfig
from scool.run.loop import fit
from scool.run.migrations import check_gone, modern
from scool.run.options import as_dict, with_options
from scool.run.recipes import recipe
from scool.run.result import Result

BETWEEN = ("slow_momentum", "model_average")
"""Settings that recipes choose and that a comparison may give a single method."""


@dataclass(frozen=True)
class Settings:
    """What a run has besides its method; the same for all methods of a comparison."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rounds: int = 30
    """Communication rounds."""
    seed: int = 0
    """Decides the partition, the first model, the batches and every draw."""
    device: str = "auto"
    """auto, cpu or cuda."""
    eval_every: int = 1
    """Rounds between evaluations."""
    checkpoint_every: int = 10
    """Rounds between checkpoints; 0: none, unless somebody stops the run."""
    client_chunk: int = 0
    """Models trained side by side; 0 chooses by free memory. No influence on results."""
    precision: Precision = "float32"
    """Of the products in local training: float32 (TF32 on a GPU) or bf16."""
    slow_momentum: float = 0.0
    """Each client's momentum over rounds (SlowMo), 0 to below 1."""
    model_average: float = 0.0
    """Score and keep each client's moving average over rounds, with this memory; 0: the last."""
    strict: bool = False
    """Stop when a client's numbers stop being finite, instead of leaving the client out."""

    def __post_init__(self) -> None:
        require(self.rounds >= 1, "rounds", self.rounds, "give at least 1")
        require(self.seed >= 0, "seed", self.seed, "give 0 or more")
        require(self.eval_every >= 1, "eval_every", self.eval_every, "give at least 1")
        every = self.checkpoint_every
        require(every >= 0, "checkpoint_every", every, "give a number of rounds, or 0 for none")
        require(self.client_chunk >= 0, "client_chunk", self.client_chunk, "give 0 or more")
        check_between(self.slow_momentum, self.model_average)

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
        wrapped(self.algorithm, **self.settings.between)  # refuses what the method cannot do

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
    if complete := getattr(config.algorithm, "complete", None):  # read what its options name
        config = replace(config, algorithm=complete())
    return fit(
        federation or load(settings.data, settings.seed),
        settings.model,
        config.algorithm,
        rounds=settings.rounds,
        seed=settings.seed,
        device=settings.device,
        out=out,
        resume=resume,
        eval_every=settings.eval_every,
        checkpoint_every=settings.checkpoint_every,
        client_chunk=settings.client_chunk,
        **settings.between,
        strict=settings.strict,
        precision=settings.precision,
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
