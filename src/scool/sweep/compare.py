"""Several methods, same clients, same seeds: a fair comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from scool.algorithms import METHODS
from scool.columns import COLUMNS
from scool.contracts import Recorder
from scool.data.catalogue import load
from scool.data.federation import Federation
from scool.errors import ConfigError, DataError, RunError, require, unknown
from scool.learning.local_sgd import LocalSGD
from scool.recording.disk import write_json
from scool.recording.seals import BOOL, OBJECT, TEXTS, WHOLE, Kind, damaged, with_seal
from scool.run.config import (
    BETWEEN,
    RunConfig,
    Settings,
    default_run,
    with_recipe,
)
from scool.run.identity import check_gone, modern
from scool.run.options import as_dict, with_options
from scool.run.prepare import prepare_data
from scool.run.result import Result
from scool.sweep.runner import (
    Diverged,
    State,
    claim_all,
    folder_state,
    read_about,
    run_in_folder,
    run_list,
)

ABOUT = "compare.json"
OLD, FORMAT = "scool-compare-1", "scool-compare-2"


def why_not(config: RunConfig, federation: Federation, seed: int) -> str | None:
    """Why a method cannot run on a federation; None where it can."""
    if config.method == "truth" and federation.truth is None:
        return "it needs data whose true graph is known"
    try:
        prepare_data(federation, config.algorithm, seed)
    except DataError as error:
        return str(error)
    return None


def check_possible(configs: Sequence[RunConfig], federation: Federation) -> None:
    """
    Raises:
        ConfigError: a method cannot run on a federation.
    """
    for config in configs:
        if reason := why_not(config, federation, config.settings.seed):
            raise ConfigError(
                f"method {config.method!r} is not possible here: {reason}. Leave it out, or "
                "name `all` for those that are possible"
            )


def choose_methods(words: str, settings: Settings) -> tuple[tuple[str, ...], list[str]]:
    """The methods of a list with commas, or of `all` those that the data allow; and a note on each
    that they do not."""
    if words.strip() != "all":
        return tuple(name.strip() for name in words.split(",") if name.strip()), []
    federation = load(settings.data, settings.seed)
    configs = [default_run(method, settings.data) for method in METHODS]
    reasons = {c.method: why_not(c, federation, settings.seed) for c in configs}
    notes = [f"{method} is left out: {why}" for method, why in reasons.items() if why]
    return tuple(method for method, why in reasons.items() if not why), notes


@dataclass(frozen=True)
class Comparison:
    """What is compared: methods with their own options, everything else in common."""

    methods: tuple[str, ...]
    settings: Settings
    sgd: LocalSGD
    seeds: int = 1
    options: Mapping[str, Mapping[str, Any]] | None = None  # of single methods, by name
    figures: bool = True  # whether whoever shows the results saves pictures, too

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
        every = self.settings.checkpoint_every
        remedy = "a comparison goes on from finished runs, which need one; give 1 or more"
        require(every >= 1, "checkpoint_every", every, remedy)
        doubled = sorted({m for m in self.methods if self.methods.count(m) > 1})
        require(not doubled, "methods", ", ".join(doubled), "name each method once")
        self.runs(self.settings.seed)  # a wrong option is found before anything starts

    def runs(self, seed: int) -> list[RunConfig]:
        """One run a method, with the common settings and its own options."""
        settings = replace(self.settings, seed=seed)
        configs: list[RunConfig] = []
        for method in self.methods:
            where = f"options of {method}"
            mine = {n.replace("-", "_"): v for n, v in (self.options or {}).get(method, {}).items()}
            between = {name: mine.pop(name) for name in BETWEEN if name in mine}
            algorithm = replace(default_run(method, settings.data).algorithm, sgd=self.sgd)
            algorithm = with_options(algorithm, mine, where)
            own = with_options(with_recipe(settings, method), between, where)
            configs.append(RunConfig(method, algorithm, own))
        return configs

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "methods": list(self.methods),
            "settings": as_dict(self.settings),
            "sgd": as_dict(self.sgd),
            "seeds": self.seeds,
            "options": dict(self.options or {}),
            "figures": self.figures,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Comparison":
        if values.get("format") not in (OLD, FORMAT):
            raise RunError(f"this comparison has format {values.get('format')!r}: another version")
        values = modern(values)
        check_gone(values)
        return cls(
            methods=tuple(values["methods"]),
            settings=with_options(Settings(), values["settings"], "settings"),
            sgd=with_options(LocalSGD(), values["sgd"], "sgd"),
            seeds=values["seeds"],
            options=values["options"],
            figures=values.get("figures", True),  # older records do not say
        )


class _Job(NamedTuple):
    config: RunConfig
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name


def run_comparison(
    comparison: Comparison, out: Path, recorders: Sequence[Recorder] = ()
) -> dict[str, list[Result | Diverged]]:
    """Run what has not been run yet; results by method, one a seed.

    The folder gets `compare.json` and a run folder a method and seed. Started again on the same
    folder, it continues where it stopped. A method that diverges does not stop the others.
    """
    first, many = comparison.settings.seed, comparison.seeds > 1
    seeds = range(first, first + comparison.seeds)
    federations = {seed: load(comparison.settings.data, seed) for seed in seeds}
    for seed, federation in federations.items():
        check_possible(comparison.runs(seed), federation)
    jobs = [
        _Job(config, out / (f"{config.method}-{seed}" if many else config.method))
        for seed in seeds
        for config in comparison.runs(seed)
    ]
    done: dict[Path, Result | Diverged] = {}

    def run(job: _Job, state: State) -> None:
        federation = federations[job.config.settings.seed]
        done[job.folder] = run_in_folder(job.config, job.folder, state, federation, recorders)

    with claim_all(out, ABOUT) as is_begun:
        _keep(comparison, out, is_begun)
        go_on = f"`scool resume {out}` continues the comparison"
        run_list(jobs, lambda job: folder_state(job.folder), run, go_on)
        results: dict[str, list[Result | Diverged]] = {method: [] for method in comparison.methods}
        for job in jobs:
            if job.folder not in done:  # it was over; its records say what came out
                run(job, folder_state(job.folder))
            results[job.config.method].append(done[job.folder])
    return results


def _keep(comparison: Comparison, out: Path, is_begun: bool) -> None:
    """Write what the folder is for, unless it says so already."""
    if is_begun:
        begun = read_comparison(out)
        if replace(begun, figures=comparison.figures).to_dict() != comparison.to_dict():
            raise RunError(
                f"out = {str(out)!r} holds another comparison: continue that one with "
                f"`scool resume {out}`, or choose another --out"
            )
        if begun.figures == comparison.figures:  # else the last wish counts; no number depends
            return
    write_json(out / ABOUT, with_seal(comparison.to_dict()))


def read_comparison(folder: Path) -> Comparison:
    """The comparison that a folder was made with."""
    path = folder / ABOUT
    remedy = "Bring back a whole copy of it, or start the comparison again in another folder"
    values = read_about(path, (OLD, FORMAT), _FIELDS, ("figures",), remedy)
    try:
        return Comparison.from_dict(values)
    except ConfigError as error:
        raise damaged(path, error, remedy) from error


_FIELDS: dict[str, Kind] = {
    "methods": TEXTS,
    **dict.fromkeys(("settings", "sgd", "options"), OBJECT),
    "seeds": WHOLE,
    "figures": BOOL,
}


def summarise(results: Sequence[Result | Diverged]) -> dict[str, Any]:
    """One method over its seeds: means of the numbers, all run folders."""
    summaries: list[dict[str, Any]] = [{"diverged": _stopped(r)} | r.summary() for r in results]
    if len(summaries) == 1:
        return summaries[0]
    merged = dict(summaries[0])
    for name in sorted({name for s in summaries for name in s}):
        values: list[Any] = [s.get(name) for s in summaries]
        if name.endswith(("_mean", "_std")) or name in _MEANS:
            mean = None if None in values else sum(values) / len(values)
            is_whole = all(isinstance(value, int) for value in values)
            merged[name] = round(mean) if mean is not None and is_whole else mean
        elif name == "quarantined":
            merged[name] = {k: v for s in summaries for k, v in s[name].items()}
        elif name == "run_dir":
            merged["run_dirs"] = values
        elif name == "diverged":
            merged[name] = next((value for value in values if value), None)
    merged["seeds"] = [s["seed"] for s in summaries]
    return merged


_MEANS = {column.name for column in COLUMNS if column.name != "rounds"}


def _stopped(result: Result | Diverged) -> str | None:
    """What a method reports that stops single clients when they diverge (`diverged` in Info)."""
    last = result.history[-1] if isinstance(result, Result) and result.history else {}
    count, everyone = int(last.get("diverged") or 0), result.federation.num_clients
    return f"{count} of {everyone} clients stopped" if count else None
