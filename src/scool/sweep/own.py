"""Comparisons and searches from Python, with your own data and methods."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from scool.algorithms import METHODS, LocalOnly
from scool.contracts import Method, OwnMethod, Recorder
from scool.data.build import with_validation
from scool.data.catalogue import config_like
from scool.data.federation import Federation
from scool.errors import ConfigError, require, unknown
from scool.learning.local_sgd import LocalSGD
from scool.run.checks import as_method
from scool.run.config import default_run
from scool.run.identity import identity_of
from scool.run.options import Changes, RunSettings, as_dict, with_changes
from scool.run.plugins import load_installed
from scool.run.prepare import Model
from scool.sweep.compare import (
    ABOUT,
    check_name,
    folder_of,
    python_record,
    run_all,
    take_up,
)
from scool.sweep.comparison import those_possible, with_sgd
from scool.sweep.results import ComparisonResult
from scool.sweep.runner import Job, check_possible, claim_all
from scool.sweep.search import Search
from scool.sweep.tune import SearchResult, doubts, plan_notes, search_on

Own = Method[Any] | OwnMethod
Methods = str | Own | Mapping[str, str | Own] | Sequence[str | Own | Mapping[str, str | Own]]
Clients = Federation | Callable[[int], Federation]


def compare(
    federation: Clients,
    model: Model,
    methods: Methods,
    *,
    seeds: int | Sequence[int] = 1,
    sgd: LocalSGD | None = None,
    settings: RunSettings | None = None,
    out: str | Path | None = None,
    recorders: Sequence[Recorder] = (),
    verbose: bool = True,
    **changes: Unpack[Changes],
) -> ComparisonResult:
    """Run several methods on the same clients, with the same first models and batches.

    Args:
        federation: the clients' data, the same for every seed; or a function from a seed to them.
        model: as for `fit`.
        methods: names (`"local"`, `"scool-sbm"`; `scool run --help` lists them), methods with
            options of your own, mappings from your names to methods, or a list with any of these;
            `"all"` are those names that the data allow.
        seeds: how many, from `settings.seed` on; or a list of them.
        sgd: the local steps of the methods given by name; default: those of the command line for
            data like these. A method given as an object keeps its own; a note says where they
            differ.
        settings: rounds and other options, as for `fit`; or single ones by name in `changes`.
        out: a folder for the records of every run. The same call on the same folder continues where
            it stopped; `scool report` and `scool ls` read it.
        recorders: they watch every run.
        verbose: show progress on stderr.

    Examples:
        >>> import scool
        >>> federation = scool.digits(num_clients=4, groups=2, seed=0)
        >>> mine = scool.SCooL(prior=scool.SBM(num_blocks=2))
        >>> found = scool.compare(
        ...     federation, "linear", ["local", {"mine": mine}], seeds=2, rounds=1, verbose=False
        ... )
        >>> found["mine"][1].accuracy.shape, list(found.table().index)
        (torch.Size([4]), ['local', 'mine'])
    """
    common, numbers = _common(settings, changes, seeds)
    federations = _federations(federation, numbers)
    starts, notes = _starts(methods, sgd, federations, model, common)
    named = {name: job.algorithm for name, job in starts.items()}
    _say([*notes, *_differing(named)], verbose)
    folder = None if out is None else Path(out)
    jobs = [
        replace(
            job,
            settings=replace(job.settings, seed=seed),
            folder=None if folder is None else folder_of(folder, name, seed, len(numbers)),
        )
        for seed in numbers
        for name, job in starts.items()
    ]
    for seed, clients in federations.items():
        check_possible((job for job in jobs if job.settings.seed == seed), clients)
    about = python_record(list(named), common, _described(named, federations))
    go_on = "the same call continues" if out else "nothing of them is kept without `out`"
    with (
        nullcontext(False) if folder is None else claim_all(folder, ABOUT) as is_begun,
        _console(common.rounds, verbose) as console,
    ):
        if folder is not None:
            take_up(folder, about, is_begun)
        return run_all(jobs, federations, [console, *recorders], go_on, folder)


def tune(
    federation: Clients,
    model: Model,
    methods: Methods,
    grid: Mapping[str, Any],
    *,
    budget: int = 0,
    seeds: int | Sequence[int] = 1,
    val_fraction: float = 0.2,
    sgd: LocalSGD | None = None,
    settings: RunSettings | None = None,
    out: str | Path | None = None,
    recorders: Sequence[Recorder] = (),
    verbose: bool = True,
    **changes: Unpack[Changes],
) -> SearchResult:
    """Choose options of several methods on validation data, with as many runs for each.

    No run sees a test sample: validation samples stand in their place.

    Args:
        federation: as for `compare`.
        model: as for `fit`.
        methods: as for `compare`.
        grid: values to try by option, e.g. `{"lr": [0.05, 0.1], "temperature": [1, 2]}`; a single
            value is set. A method without an option spends its runs on finer values of others.
        budget: runs of each method; 0: all combinations of the method that has the most.
        seeds: runs of each candidate, as for `compare`.
        val_fraction: the share of each client's training samples to judge by, where a federation
            has no validation samples.
        sgd: the local steps of the methods given by name.
        settings: rounds and other options, as for `fit`; or single ones by name in `changes`.
        out: a folder for what came out of each run; the same call continues where it stopped.
        recorders: they watch every run.
        verbose: show progress on stderr.

    Examples:
        >>> import scool
        >>> federation = scool.digits(num_clients=4, groups=2, seed=0)
        >>> found = scool.tune(
        ...     federation, "linear", ["local"], {"lr": [0.1, 0.2]}, rounds=1, verbose=False
        ... )
        >>> found.options["local"]["lr"] == found.methods["local"].sgd.lr
        True
    """
    common, numbers = _common(settings, changes, seeds)
    federations = {
        seed: with_validation(clients, val_fraction, seed)
        for seed, clients in _federations(federation, numbers).items()
    }
    starts, notes = _starts(methods, sgd, federations, model, common)
    named = {name: job.algorithm for name, job in starts.items()}
    space = {
        option: tuple(values) if isinstance(values, list | tuple) else (values,)
        for option, values in grid.items()
    }
    search = Search(starts, common, space, budget, len(numbers), _described(named, federations))
    _say([*notes, *plan_notes(search)], verbose)
    with _console(common.rounds, verbose) as console:
        folder = None if out is None else Path(out)
        found = search_on(search, federations, folder, [console, *recorders])
    _say(doubts(found.chosen), verbose)
    return found


def _common(
    settings: RunSettings | None, changes: Mapping[str, Any], seeds: int | Sequence[int]
) -> tuple[RunSettings, list[int]]:
    """The settings of all runs, with the first seed, and all seeds."""
    common = with_changes(settings, changes)
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        require(seeds >= 1, "seeds", seeds, "give at least 1, or a list of seeds")
        return common, list(range(common.seed, common.seed + seeds))
    remedy = "give a number of seeds, or a list of different whole numbers"
    is_list = isinstance(seeds, list | tuple | range)
    require(is_list and len(seeds) > 0, "seeds", seeds, remedy)
    listed: list[Any] = list(seeds) if is_list else []
    numbers = [replace(common, seed=seed).seed for seed in listed]  # checked there
    require(len(set(numbers)) == len(numbers), "seeds", seeds, remedy)
    return replace(common, seed=numbers[0]), numbers


def _federations(source: Clients, seeds: Sequence[int]) -> dict[int, Federation]:
    """The clients of each seed."""
    is_made = callable(source) and not isinstance(source, Federation | type)
    found = {seed: source(seed) if is_made else source for seed in seeds}  # type: ignore[operator]
    for each in found.values():
        remedy = "give one, e.g. of scool.from_arrays(...), or a function from a seed to one"
        require(isinstance(each, Federation), "federation", each, remedy)
    return found  # type: ignore[return-value]


def _starts(
    methods: Methods,
    sgd: LocalSGD | None,
    federations: Mapping[int, Federation],
    model: Model,
    common: RunSettings,
) -> tuple[dict[str, Job], list[str]]:
    """The methods by name, as runs without a seed of their own; and a note on each of `all` that
    the data do not allow."""
    seed, first = next(iter(federations.items()))
    notes: list[str] = []
    if isinstance(methods, str) and methods == "all":
        every = {name: method for name, (_, method) in METHODS.items()}
        possible, notes = those_possible(every, model, first, seed)
        methods = list(possible)
    items: Sequence[Any] = methods if isinstance(methods, list | tuple) else [methods]
    found: dict[str, Job] = {}
    for item in items:
        for name, method in _names_of(item).items():
            if name in found:
                raise ConfigError(
                    f"two methods are called {name!r}: give names of your own, "
                    "{'one': ..., 'other': ...}"
                )
            check_name(name)
            if isinstance(method, str):
                algorithm, settings = _known(method, sgd, first, common)
            else:
                as_method(method)
                algorithm, settings = method, common
            found[name] = Job(name, algorithm, model, settings)
    require(bool(found), "methods", methods, "name at least one")
    return found, notes


def _known(
    method: str, sgd: LocalSGD | None, federation: Federation, common: RunSettings
) -> tuple[Any, RunSettings]:
    """A method of the list, as the command line has it for data like these."""
    if method not in METHODS:
        load_installed()
    if method not in METHODS:
        unknown("method", method, METHODS)
    start = default_run(method, config_like(federation))
    own = {name: getattr(common, name) or value for name, value in start.settings.between.items()}
    algorithm = start.algorithm if sgd is None else with_sgd(start.algorithm, sgd)
    return algorithm, replace(common, **own)


def _names_of(item: Any) -> Mapping[str, Any]:
    """A name, a method, or a mapping of names to these, as such a mapping."""
    if isinstance(item, Mapping):
        return item
    return {item if isinstance(item, str) else name_of(item): item}


def name_of(method: Own) -> str:
    """The default name of a method: its class, for SCooL with the prior.

    Examples:
        >>> import scool
        >>> name_of(scool.SCooL(prior=scool.SBM()))
        'SCooL-SBM'
    """
    plain = as_method(method).plain
    prior = getattr(plain, "prior", None)
    return type(plain).__name__ + ("" if prior is None else f"-{type(prior).__name__}")


def _differing(named: Mapping[str, Any]) -> list[str]:
    """Note which methods do not take the same local steps."""
    steps = {name: as_dict(as_method(method).sgd) for name, method in named.items()}
    first, *others = steps
    notes: list[str] = []
    for other in others:
        pairs = {option: (value, steps[first][option]) for option, value in steps[other].items()}
        if differing := [f"{n} {a} and {b}" for n, (a, b) in pairs.items() if a != b]:
            notes.append(
                f"local steps of {other} are not those of {first} ({', '.join(differing)}): "
                "the argument `sgd` sets them for methods given by name"
            )
    return notes


def _described(named: Mapping[str, Any], federations: Mapping[int, Federation]) -> dict[str, Any]:
    """What a folder must have been made with to be continued, besides names and settings."""
    options = {name: as_dict(m) if is_dataclass(m) else {} for name, m in named.items()}
    digests = {
        str(seed): identity_of(LocalOnly(), clients, seed, {}, {})["digest"]
        for seed, clients in federations.items()
    }
    plain = json.dumps(options, default=lambda value: type(value).__name__)
    return {"options": json.loads(plain), "federations": digests}


def _console(rounds: int, verbose: bool) -> Any:
    from scool.display.live import Console

    return Console(rounds, quiet=not verbose)


def _say(notes: Sequence[str], verbose: bool) -> None:
    for note in notes if verbose else ():
        print(f"note: {note}", file=sys.stderr)
