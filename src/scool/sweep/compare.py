"""Several methods, same clients, same seeds: a fair comparison."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scool.contracts import Recorder
from scool.data.catalogue import load
from scool.data.federation import Federation
from scool.errors import ConfigError, DataError, QuarantineError, RunError, require, unknown
from scool.learning.local_sgd import LocalSGD
from scool.recording.damage import OtherVersion, check_format
from scool.recording.disk import read_text, write_json
from scool.recording.folder import RunFolder, is_taken, make_folder
from scool.recording.lines import BOOL, OBJECT, TEXT, TEXTS, WHOLE, Kind, check_kinds
from scool.recording.seals import SEAL, check_seal, with_seal
from scool.recording.tensors import damaged
from scool.recording.writer import RunWriter
from scool.run.config import (
    BETWEEN,
    RunConfig,
    Settings,
    default_run,
    execute,
    with_recipe,
)
from scool.run.loop import Interrupted
from scool.run.migrations import check_gone, modern
from scool.run.options import as_dict, with_options
from scool.run.prepare import prepare_data
from scool.run.recipes import METHODS
from scool.run.result import Result

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
class Diverged:
    """A run that ended because nobody was left whose numbers are finite."""

    method: str
    seed: int
    reason: str
    federation: Federation
    run_dir: Path

    def summary(self) -> dict[str, Any]:
        """The keys of a result's summary, without the numbers that there are none of."""
        numbers = ("accuracy_mean", "accuracy_std", "seconds", "graph_l1", "graph_ari", "elbo")
        costs = ("rounds", "bytes_sent", "messages", "epochs", "train_loss", "test_loss")
        return {
            "method": self.method,
            "dataset": self.federation.name,
            "clients": self.federation.num_clients,
            "seed": self.seed,
            **dict.fromkeys(numbers + costs),
            "quarantined": {},
            "run_dir": str(self.run_dir),
            "diverged": self.reason,
        }


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


def run_comparison(
    comparison: Comparison,
    out: Path,
    recorders: Sequence[Recorder] = (),
    report: Callable[[Result], None] = lambda result: None,
) -> dict[str, list[Result | Diverged]]:
    """Run what has not been run yet; results by method, one a seed.

    The folder gets `compare.json` and a run folder a method and seed. Started again on the same
    folder, it continues where it stopped. A method that diverges does not stop the others.
    """
    settings = comparison.settings
    results: dict[str, list[Result | Diverged]] = {method: [] for method in comparison.methods}
    for seed in range(settings.seed, settings.seed + comparison.seeds):
        federation = load(settings.data, seed)
        configs = comparison.runs(seed)
        for config in configs:
            if reason := why_not(config, federation, seed):
                raise ConfigError(
                    f"method {config.method!r} is not possible here: {reason}. Leave it out, or "
                    "name `all` for those that are possible"
                )
        _claim(comparison, out)
        for config in configs:
            folder = out / (config.method if comparison.seeds == 1 else f"{config.method}-{seed}")
            try:
                result = _run(config, folder, federation, recorders)
            except Interrupted as stop:
                raise Interrupted(
                    f"{stop}; `scool resume {out}` continues the comparison"
                ) from None
            results[config.method].append(result)
            if isinstance(result, Result):
                report(result)
    return results


def _run(
    config: RunConfig, folder: Path, federation: Federation, recorders: Sequence[Recorder]
) -> Result | Diverged:
    """One run of a comparison: a new one, the rest of one, or what is known of one that is over."""
    started = (folder / "run.json").exists()
    if not started and is_taken(folder):
        raise RunError(f"{folder} is in the way: it is not a run of this comparison")
    header = RunFolder.open(folder).header if started else {}
    seed = config.settings.seed
    if header.get("status") == "diverged":
        return Diverged(config.method, seed, header["reason"], federation, folder)
    try:
        return execute(
            config, out=folder, resume=started, recorders=recorders, federation=federation
        )
    except QuarantineError as error:
        if config.settings.strict:
            raise
        RunWriter.open(folder).update_header(status="diverged", reason=str(error))
        return Diverged(config.method, seed, str(error), federation, folder)


def read_comparison(folder: Path) -> Comparison:
    """The comparison that a folder was made with."""
    path = folder / "compare.json"
    try:
        values = json.loads(read_text(path))
        check_kinds(values, {"format": TEXT})
        check_format(values["format"], OLD, FORMAT)
        check_kinds(values, _FIELDS, optional=("figures",))
        if values["format"] == FORMAT or SEAL in values:
            check_seal(values)
        return Comparison.from_dict(values)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    except OtherVersion as error:
        raise damaged(path, error) from error
    except (ValueError, RecursionError, ConfigError) as error:
        raise RunError(
            f"{path} is damaged, or of another version: {error}. Bring back a whole copy of it, "
            "or start the comparison anew in another folder"
        ) from error


_FIELDS: dict[str, Kind] = {
    "format": TEXT,
    "methods": TEXTS,
    **dict.fromkeys(("settings", "sgd", "options"), OBJECT),
    "seeds": WHOLE,
    "figures": BOOL,
}


def _claim(comparison: Comparison, out: Path) -> None:
    """A folder of this comparison: a new one, or one that holds the same comparison."""
    if (out / "compare.json").exists():
        begun = read_comparison(out)
        if replace(begun, figures=comparison.figures).to_dict() != comparison.to_dict():
            raise RunError(
                f"out = {str(out)!r} holds another comparison: continue that one with "
                f"`scool resume {out}`, or choose another --out"
            )
        if begun.figures != comparison.figures:  # the last wish counts; no number depends on it
            write_json(out / "compare.json", with_seal(comparison.to_dict()))
        return
    if is_taken(out):
        raise RunError(f"out = {str(out)!r} exists already: choose another --out")
    make_folder(out)
    write_json(out / "compare.json", with_seal(comparison.to_dict()))


def summarise(results: Sequence[Result | Diverged]) -> dict[str, Any]:
    """One method over its seeds: means of the numbers, all run folders."""
    summaries: list[dict[str, Any]] = [{"diverged": _stopped(r)} | r.summary() for r in results]
    if len(summaries) == 1:
        return summaries[0]
    merged = dict(summaries[0])
    for name in sorted({name for s in summaries for name in s}):
        values: list[Any] = [s.get(name) for s in summaries]
        if name.endswith(("_mean", "_std", "_l1", "_ari", "_loss")) or name in _MEANS:
            merged[name] = None if None in values else sum(values) / len(values)
        elif name in ("bytes_sent", "messages"):
            merged[name] = None if None in values else round(sum(values) / len(values))
        elif name == "quarantined":
            merged[name] = {k: v for s in summaries for k, v in s[name].items()}
        elif name == "run_dir":
            merged["run_dirs"] = values
        elif name == "diverged":
            merged[name] = next((value for value in values if value), None)
    merged["seeds"] = [s["seed"] for s in summaries]
    return merged


_MEANS = ("elbo", "seconds", "epochs")


def _stopped(result: Result | Diverged) -> str | None:
    """What a method reports that stops single clients when they diverge (`diverged` in Info)."""
    last = result.history[-1] if isinstance(result, Result) and result.history else {}
    count, everyone = int(last.get("diverged") or 0), result.federation.num_clients
    return f"{count} of {everyone} clients stopped" if count else None
