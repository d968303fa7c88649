"""Several methods, same clients, same seeds: a fair comparison."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scool.contracts import Recorder
from scool.data.catalogue import load
from scool.data.federation import Federation
from scool.errors import ConfigError, RunError, require
from scool.recording.disk import write_json
from scool.recording.seals import BOOL, OBJECT, SEAL, TEXTS, WHOLE, Kind, damaged, with_seal
from scool.run.options import RunSettings, as_dict
from scool.run.plugins import check_sources
from scool.sweep.comparison import FORMAT, OLD, Comparison
from scool.sweep.results import ComparisonResult, Outcome
from scool.sweep.runner import (
    Job,
    State,
    alone_of,
    check_possible,
    claim_all,
    folder_state,
    read_about,
    run_job,
    run_list,
)

ABOUT = "compare.json"


def run_comparison(
    comparison: Comparison, out: Path, recorders: Sequence[Recorder] = ()
) -> ComparisonResult:
    """Run what has not been run yet.

    The folder gets `compare.json` and a run folder for each method and seed. Started again on the
    same folder, it continues where it stopped. A method that diverges does not stop the others.
    """
    first = comparison.settings.seed
    federations = {
        seed: load(comparison.settings.data, seed)
        for seed in range(first, first + comparison.seeds)
    }
    jobs = [
        Job.of(config, folder_of(out, config.method, seed, comparison.seeds))
        for seed in federations
        for config in comparison.runs(seed)
    ]
    for seed, federation in federations.items():
        check_possible((job for job in jobs if job.settings.seed == seed), federation)
    with claim_all(out, ABOUT) as is_begun:
        _keep(comparison, out, is_begun)
        go_on = f"`scool resume {out}` continues the comparison"
        return run_all(jobs, federations, recorders, go_on, out)


def folder_of(out: Path, method: str, seed: int, seeds: int) -> Path:
    """Where the records of a run are, among those of a comparison."""
    return out / (f"{method}-{seed}" if seeds > 1 else method)


def run_all(
    jobs: Sequence[Job],
    federations: Mapping[int, Federation],
    recorders: Sequence[Recorder],
    go_on: str,
    out: Path | None,
) -> ComparisonResult:
    """Run what is not over; all results, also written as tables to the folder."""
    found = ComparisonResult(run_jobs(jobs, federations, recorders, go_on), out, alone_of(jobs))
    found.write()
    return found


def run_jobs(
    jobs: Sequence[Job],
    federations: Mapping[int, Federation],
    recorders: Sequence[Recorder],
    go_on: str,
) -> dict[str, dict[int, Outcome]]:
    """Run what is not over; results by method and seed, those of earlier runs included."""
    done: dict[str, dict[int, Outcome]] = {job.method: {} for job in jobs}

    def state(job: Job) -> State:
        return "missing" if job.folder is None else folder_state(job.folder)

    def run(job: Job, state: State) -> None:
        seed = job.settings.seed
        done[job.method][seed] = run_job(job, state, federations[seed], recorders)

    run_list(jobs, state, run, go_on)
    for job in jobs:
        if job.settings.seed not in done[job.method]:  # it was over: its records have the result
            run(job, state(job))
    return {
        method: {job.settings.seed: runs[job.settings.seed] for job in jobs if job.method == method}
        for method, runs in done.items()
    }


def _keep(comparison: Comparison, out: Path, is_begun: bool) -> None:
    """Write what the folder is for, unless that is written already."""
    if is_begun:
        begun = read_comparison(out)
        if replace(begun, figures=comparison.figures).to_dict() != comparison.to_dict():
            raise RunError(
                f"out = {str(out)!r} holds another comparison: continue that one with "
                f"`scool resume {out}`, or choose another --out"
            )
        if begun.figures == comparison.figures:  # else the latest value counts
            return
    write_json(out / ABOUT, with_seal(comparison.to_dict()))


# ---------------------------------------------------------------------- made from Python


def python_record(
    methods: Sequence[str], settings: RunSettings, described: Mapping[str, Any]
) -> dict[str, Any]:
    """What `compare.json` says of a comparison that only Python can continue: data, models and
    methods may be objects."""
    about = {
        "format": FORMAT,
        "methods": list(methods),
        "settings": as_dict(settings),
        "sgd": {},
        "seeds": len(described["federations"]),
        "options": described["options"],
        "figures": False,
        "python": {"federations": described["federations"]},
    }
    return json.loads(json.dumps(about))


def take_up(out: Path, about: Mapping[str, Any], is_begun: bool) -> None:
    """Write what a folder is for, unless it says so already.

    Raises:
        RunError: it is for something else.
    """
    if is_begun:
        begun = {name: value for name, value in _read(out).items() if name != SEAL}
        if begun == about:
            return
        other = next(n for n in {**begun, **about} if begun.get(n) != about.get(n))
        other = "data" if other == "python" else other
        raise RunError(
            f"out = {str(out)!r} holds another comparison, with other {other}: choose another "
            "folder"
        )
    write_json(out / ABOUT, with_seal(about))


def check_name(name: object) -> None:
    """Refuse a name that cannot be that of a folder."""
    remedy = "give a name of letters, digits, spaces and - _ . , = ( ) + that begins with a letter"
    is_fine = isinstance(name, str) and re.fullmatch(r"\w[\w .,=()+-]{0,79}", name)
    require(bool(is_fine), "methods", name, remedy)


# ---------------------------------------------------------------------- reading


def check_comparison(folder: Path) -> None:
    """Check that the record of a comparison is whole.

    Raises:
        RunError: it is not.
    """
    if not {"python", "plugins"} & _read(folder).keys():  # else only the caller can build it
        read_comparison(folder)


def _read(folder: Path) -> dict[str, Any]:
    return read_about(folder / ABOUT, (OLD, FORMAT), _FIELDS, OPTIONAL, REMEDY)


REMEDY = "Bring back a whole copy of it, or start the comparison again in another folder"


def read_comparison(folder: Path, *, is_new: bool = False) -> Comparison:
    """The comparison that a folder was made with.

    Args:
        is_new: whether it is repeated in another folder; then plugins may have changed.

    Raises:
        RunError: it is damaged, was made from Python, or needs a plugin that was not named.
    """
    values = _read(folder)
    check_sources(values.get("plugins", {}), folder, is_new=is_new)
    if "python" in values:
        raise RunError(
            f"{folder} was made from Python: continue it with the same "
            f"`scool.compare(..., out={str(folder)!r})`"
        )
    try:
        return Comparison.from_dict(values)
    except ConfigError as error:
        raise damaged(folder / ABOUT, error, REMEDY) from error


OPTIONAL = ("figures", "python", "plugins")
_FIELDS: dict[str, Kind] = {
    "methods": TEXTS,
    **dict.fromkeys(("settings", "sgd", "options"), OBJECT),
    "seeds": WHOLE,
    "figures": BOOL,
    **dict.fromkeys(OPTIONAL[1:], OBJECT),
}
