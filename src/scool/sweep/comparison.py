"""What the command line compares: methods by name with options of their own, all else in common."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from scool.algorithms import METHODS
from scool.data.catalogue import load
from scool.data.federation import Federation
from scool.errors import ConfigError, RunError, require, unknown
from scool.learning.local_sgd import LocalSGD
from scool.run.config import (
    BETWEEN,
    RunConfig,
    Settings,
    default_run,
    with_recipe,
)
from scool.run.identity import check_gone, modern
from scool.run.options import as_dict, with_options
from scool.run.plugins import sources_of
from scool.run.prepare import Model
from scool.sweep.runner import why_not

OLD, FORMAT = "scool-compare-1", "scool-compare-2"


def choose_methods(words: str, settings: Settings) -> tuple[tuple[str, ...], list[str]]:
    """The methods of a list with commas, or for `all` those that suit the data; and a note on each
    that does not."""
    if words.strip() != "all":
        return tuple(name.strip() for name in words.split(",") if name.strip()), []
    federation = load(settings.data, settings.seed)
    every = {method: default_run(method, settings.data).algorithm for method in METHODS}
    return those_possible(every, settings.model, federation, settings.seed)


def those_possible(
    methods: Mapping[str, Any], model: Model, federation: Federation, seed: int
) -> tuple[tuple[str, ...], list[str]]:
    """The names of the methods that suit data and network, and a note on each other one."""
    reasons = {name: why_not(method, model, federation, seed) for name, method in methods.items()}
    notes = [f"{name} is left out: {why}" for name, why in reasons.items() if why]
    return tuple(name for name, why in reasons.items() if not why), notes


@dataclass(frozen=True)
class Comparison:
    """What is compared: methods with their own options, everything else in common."""

    methods: tuple[str, ...]
    settings: Settings
    sgd: LocalSGD
    seeds: int = 1
    options: Mapping[str, Mapping[str, Any]] | None = None  # of single methods, by name
    figures: bool = True  # whether pictures are saved with the results

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
        remedy = "a comparison continues from finished runs, which need one; give 1 or more"
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
            algorithm = with_sgd(default_run(method, settings.data).algorithm, self.sgd)
            algorithm = with_options(algorithm, mine, where)
            own = with_options(with_recipe(settings, method), between, where)
            configs.append(RunConfig(method, algorithm, own))
        return configs

    def to_dict(self) -> dict[str, Any]:
        plugins = sources_of(self.methods)
        return ({"plugins": plugins} if plugins else {}) | {
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


def with_sgd(algorithm: Any, sgd: LocalSGD) -> Any:
    """A method with these local steps, where they are an option of it."""
    if not is_dataclass(algorithm) or isinstance(algorithm, type):
        return algorithm
    has_sgd = "sgd" in {field.name for field in fields(algorithm)}
    return replace(algorithm, sgd=sgd) if has_sgd else algorithm
