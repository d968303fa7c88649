"""What a search tries: candidates for each method, as many for one as for the other."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from scool.columns import flatten_options
from scool.errors import ConfigError, nearest, require
from scool.randomness import generator
from scool.run.config import BETWEEN, Settings, default_run
from scool.run.options import RunSettings, as_dict, with_options
from scool.run.plugins import sources_of
from scool.sweep.comparison import Comparison
from scool.sweep.runner import Job

Options = dict[str, Any]  # one candidate


@dataclass(frozen=True)
class Search:
    """Values of options to try, and how many runs each method may spend on them."""

    starts: Mapping[str, Job]  # each method with the options that are not searched for
    settings: RunSettings  # what all have in common
    space: Mapping[str, Sequence[Any]]  # values by option; a single value is simply set
    budget: int = 0  # runs of each method; 0: what the largest grid of a method needs
    seeds: int = 1
    described: Mapping[str, Any] | None = None  # for the record, where names do not say it

    def __post_init__(self) -> None:
        require(bool(self.starts), "methods", (), "name at least one")
        require(self.budget >= 0, "budget", self.budget, "give 0 (all combinations) or more")
        require(self.seeds >= 1, "seeds", self.seeds, "give at least 1")
        for option, values in self.space.items():
            self._check(option, values)
        require(
            self.budget == 0 or self.budget >= self.seeds,
            "budget",
            self.budget,
            f"a candidate takes {self.seeds} runs, one per seed",
        )
        for method in self.methods:  # a wrong value is found before anything starts
            for options in self.candidates(method):
                self.job(method, options, self.settings.seed)

    def _check(self, option: str, values: Sequence[Any]) -> None:
        require(len(values) > 0, option, "", "give values with commas between")
        require(len(values) == len(set(values)), option, list(values), "give each value once")
        if option in BETWEEN:
            flag = f"--{option.replace('_', '-')}"
            raise ConfigError(
                f"{option} is an option of the run, one value for all: give {flag} VALUE"
            )
        known = {name for method in self.methods for name in self._defaults(method)}
        if option not in known:
            hint = nearest(option, known)
            raise ConfigError(f"none of the methods has an option {option!r}: {hint}")

    @classmethod
    def of(
        cls,
        methods: Sequence[str],
        settings: Settings,
        space: Mapping[str, Sequence[Any]],
        budget: int = 0,
        seeds: int = 1,
    ) -> "Search":
        """A search that the command line can describe: methods by name, with common SGD options."""
        sgd = default_run("local", settings.data).algorithm.sgd
        share = settings.data.val_fraction
        require(share > 0, "val_fraction", share, "give the share to judge by, e.g. 0.2")
        comparison = Comparison(tuple(methods), settings, sgd, seeds)  # checks what both have
        starts = {run.method: Job.of(run) for run in comparison.runs(settings.seed)}
        plugins = sources_of(tuple(methods))
        described = {"plugins": plugins} if plugins else {}
        return cls(starts, settings, space, budget, seeds, described)

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.starts)

    def _defaults(self, method: str) -> Options:
        """Every option of a method with its default."""
        options = flatten_options(as_dict(self.starts[method].algorithm))
        return {name.rpartition(".")[2]: value for name, value in options.items()}

    def space_of(self, method: str) -> dict[str, list[Any]]:
        """Those options that the method has."""
        has = self._defaults(method)
        return {option: list(values) for option, values in self.space.items() if option in has}

    def skipped(self, method: str) -> list[str]:
        """Those options that it does not have."""
        return [option for option in self.space if option not in self.space_of(method)]

    @property
    def candidates_each(self) -> int:
        """How many candidates the budget allows, the same for each method."""
        largest = max(len(_grid(self.space_of(method))) for method in self.methods)
        return self.budget // self.seeds if self.budget else largest

    def candidates(self, method: str) -> list[Options]:
        """What is tried: the grid, a random part of it where the budget is smaller, and values
        between those of the grid if it is larger. The same for methods with the same options."""
        count, space = self.candidates_each, self.space_of(method)
        rng = generator(self.settings.seed, "tune")
        chosen = _some(_grid(space), count, rng)
        while len(chosen) < count:
            finer = {o: self._between(method, o, values) for o, values in space.items()}
            if finer == space:
                break
            new = [options for options in _grid(finer) if options not in chosen]
            chosen += _some(new, count - len(chosen), rng)
            space = finer
        return chosen

    def _between(self, method: str, option: str, values: list[Any]) -> list[Any]:
        """Twice as fine, where the option is a number that may have any value."""
        if not isinstance(self._defaults(method)[option], float):
            return values
        numbers = sorted(float(value) for value in values)
        middle = [_middle(a, b) for a, b in itertools.pairwise(numbers)]
        return sorted({*numbers, *middle})

    def job(self, method: str, options: Options, seed: int) -> Job:
        """The run of a candidate: judged at its end only."""
        start = self.starts[method]
        rounds = start.settings.rounds
        settings = replace(start.settings, seed=seed, eval_every=rounds, checkpoint_every=rounds)
        name = f"{method} {words(options)} seed={seed}, validation"  # for the progress on stderr
        algorithm = self.chosen(method, options)
        return replace(start, method=name, algorithm=algorithm, settings=settings, config=None)

    def chosen(self, method: str, options: Options) -> Any:
        """A method with the options of a candidate."""
        algorithm = self.starts[method].algorithm
        return with_options(algorithm, options, f"options of {method}") if options else algorithm

    def to_dict(self) -> dict[str, Any]:
        return {
            "methods": list(self.methods),
            "settings": as_dict(self.settings),
            "space": {option: list(values) for option, values in self.space.items()},
            "budget": self.budget,
            "seeds": self.seeds,
            **(self.described or {}),
        }


def words(options: Options) -> str:
    """A candidate in one line.

    >>> words({"lr": 0.1, "topology": "ring"})
    'lr=0.1 topology=ring'
    """
    return " ".join(f"{option}={value}" for option, value in options.items())


def _grid(space: Mapping[str, Sequence[Any]]) -> list[Options]:
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


def _some(candidates: list[Options], count: int, rng: torch.Generator) -> list[Options]:
    """`count` of them at random, in their order."""
    chosen = torch.randperm(len(candidates), generator=rng)[:count].sort().values
    return [candidates[i] for i in chosen.tolist()]


def _middle(a: float, b: float) -> float:
    """The geometric mean of positive numbers, else the plain one; three digits are enough."""
    middle = (a * b) ** 0.5 if a > 0 else (a + b) / 2
    return float(f"{middle:.3g}")
