"""`scool compare`: several methods on the same federation."""

import json as json_module
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scool.algorithms import METHODS
from scool.cli.arguments import Recorded, Shown, configure, peek, read_toml, take_plugins
from scool.cli.ranks import goes_on, leading
from scool.data.catalogue import DataConfig
from scool.display.curves import plot_accuracy
from scool.display.graphs import plot_graph
from scool.display.live import Console
from scool.display.records import read_runs
from scool.display.style import WIDE
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from scool.recording.disk import write_bytes
from scool.run.config import Settings, default_run
from scool.run.options import as_dict, option_names
from scool.sweep.compare import run_comparison
from scool.sweep.comparison import Comparison, choose_methods
from scool.sweep.search_folder import read_chosen, searched_data

DEFAULT_METHODS = "local,fedavg,dpsgd,truth,scool-sbm,scool-attention,scool-mmsbm"


@dataclass(frozen=True)
class CompareCommand(Recorded):
    """Options of `scool compare`. All methods share the data, the model, the batches and SGD."""

    settings: Settings = field(default_factory=Settings)
    sgd: LocalSGD = field(default_factory=LocalSGD)
    methods: str = DEFAULT_METHODS
    """Names separated by commas, or `all` that suit the data; `scool run --help` lists them."""
    seeds: int = 1
    """How many seeds, from --seed on; the table shows means."""
    set: tuple[str, ...] = ()
    """Options of single methods: --set scool-sbm.num_blocks=4 fedavg.participation=0.1. In a
    configuration file they stand in a table [method.NAME]."""
    tuned: Path | None = None
    """A folder of `scool tune`: each method gets the options chosen there, unless set here."""
    figures: bool = True
    """Save pictures of the graphs and of the accuracy over rounds."""
    ranks: int = 1
    """Processes on this machine that share the clients; for several machines use torchrun."""

    @classmethod
    def on(cls, data: DataConfig) -> "CompareCommand":
        base = default_run("local", data)
        return cls(settings=base.settings, sgd=base.algorithm.sgd)


def compare(arguments: Sequence[str]) -> int:
    take_plugins(arguments)
    options = read_toml(peek(arguments, "--config"))
    per_method: dict[str, dict[str, Any]] = options.pop("method", {})
    tables = per_method.values() if isinstance(per_method, dict) else [None]
    if not all(isinstance(table, dict) for table in tables):
        raise ConfigError("method in the configuration file is not possible: write [method.NAME]")
    _refuse_own(arguments, options)
    about = "Several methods on one federation."
    command = configure(arguments, options, CompareCommand.on, "scool compare", about)
    methods, notes = choose_methods(command.methods, command.settings)
    tuned: dict[str, dict[str, Any]] = {}
    if command.tuned is not None:
        tuned, more = _tuned(command.tuned, methods, command.settings)
        notes += more
    merged = _merge(tuned, per_method, command.set)
    comparison = Comparison(
        methods=methods,
        settings=command.settings,
        sgd=command.sgd,
        seeds=command.seeds,
        options=merged,
        figures=command.figures,
    )
    plain = CompareCommand.on(command.settings.data).sgd
    say(notes + _overruled(tuned, merged, command.sgd, plain) + _kept(comparison))
    out = command.folder(f"compare-{command.settings.data.dataset}")
    return finish(comparison, out, command, command.ranks, command.out)


def _refuse_own(arguments: Sequence[str], options: Mapping[str, Any]) -> None:
    """Say how to set an option of single methods that was given to all."""
    words = [word[2:].partition("=")[0] for word in arguments if word.startswith("--")]
    names = {word.replace("-", "_") for word in (*words, *options)}
    for name in sorted(names - option_names(CompareCommand())):
        if owners := [m for m, (_, method) in METHODS.items() if name in option_names(method)]:
            chosen = peek(arguments, "--methods") or options.get("methods") or DEFAULT_METHODS
            owner = next((m for m in owners if m in str(chosen).split(",")), owners[0])
            raise ConfigError(
                f"{name} is an option of single methods: write --set {owner}.{name}=VALUE, or "
                f"{name} in a table [method.{owner}] of the configuration file"
            )


def _kept(comparison: Comparison) -> list[str]:
    """What methods have by their recipe where the common options say nothing."""
    common, options = comparison.settings.between, comparison.options or {}
    return [
        f"{run.method} has {name} {value} by its recipe; --set {run.method}.{name}=0 for none"
        for run in comparison.runs(comparison.settings.seed)
        for name, value in run.settings.between.items()
        if value != common[name] and name not in options.get(run.method, {})
    ]


def say(notes: Sequence[str]) -> None:
    """Print a note to stderr, even where no progress is wanted."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


def _overruled(
    tuned: Mapping[str, Mapping[str, Any]],
    merged: Mapping[str, Mapping[str, Any]],
    sgd: LocalSGD,
    plain: LocalSGD,
) -> list[str]:
    """Options given for all methods where a search chose another value for one of them."""
    return [
        f"{name} = {getattr(sgd, name)} does not hold for {method}: its tuned value is {value}"
        for method, options in tuned.items()
        for name, value in options.items()
        if merged[method][name] == value
        and getattr(sgd, name, value) != value
        and getattr(sgd, name) != getattr(plain, name)
    ]


PLACES = ("data_dir", "verify_checksums", "val_fraction", "truth")
"""Options of the data that make no other task of it."""


def _tuned(
    folder: Path, methods: Sequence[str], settings: Settings
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What a search chose for the methods compared, and doubts about using it here."""
    chosen = read_chosen(folder)
    notes = [f"{m} has no tuned options in {folder}" for m in methods if m not in chosen]
    here, there = as_dict(settings.data), searched_data(folder)
    other = [n for n in here if n not in PLACES and n in there and here[n] != there[n]]
    if other:
        words = ", ".join(f"{name} {there[name]} (here {here[name]})" for name in other)
        notes.append(f"the options in {folder} were chosen on other data: {words}")
    return {method: chosen[method] for method in methods if method in chosen}, notes


def _merge(
    tuned: Mapping[str, Mapping[str, Any]],
    tables: Mapping[str, Mapping[str, Any]],
    words: Sequence[str],
) -> dict[str, Any]:
    """Options of single methods: of a search, then from the file, then from --set."""
    merged = {method: dict(options) for method, options in tuned.items()}
    for method, options in tables.items():
        names = {name.replace("-", "_"): value for name, value in options.items()}
        merged[method] = merged.get(method, {}) | names
    for word in words:
        left, value = assignment(word, "METHOD.OPTION=VALUE")
        method, dot, name = left.rpartition(".")
        if not (dot and method and name):
            raise ConfigError(f"set = {word!r} is not possible: write METHOD.OPTION=VALUE")
        merged.setdefault(method, {})[name.replace("-", "_")] = plain_value(value)
    return merged


def assignment(word: str, form: str) -> tuple[str, str]:
    """The two sides of a word of --set."""
    left, equals, text = word.partition("=")
    if not (left and equals):
        raise ConfigError(f"set = {word!r} is not possible: write {form}")
    return left, text


def plain_value(text: str) -> Any:
    """A number, truth value or list as TOML writes it; anything else is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def is_comparison(folder: Path) -> bool:
    return (folder / "compare.json").is_file()


def finish(comparison: Comparison, out: Path, shown: Shown, ranks: int, asked: Path | None) -> int:
    """Run what is missing in `out`, print a table (or JSON), and save the pictures.

    Args:
        asked: the folder that a person named, so that a restart by torchrun finds it.
    """
    with (
        leading(ranks, comparison.settings.data.num_clients),
        Console(comparison.settings.rounds, quiet=shown.quiet) as console,
    ):
        goes_on(asked)
        results = run_comparison(comparison, out, [console])
    summaries, folders = results.summary(), list(results.folders())
    say([f"{s['method']} diverged: {s['diverged']}" for s in summaries if s["diverged"]])
    pictures = _draw(folders, out) if comparison.figures and folders else []
    if shown.json:
        for summary in summaries:
            print(json_module.dumps(summary))
        return 0
    print(results)
    for path in [*pictures, out]:
        print(path)
    return 0


def _draw(folders: Sequence[Path], out: Path) -> list[Path]:
    """Accuracy over rounds, and the learned graphs beside the true one."""
    records = read_runs(folders)
    learned = [record for record in records if record.method != "truth"] or records
    plots = {"accuracy": plot_accuracy(records, WIDE), "graphs": plot_graph(learned, WIDE)}
    for name, plot in plots.items():
        write_bytes(out / f"{name}.png", plot.figure.render("png"))
    return [out / f"{name}.png" for name in plots]
