"""The same search for every method: options chosen on validation data, never on test data."""

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from scool.contracts import Recorder
from scool.data.catalogue import load
from scool.data.federation import Federation, Task
from scool.errors import DataError, QuarantineError
from scool.evaluation.scores import finite, spread
from scool.recording.disk import write_bytes
from scool.run.config import Settings
from scool.sweep.runner import Job, State, check_possible, claim_all, run_list
from scool.sweep.search import Options, Search, words
from scool.sweep.search_folder import ABOUT, open_search, write_search


def judged_by_validation(federation: Federation) -> Federation:
    """The federation of a search: validation samples replace the test samples. So no run of a
    search can compute a test accuracy.

    Raises:
        DataError: a client has no validation sample.
    """
    empty = (federation.val.sizes == 0).nonzero()[:, 0].tolist()
    if empty:
        size = int(federation.train.sizes[empty[0]])
        raise DataError(
            f"client {federation.client_name(empty[0])} has {size} training samples and none for "
            f"validation ({len(empty)} such clients): raise --val-fraction, or leave clients with "
            "a single sample out (min_rows of a table)"
        )
    return replace(federation, name=f"{federation.name} (validation)", test=federation.val)


@dataclass(frozen=True, repr=False)
class SearchResult:
    """Options that were chosen for each method on validation data."""

    chosen: Sequence[Mapping[str, Any]]
    """One entry per method, as in `tune.json`: the choice, its score, and every candidate."""
    methods: Mapping[str, Any]
    """Each method with the options chosen for it, ready for `scool.compare`; without those whose
    candidates have all diverged."""
    task: Task
    out: Path | None = None

    @classmethod
    def of(
        cls, search: Search, chosen: Sequence[Mapping[str, Any]], task: Task, out: Path | None
    ) -> "SearchResult":
        methods = {
            row["method"]: search.chosen(row["method"], row["options"])
            for row in chosen
            if row["options"] is not None
        }
        return cls(chosen, methods, task, out)

    @property
    def options(self) -> dict[str, Options | None]:
        """What was chosen for each method; None where every candidate diverged."""
        return {row["method"]: row["options"] for row in self.chosen}

    def table(self) -> Any:
        """A pandas table with a row per candidate of each method, and its validation score."""
        import pandas as pd

        rows = [
            {
                "method": row["method"],
                **candidate["options"],
                "score": candidate["score"],
                "spread": candidate["spread"],
                "std_over_seeds": candidate["std_over_seeds"],
                "chosen": candidate["options"] == row["options"],
            }
            for row in self.chosen
            for candidate in row["tried"]
        ]
        return pd.DataFrame(rows).set_index("method")

    def to_csv(self, path: str | Path) -> Path:
        """Write `table()` as a CSV file; its path."""
        write_bytes(Path(path), self.table().to_csv().encode())
        return Path(path)

    def __repr__(self) -> str:
        from scool.display.tables import tuning_text

        rows = [{**row, "chosen": words(row["options"] or {}) or "-"} for row in self.chosen]
        is_number = self.task == "regression"
        return tuning_text(rows, "R2" if is_number else "validation %", 3 if is_number else 2)

    def _repr_html_(self) -> str:
        return self.table().to_html()


def run_search(search: Search, out: Path, recorders: Sequence[Recorder] = ()) -> SearchResult:
    """Run what has not been run yet, on the data that the settings name.

    The folder gets `tune.jsonl`, a line per finished run, and `tune.json` with the choice. Started
    again on the same folder, no finished run is repeated.
    """
    assert isinstance(search.settings, Settings)
    first, data = search.settings.seed, search.settings.data
    federations = {seed: load(data, seed) for seed in range(first, first + search.seeds)}
    return search_on(search, federations, out, recorders)


def search_on(
    search: Search,
    federations: Mapping[int, Federation],
    out: Path | None,
    recorders: Sequence[Recorder] = (),
) -> SearchResult:
    """The same on the clients of each seed, which have validation samples."""
    judged = {seed: judged_by_validation(each) for seed, each in federations.items()}
    for federation in judged.values():
        check_possible(search.starts.values(), federation)
    trials = [
        _Trial(method, options, seed)
        for method in search.methods
        for options, seed in itertools.product(search.candidates(method), judged)
    ]
    known: dict[str, Mapping[str, Any]] = {}
    with nullcontext(False) if out is None else claim_all(out, ABOUT) as is_begun:
        log, about = (None, {}) if out is None else open_search(search, out, is_begun)
        for row in log.rows if log else ():
            known[_Trial(row["method"], row["options"], row["seed"]).key] = row

        def run(trial: _Trial, state: State) -> None:
            row = trial._asdict() | _score(search.job(*trial), judged[trial.seed], recorders)
            known[trial.key] = row
            if log:
                log.append(row)

        run_list(
            trials,
            lambda trial: "over" if trial.key in known else "missing",
            run,
            "nothing is kept of them without `out`"
            if out is None
            else f"they are kept in {out}: the same `scool tune` with that --out continues",
        )
        chosen = [_choose(search, method, known, list(judged)) for method in search.methods]
        if out is not None:
            write_search(out, about | {"status": "finished", "chosen": chosen})
    found = SearchResult.of(search, chosen, next(iter(judged.values())).task, out)
    if out is not None:
        found.to_csv(out / "tune.csv")
    return found


def plan_notes(search: Search) -> list[str]:
    """Notes on options that methods lack, and on lists that do not fill the budget."""
    notes: list[str] = []
    for method in search.methods:
        if missing := search.skipped(method):
            notes.append(f"{method} has no option {', '.join(missing)}: not searched for it")
        count = len(search.candidates(method))
        if count < search.candidates_each:
            notes.append(f"{method} has only {count} candidates: give more values")
    return notes


def doubts(chosen: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where a choice may not be the best one."""
    notes: list[str] = []
    for row in chosen:
        if row["options"] is None:
            notes.append(f"{row['method']}: every candidate diverged; try smaller learning rates")
        for option in row["at_the_edge"]:
            notes.append(f"{row['method']}: the best {option} is the smallest or largest tried")
    return notes


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


def _score(job: Job, federation: Federation, recorders: Sequence[Recorder]) -> dict[str, Any]:
    """The validation accuracy in percent (or R^2) after the last round; None if it diverged."""
    try:
        result = job.run(federation, recorders=recorders)
    except QuarantineError as error:
        return {"score": None, "spread": None, "problem": str(error)}
    score, health = result.score, result.health
    # broken data lose a client with every candidate, broken training only with this one
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
        seeds_apart = _deviation([row["score"] for row in mine])
        found = {"options": options, **means, "std_over_seeds": seeds_apart}
        tried.append(found | {"runs": len(mine), "problems": problems})
    finished = [candidate for candidate in tried if candidate["score"] is not None]
    best = max(finished, key=lambda candidate: candidate["score"], default=None)
    return {
        "method": method,
        "candidates": len(tried),
        "runs": sum(candidate["runs"] for candidate in tried),
        "validation_mean": best["score"] if best else None,
        "validation_std": best["spread"] if best else None,
        "std_over_seeds": best["std_over_seeds"] if best else None,
        "options": best["options"] if best else None,
        "at_the_edge": _at_the_edge(best["options"], tried) if best else [],
        "skipped": search.skipped(method),
        "tried": tried,
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(values) if len(known) == len(values) > 0 else None


def _deviation(values: list[float | None]) -> float | None:
    """The standard deviation over seeds; None for a single one, or where one diverged."""
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) == len(values) > 1 else None


def _at_the_edge(chosen: Options, tried: list[dict[str, Any]]) -> list[str]:
    """Numbers whose best value is the smallest or largest tried: the best may lie beyond."""
    edges: list[str] = []
    for option, value in chosen.items():
        values = {candidate["options"][option] for candidate in tried}
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and len(values) > 1 and value in (min(values), max(values)):
            edges.append(option)
    return edges
