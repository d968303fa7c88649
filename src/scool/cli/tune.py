"""`scool tune`: options of several methods, chosen on validation data."""

import json as json_module
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scool.cli.arguments import Recorded, configure, peek, read_toml
from scool.cli.compare import DEFAULT_METHODS, assignment, plain_value, say
from scool.data.catalogue import DataConfig, find
from scool.display.live import Console
from scool.display.tables import tuning_table
from scool.run.config import Settings, default_run
from scool.sweep.compare import choose_methods
from scool.sweep.search import Search, words
from scool.sweep.tune import run_search


@dataclass(frozen=True)
class TuneCommand(Recorded):
    """Options of `scool tune`. Every method has the same number of runs, on the same clients."""

    settings: Settings = field(default_factory=Settings)
    methods: str = DEFAULT_METHODS
    """Names with commas between, or `all` that the data allow; `scool run --help` lists them."""
    lr: str = ""
    """Learning rates to try; default: 0.01,0.05,0.1 for images, else half, once and twice the
    usual one."""
    temperature: str = ""
    """Temperatures to try, where the method has one."""
    set: tuple[str, ...] = ()
    """Other options: --set fraction=0.1,0.2 epochs=1. One value is set, several are tried."""
    budget: int = 0
    """Runs of each method; 0: all combinations of the method that has the most."""
    seeds: int = 1
    """Runs of each candidate, with seeds from --seed on."""

    @classmethod
    def on(cls, data: DataConfig) -> "TuneCommand":
        base = default_run("local", replace(data, val_fraction=0.2))
        rate = base.algorithm.sgd.lr
        is_made = find(data.dataset).read is None
        rates = (rate / 2, rate, 2 * rate) if is_made else (0.01, 0.05, 0.1)  # of the paper
        return cls(settings=base.settings, lr=",".join(f"{r:g}" for r in rates))


def tune(arguments: Sequence[str]) -> int:
    options = read_toml(peek(arguments, "--config"))
    about = "Options chosen on validation data."
    command = configure(arguments, options, TuneCommand.on, "scool tune", about)
    methods, notes = choose_methods(command.methods, command.settings)
    search = Search(
        methods=methods,
        settings=command.settings,
        space=_space(command),
        budget=command.budget,
        seeds=command.seeds,
    )
    say(notes if command.quiet else [*notes, *_plan(search)])
    out = command.folder(f"tune-{command.settings.data.dataset}")
    with Console(command.settings.rounds, quiet=command.quiet) as console:
        chosen = run_search(search, out, [console])
    say(_doubts(chosen))
    if command.json:
        for row in chosen:
            print(json_module.dumps({n: v for n, v in row.items() if n != "tried"}))
        return 0
    is_regression = command.settings.data.task == "regression"
    rows = [row | {"chosen": words(row["options"] or {}) or "-"} for row in chosen]
    tuning_table(rows, "R2" if is_regression else "validation %", 3 if is_regression else 2)
    print(out)
    return 0


def _space(command: TuneCommand) -> dict[str, tuple[Any, ...]]:
    """Values by option, from --lr, --temperature and --set."""
    texts = {"lr": command.lr, "temperature": command.temperature}
    texts |= dict(assignment(word, "OPTION=VALUE,VALUE") for word in command.set)
    space: dict[str, tuple[Any, ...]] = {}
    for option, text in texts.items():
        values = [plain_value(part.strip()) for part in text.split(",") if part.strip()]
        if values or option not in ("lr", "temperature"):
            space[option.replace("-", "_")] = tuple(values)
    return space


def _plan(search: Search) -> list[str]:
    """What each method lacks, and where the lists do not fill the budget."""
    notes: list[str] = []
    for method in search.methods:
        if missing := search.skipped(method):
            notes.append(f"{method} has no option {', '.join(missing)}: not searched for it")
        count = len(search.candidates(method))
        if count < search.candidates_each:
            notes.append(f"{method} has only {count} candidates: give more values")
    return notes


def _doubts(chosen: Sequence[dict[str, Any]]) -> list[str]:
    notes: list[str] = []
    for row in chosen:
        if row["options"] is None:
            notes.append(f"{row['method']}: every candidate diverged; try smaller learning rates")
        for option in row["at_the_edge"]:
            notes.append(f"{row['method']}: the best {option} is the smallest or largest tried")
    return notes
