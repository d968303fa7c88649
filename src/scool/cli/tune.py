"""`scool tune`: options of several methods, chosen on validation data."""

import json as json_module
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scool.cli.arguments import Recorded, configure, peek, read_toml, take_plugins
from scool.cli.compare import DEFAULT_METHODS, assignment, plain_value, say
from scool.data.catalogue import DataConfig, find
from scool.display.live import Console
from scool.run.config import Settings, default_run
from scool.sweep.comparison import choose_methods
from scool.sweep.search import Search
from scool.sweep.tune import doubts, plan_notes, run_search


@dataclass(frozen=True)
class TuneCommand(Recorded):
    """Options of `scool tune`. Every method has the same number of runs, on the same clients."""

    settings: Settings = field(default_factory=Settings)
    methods: str = DEFAULT_METHODS
    """Names separated by commas, or `all` that suit the data; `scool run --help` lists them."""
    lr: str = ""
    """Learning rates to try; default: 0.01,0.05,0.1 for images, else half, one and two times the
    usual one."""
    temperature: str = ""
    """Temperatures to try, where the method has one."""
    set: tuple[str, ...] = ()
    """Other options: --set fraction=0.1,0.2 epochs=1. One value is set, several are tried. Values
    that hold commas have semicolons between: --set "kinds=alone,graph;alone,body"."""
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
    take_plugins(arguments)
    options = read_toml(peek(arguments, "--config"))
    about = "Options chosen on validation data."
    command = configure(arguments, options, TuneCommand.on, "scool tune", about)
    methods, notes = choose_methods(command.methods, command.settings)
    search = Search.of(methods, command.settings, _space(command), command.budget, command.seeds)
    say(notes if command.quiet else [*notes, *plan_notes(search)])
    out = command.folder(f"tune-{command.settings.data.dataset}")
    with Console(command.settings.rounds, quiet=command.quiet) as console:
        found = run_search(search, out, [console])
    say(doubts(found.chosen))
    if command.json:
        for row in found.chosen:
            print(json_module.dumps({n: v for n, v in row.items() if n != "tried"}))
        return 0
    print(found)
    print(out)
    return 0


def _space(command: TuneCommand) -> dict[str, tuple[Any, ...]]:
    """Values by option, from --lr, --temperature and --set."""
    texts = {"lr": command.lr, "temperature": command.temperature}
    texts |= dict(assignment(word, "OPTION=VALUE,VALUE") for word in command.set)
    space: dict[str, tuple[Any, ...]] = {}
    for option, text in texts.items():
        between = ";" if ";" in text else ","
        values = [plain_value(part.strip()) for part in text.split(between) if part.strip()]
        if values or option not in ("lr", "temperature"):
            space[option.replace("-", "_")] = tuple(values)
    return space
