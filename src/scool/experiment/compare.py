"""Several methods, same clients, same seeds: a fair comparison."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scool.contracts import Recorder
from scool.data.catalogue import load
from scool.errors import ConfigError, RunError, require, unknown
from scool.experiment.config import RunConfig, Settings, default_run, execute
from scool.experiment.options import as_dict, with_options
from scool.experiment.recipes import METHODS
from scool.experiment.result import Result
from scool.experiment.run import Interrupted
from scool.learning.local_sgd import LocalSGD
from scool.recording.atomic import write_json
from scool.recording.folder import is_taken, make_folder


@dataclass(frozen=True)
class Comparison:
    """What is compared: methods with their own options, everything else in common."""

    methods: tuple[str, ...]
    settings: Settings
    sgd: LocalSGD
    seeds: int = 1
    options: Mapping[str, Mapping[str, Any]] | None = None  # of single methods, by name

    def __post_init__(self) -> None:
        require(bool(self.methods), "methods", self.methods, "name at least one")
        require(self.seeds >= 1, "seeds", self.seeds, "give at least 1")
        for method in [*self.methods, *(self.options or {})]:
            if method not in METHODS:
                unknown("method", method, METHODS)
        for method in self.options or {}:
            if method not in self.methods:
                raise ConfigError(
                    f"options of {method!r} are not possible: it is not compared. Add it to "
                    f"--methods ({','.join(self.methods)}), or leave its options out"
                )
        doubled = sorted({m for m in self.methods if self.methods.count(m) > 1})
        require(not doubled, "methods", ", ".join(doubled), "name each method once")
        self.runs(self.settings.seed)  # a wrong option is found before anything starts

    def runs(self, seed: int) -> list[RunConfig]:
        """One run a method, with the common settings and its own options."""
        settings = replace(self.settings, seed=seed)
        configs: list[RunConfig] = []
        for method in self.methods:
            algorithm = replace(default_run(method, settings.data).algorithm, sgd=self.sgd)
            mine = (self.options or {}).get(method, {})
            algorithm = with_options(algorithm, mine, f"options of {method}")
            configs.append(RunConfig(method, algorithm, settings))
        return configs

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": "scool-compare-1",
            "methods": list(self.methods),
            "settings": as_dict(self.settings),
            "sgd": as_dict(self.sgd),
            "seeds": self.seeds,
            "options": dict(self.options or {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Comparison":
        if values.get("format") != "scool-compare-1":
            raise RunError(f"this comparison has format {values.get('format')!r}: another version")
        return cls(
            methods=tuple(values["methods"]),
            settings=with_options(Settings(), values["settings"], "settings"),
            sgd=with_options(LocalSGD(), values["sgd"], "sgd"),
            seeds=values["seeds"],
            options=values["options"],
        )


def run_comparison(
    comparison: Comparison,
    out: Path,
    recorders: Sequence[Recorder] = (),
    report: Callable[[Result], None] = lambda result: None,
) -> dict[str, list[Result]]:
    """Run what has not been run yet; results by method, one a seed.

    The folder gets `compare.json` and a run folder a method and seed. Started again on the same
    folder, it continues where it stopped.
    """
    _claim(comparison, out)
    results: dict[str, list[Result]] = {method: [] for method in comparison.methods}
    for seed in range(comparison.settings.seed, comparison.settings.seed + comparison.seeds):
        federation = load(comparison.settings.data, seed)
        if "truth" in comparison.methods and federation.truth is None:
            raise ConfigError("method 'truth' needs data whose true graph is known: leave it out")
        for config in comparison.runs(seed):
            folder = out / (config.method if comparison.seeds == 1 else f"{config.method}-{seed}")
            started = (folder / "run.json").exists()
            if not started and is_taken(folder):
                raise RunError(f"{folder} is in the way: it is not a run of this comparison")
            try:
                result = execute(
                    config, out=folder, resume=started, recorders=recorders, federation=federation
                )
            except Interrupted as stop:
                raise Interrupted(
                    f"{stop}; `scool resume {out}` continues the comparison"
                ) from None
            results[config.method].append(result)
            report(result)
    return results


def read_comparison(folder: Path) -> Comparison:
    """The comparison that a folder was made with."""
    path = folder / "compare.json"
    try:
        values = json.loads(path.read_text())
        return Comparison.from_dict(values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def _claim(comparison: Comparison, out: Path) -> None:
    """A folder of this comparison: a new one, or one that holds the same comparison."""
    if (out / "compare.json").exists():
        if read_comparison(out).to_dict() != comparison.to_dict():
            raise RunError(
                f"out = {str(out)!r} holds another comparison: continue that one with "
                f"`scool resume {out}`, or choose another --out"
            )
        return
    if is_taken(out):
        raise RunError(f"out = {str(out)!r} exists already: choose another --out")
    make_folder(out)
    write_json(out / "compare.json", comparison.to_dict())


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """One method over its seeds: means of the numbers, all run folders."""
    summaries = [result.summary() for result in results]
    if len(summaries) == 1:
        return summaries[0]
    merged = dict(summaries[0])
    for name in summaries[0]:
        values = [s[name] for s in summaries]
        if name.endswith(("_mean", "_std", "_l1", "_ari", "_loss")) or name in ("elbo", "seconds"):
            merged[name] = None if None in values else sum(values) / len(values)
        elif name in ("bytes_sent", "messages"):
            merged[name] = round(sum(values) / len(values))
        elif name == "quarantined":
            merged[name] = {k: v for s in summaries for k, v in s[name].items()}
        elif name == "run_dir":
            merged["run_dirs"] = values
    merged["seeds"] = [s["seed"] for s in summaries]
    return merged
