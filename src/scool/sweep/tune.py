"""The same search for every method: options chosen on validation data, never on test data."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scool.contracts import Recorder
from scool.data.catalogue import load
from scool.data.federation import Federation
from scool.errors import ConfigError, DataError, QuarantineError, RunError
from scool.recording.disk import sync, write_json
from scool.recording.lines import Log, first_link, read_lines
from scool.recording.seals import (
    LIST,
    NUMBER,
    OBJECT,
    TEXT,
    WHOLE,
    Kind,
    check_kinds,
    damaged,
    identity_seal,
    or_null,
    with_seal,
)
from scool.run.config import RunConfig, Settings, execute
from scool.run.identity import modern
from scool.run.options import as_dict, with_options
from scool.run.result import finite, spread
from scool.sweep.compare import check_possible
from scool.sweep.runner import State, claim_all, read_about, run_list
from scool.sweep.search import Options, Search, words


def judged_by_validation(federation: Federation) -> Federation:
    """The federation of a search: validation samples stand where the test samples were, which are
    not in it any more. So no run of a search can compute a test accuracy, whatever it records.

    Raises:
        DataError: a client has no validation sample.
    """
    empty = (federation.val.sizes == 0).nonzero()[:, 0].tolist()
    if empty:
        size = int(federation.train.sizes[empty[0]])
        raise DataError(
            f"client {federation.client_name(empty[0])} has {size} training samples and none for "
            f"validation ({len(empty)} such clients): raise --val-fraction, or give each client "
            "more samples"
        )
    return replace(federation, name=f"{federation.name} (validation)", test=federation.val)


def run_search(
    search: Search, out: Path, recorders: Sequence[Recorder] = ()
) -> list[dict[str, Any]]:
    """Run what has not been run yet; what was chosen for each method.

    The folder gets `tune.jsonl`, a line a finished run, and `tune.json` with the choice. Started
    again on the same folder, no finished run is repeated.
    """
    first = search.settings.seed
    federations = {
        seed: judged_by_validation(load(search.settings.data, seed))
        for seed in range(first, first + search.seeds)
    }
    for seed, federation in federations.items():
        plain = [replace(search.config(m, {}, seed), method=m) for m in search.methods]
        check_possible(plain, federation)
    trials = [
        _Trial(method, options, seed)
        for method in search.methods
        for options, seed in itertools.product(search.candidates(method), federations)
    ]
    with claim_all(out, ABOUT) as is_begun:
        log, about = _open(search, out, is_begun)
        known = {_Trial(row["method"], row["options"], row["seed"]).key: row for row in log.rows}

        def run(trial: _Trial, state: State) -> None:
            config = search.config(*trial)
            row = trial._asdict() | _score(config, federations[trial.seed], recorders)
            known[trial.key] = row
            log.append(row)

        run_list(
            trials,
            lambda trial: "over" if trial.key in known else "missing",
            run,
            f"they are kept in {out}: the same `scool tune` with that --out goes on",
        )
        chosen = [_choose(search, method, known, list(federations)) for method in search.methods]
        _write(out, about | {"status": "finished", "chosen": chosen})
    return chosen


class _Trial(NamedTuple):
    """A candidate with one seed: one run, and one line of the log."""

    method: str
    options: Options
    seed: int

    @property
    def key(self) -> str:
        return json.dumps(self, sort_keys=True)

    @property
    def name(self) -> str:
        return f"{self.method} {words(self.options)} seed={self.seed}"


def _score(
    config: RunConfig, federation: Federation, recorders: Sequence[Recorder]
) -> dict[str, Any]:
    """The validation accuracy in percent (or R^2) after the last round; None if it diverged."""
    try:
        result = execute(config, recorders=recorders, federation=federation)
    except QuarantineError as error:
        return {"score": None, "spread": None, "problem": str(error)}
    score, health = result.score, result.health
    # whose data are no numbers is lost with every candidate; who breaks in training, with this one
    broken = health.lost("training")
    if broken or result.history[-1].get("diverged"):
        who = f"clients {', '.join(map(str, broken))}" if broken else "some clients"
        return {"score": None, "spread": None, "problem": f"{who} diverged"}
    lost = ", ".join(map(str, health.words))
    problem = f"clients left out: {lost}" if lost else None
    return {"score": finite(score.nanmean()), "spread": finite(spread(score)), "problem": problem}


def _choose(
    search: Search, method: str, runs: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
) -> dict[str, Any]:
    """The candidate with the best mean over the seeds; one that diverged is never chosen."""
    tried: list[dict[str, Any]] = []
    for options in search.candidates(method):
        mine = [runs[_Trial(method, options, seed).key] for seed in seeds]
        means = {name: _mean([row[name] for row in mine]) for name in ("score", "spread")}
        problems = sorted({row["problem"] for row in mine if row["problem"]})
        tried.append({"options": options, **means, "runs": len(mine), "problems": problems})
    finished = [candidate for candidate in tried if candidate["score"] is not None]
    best = max(finished, key=lambda candidate: candidate["score"], default=None)
    return {
        "method": method,
        "candidates": len(tried),
        "runs": sum(candidate["runs"] for candidate in tried),
        "validation_mean": best["score"] if best else None,
        "validation_std": best["spread"] if best else None,
        "options": best["options"] if best else None,
        "at_the_edge": _at_the_edge(best["options"], tried) if best else [],
        "skipped": search.skipped(method),
        "tried": tried,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(values) if len(known) == len(values) > 0 else None


def _at_the_edge(chosen: Options, tried: list[dict[str, Any]]) -> list[str]:
    """Numbers whose best value is the smallest or largest tried: the best may lie beyond."""
    edges: list[str] = []
    for option, value in chosen.items():
        values = {candidate["options"][option] for candidate in tried}
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and len(values) > 1 and value in (min(values), max(values)):
            edges.append(option)
    return edges


# ---------------------------------------------------------------------- records


OLD, FORMAT = "scool-tune-1", "scool-tune-2"
ABOUT, LOG = "tune.json", "tune.jsonl"
REMEDY = "Bring back a whole copy of it, or search again in another folder"


def _write(out: Path, values: Mapping[str, Any]) -> None:
    sync([out / LOG])
    write_json(out / ABOUT, with_seal(values))


def _open(search: Search, out: Path, is_begun: bool) -> tuple[Log, dict[str, Any]]:
    """The log of finished runs, and what `tune.json` says of a search that is not finished."""
    about: dict[str, Any] = {"format": FORMAT, "search": search.to_dict(), "status": "running"}
    if not is_begun:
        about["run"] = identity_seal(json.loads(json.dumps(search.to_dict())))
        _write(out, about)
        return Log(out / LOG, about["run"]), about
    before = _read(out)
    if not _is_same(before.get("search"), search):
        raise RunError(f"out = {str(out)!r} holds another search: choose another --out")
    about["run"] = before.get("run") or identity_seal(before["search"])
    log = Log(out / LOG, about["run"], _finished(out, before))
    if "run" not in before:  # of an older version, which sealed nothing
        _write(out, about)
    log.rewrite()  # the next line begins on a line of its own
    return log, about


def _is_same(before: Any, search: Search) -> bool:
    """Whether a file holds this search. An option that is newer had its default then, and one that
    is gone did nothing."""
    now = json.loads(json.dumps(search.to_dict()))  # JSON has no tuples
    try:
        then = modern({"settings": before["settings"]})["settings"]
        settings = as_dict(with_options(Settings(), then, "settings"))
    except (ConfigError, KeyError, TypeError, AttributeError):
        return False
    return before | {"settings": json.loads(json.dumps(settings))} == now


_RUN: dict[str, Kind] = {
    "method": TEXT,
    "options": OBJECT,
    "seed": WHOLE,
    "score": or_null(NUMBER),
    "spread": or_null(NUMBER),
    "problem": or_null(TEXT),
}


def _finished(out: Path, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of `tune.jsonl`; a last one that a kill cut off does not count.

    Raises:
        RunError: a line is no finished run; the file stays as it is.
    """
    path, run = out / LOG, about.get("run")
    before = first_link(run, LOG) if run else None
    found = read_lines(path, lambda row: check_kinds(row, _RUN), before)
    if found.flaw and not found.is_cut and before and found.rows == [] and _is_unsealed(path):
        found = read_lines(path, lambda row: check_kinds(row, _RUN))  # taken up, then killed
    if found.flaw and not found.is_cut:
        raise RunError(
            f"{path} is damaged: {found.flaw}. Delete that line and those after it, and their "
            "runs are done again, or bring back a whole copy of the file"
        )
    return found.rows


def _is_unsealed(path: Path) -> bool:
    """Whether an older version wrote a log: no line has a seal."""
    return not any(read_lines(path, lambda row: None).seals)


def _read(folder: Path) -> dict[str, Any]:
    return read_about(folder / ABOUT, (OLD, FORMAT), {"run": TEXT}, ("run",), REMEDY)


def check_search(folder: Path) -> None:
    """Look whether the records of a search are whole.

    Raises:
        RunError: they are not.
    """
    _finished(folder, _read(folder))


def read_chosen(folder: Path) -> dict[str, Options]:
    """The options that a search chose, by method; only of those with a candidate that finished.

    Raises:
        RunError: the folder holds no finished search.
    """
    values = _read(folder)
    if values.get("status") != "finished":
        raise RunError(
            f"the search in {folder} is not finished: run its `scool tune` again, it goes on "
            "where it stopped"
        )
    try:
        check_kinds(values, {"chosen": LIST})
        for row in values["chosen"]:
            check_kinds(row, {"method": TEXT, "options": or_null(OBJECT)})
    except ValueError as error:
        raise _damaged(folder, error) from error
    return {row["method"]: row["options"] for row in values["chosen"] if row["options"] is not None}


def searched_data(folder: Path) -> dict[str, Any]:
    """The data that a search was made on, as options."""
    values = _read(folder)
    try:
        for name in ("search", "settings", "data"):
            check_kinds(values, {name: OBJECT})
            values = values[name]
    except ValueError as error:
        raise _damaged(folder, error) from error
    return values


def _damaged(folder: Path, error: Exception) -> RunError:
    return damaged(folder / ABOUT, error, REMEDY)
