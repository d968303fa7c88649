"""From run folders to the rows of a table: which run belongs where, and what it amounts to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev
from typing import Any

from scipy.special import stdtrit

from scool.columns import shown
from scool.display.records import RunRecord, read_run
from scool.display.series import figures
from scool.errors import RunError
from scool.reproduction import paper
from scool.reproduction.matching import differing, row_options, stated_options
from scool.reproduction.plan import Study
from scool.reproduction.rows import Row
from scool.run.config import RunConfig

UNMASKED = "unmasked_accuracy_mean"
SAME_RUN = "the same run"
"""The note on an ablation whose options equal those of its base."""


@dataclass(frozen=True)
class Measured:
    """The runs of one row that have the same length, one per seed."""

    row: Row
    config: RunConfig  # of the first seed that the command asks for
    rounds: int
    records: Sequence[RunRecord]  # by seed; finished or diverged

    @property
    def scored(self) -> list[RunRecord]:
        """The runs that ended with a score."""
        return [r for r in self.records if r.status == "finished" and r.evaluated]

    @property
    def accuracies(self) -> dict[int, float]:
        """Mean over clients after the last round, by seed."""
        return {r.seed or 0: r.evaluated[-1]["accuracy_mean"] for r in self.scored}

    @property
    def stopped(self) -> str:
        """A note on runs and clients that diverged; empty if none did."""
        lost = sum(record.status == "diverged" for record in self.records)
        words = [f"diverged in {lost} of {len(self.records)} seeds"] if lost else []
        clients = [_stopped_clients(record) for record in self.scored]
        if any(clients):
            most = "up to " if len(set(clients)) > 1 else ""
            total = self.scored[0].num_clients
            words.append(f"{most}{max(clients)} of {total} clients stopped")
        return "; ".join(words)

    @property
    def samples(self) -> int | None:
        """Training samples of a client on average, with those kept for validation; None where no
        run says it."""
        known = [r.clients.counts for r in self.records if r.clients is not None]
        if not known:
            return None
        counts = known[0]["train"] + known[0]["val"]
        return round(float(counts.sum(dim=1).float().mean()))


def _stopped_clients(record: RunRecord) -> int:
    """Clients that were left out in the end because their numbers broke, or, with CGA, stopped."""
    last = record.evaluated[-1]
    return max(int(last.get("diverged") or 0), len(last.get("quarantined") or {}))


def find_records(folders: Sequence[Path]) -> tuple[list[RunRecord], list[str]]:
    """Every run of a known configuration below some folders, and notes on what cannot be read."""
    records: list[RunRecord] = []
    notes: list[str] = []
    seen = set[Path]()  # one folder may lie in another
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"results = {str(folder)!r} is not a folder: give one with run folders")
        for header in sorted(folder.rglob("run.json")):
            if header.resolve() in seen:
                continue
            seen.add(header.resolve())
            try:
                record = read_run(header.parent)
            except RunError as error:
                notes.append(str(error))
                continue
            if record.header.get("config"):
                records.append(record)
            elif not record.header:
                why = record.problems[0] if record.problems else "run.json is empty"
                notes.append(f"{record.path} is left out: {why}")
    return records, notes


def collect(
    study: Study, rows: Sequence[Row], folders: Sequence[Path], seeds: range | None = None
) -> tuple[list[Measured], list[str]]:
    """The measured rows in order, and notes on what was left out.

    A run belongs to a row by its configuration, whatever its folder is called. Runs of different
    lengths are never averaged; of several runs of one seed the newest counts. Without `seeds` all
    recorded ones count. If the study is shorter than a run, its first rounds count.
    """
    records, notes = find_records(folders)
    options = [row_options(record.header["config"]) for record in records]
    found: list[Measured] = []
    for row in rows:
        config = study.config(row, study.seed)
        wanted = row_options(config.to_dict())
        mine = [r for r, o in zip(records, options, strict=True) if not differing(o, wanted)]
        lengths: dict[int, dict[int, RunRecord]] = {}
        for record in sorted(mine, key=lambda r: (str(r.header.get("started")), str(r.path))):
            if seeds is not None and record.seed not in seeds:
                continue
            run = shortened(record, study.rounds)
            why = _flaw(record) or _missing_end(run)
            if why:
                notes.append(f"{record.path} is left out: {why}")
                continue
            of_length = lengths.setdefault(_length(run), {})
            if (record.seed or 0) in of_length:
                older = of_length[record.seed or 0].path
                notes.append(f"{older} is left out: {record.path} is newer")
            of_length[record.seed or 0] = run
        for rounds in sorted(lengths, reverse=True):
            by_seed = lengths[rounds]
            runs = [by_seed[seed] for seed in sorted(by_seed)]
            found.append(Measured(row, config, rounds, runs))
    return found, list(dict.fromkeys(notes))


def _length(record: RunRecord) -> int:
    return int(record.header.get("rounds") or 0)


def _flaw(record: RunRecord) -> str:
    """Why a run cannot count; empty if it can."""
    if record.status == "diverged":
        return ""
    if record.status != "finished":
        return f"{record.status}, {record.rounds} rounds"
    if record.rounds != _length(record) or not record.evaluated:
        return f"damaged, {record.rounds} of {_length(record)} rounds are recorded"
    lacks = [row["round"] + 1 for row in record.evaluated if row.get("accuracy_mean") is None]
    return f"damaged, round {lacks[0]} has scores and no accuracy" if lacks else ""


def _missing_end(record: RunRecord) -> str:
    """The note on a run whose last round has no score."""
    end = record.evaluated[-1]["round"] + 1 if record.evaluated else 0
    is_open = record.status == "finished" and end != _length(record)
    return f"round {_length(record)} was not evaluated" if is_open else ""


def shortened(record: RunRecord, rounds: int) -> RunRecord:
    """The first rounds of a longer run that is over, as if it had ended there; 0: all."""
    if not rounds or _length(record) <= rounds:
        return record
    is_later = record.status == "diverged" and record.rounds >= rounds
    status = "finished" if is_later else record.status
    return replace(
        record,
        header={**record.header, "rounds": rounds, "status": status},
        rows=[row for row in record.rows if row["round"] < rounds],
        seconds={t: seconds for t, seconds in record.seconds.items() if t < rounds},
        graph_files={t: path for t, path in record.graph_files.items() if t < rounds},
    )


def without_shortened(
    measured: Sequence[Measured], study: Study
) -> tuple[list[Measured], list[str]]:
    """What is shown: shortened runs only of rows that have no whole one, the longest of them; and
    notes on the others, which shortened ablations are still compared with."""
    shown: list[Measured] = []
    notes: list[str] = []
    for m in measured:
        wanted = min(m.row.rounds, study.rounds or m.row.rounds)
        longest = max(other.rounds for other in measured if other.row == m.row)
        if m.rounds < min(wanted, longest):
            notes += [f"{r.path} is not shown: {m.rounds} rounds only" for r in m.records]
        else:
            shown.append(m)
    return shown, list(dict.fromkeys(notes))


def summarise_row(measured: Measured, study: Study, all_rows: Sequence[Measured]) -> dict[str, Any]:
    """The numbers of a row: ours, the paper's, the difference, and its significance."""
    row, runs = measured.row, measured.scored
    values = list(measured.accuracies.values())
    numbers = figures(runs) if runs else {}
    best = [max(e["accuracy_mean"] for e in r.evaluated) for r in runs]
    both = [r.evaluated[-1] for r in runs if r.evaluated[-1].get(UNMASKED) is not None]
    return {
        "row": row.name,
        "family": row.family,
        "title": row.title,
        "method": row.method,
        "seeds": list(measured.accuracies),
        "rounds": measured.rounds,
        "protocol_rounds": row.rounds,
        "clients": study.clients or paper.CLIENTS,
        "protocol_clients": paper.CLIENTS,
        "samples": measured.samples,
        "protocol_samples": paper.SAMPLES,
        "accuracy": mean(values),
        "std_clients": numbers.get("std"),
        "std_seeds": stdev(values) if len(values) > 1 else None,
        "unmasked": mean([e[UNMASKED] for e in both]),
        "unmasked_change": mean([e[UNMASKED] - e["accuracy_mean"] for e in both]),
        "unmasked_seeds": len(both),
        "best_accuracy": mean(best),
        "stopped": measured.stopped,
        **_beside_paper(measured, study),
        **_against(measured, all_rows),
        **{column.name: numbers.get(column.name) for column in shown("csv")},
        "hardware": sorted({str((r.header.get("hardware") or {}).get("device")) for r in runs}),
        "about": row.about,
        "options": stated_options(measured.config, row),
        "records": [str(r.path) for r in measured.records],
    }


def _beside_paper(measured: Measured, study: Study) -> dict[str, Any]:
    """The paper's numbers for a row of its table, and the difference."""
    row, values = measured.row, list(measured.accuracies.values())
    theirs = None if row.family else paper.reported(row.name, study.dataset, study.setting)
    said, ours = theirs.mean if theirs else None, mean(values)
    # a shortened run, or one of fewer clients or samples, is not the paper's experiment
    has_data = measured.samples in (None, paper.SAMPLES)
    is_whole = measured.rounds >= row.rounds and not study.clients and has_data
    difference = ours - said if is_whole and ours is not None and said is not None else None
    margin = None if difference is None else noise(values, theirs.seeds if theirs else None)
    return {
        "paper": "diverges" if theirs and said is None else said,
        "paper_std_clients": theirs.std_clients if theirs else None,
        "difference": difference,
        "noise": margin,
        "verdict": verdict(difference, margin),
    }


def _against(measured: Measured, all_rows: Sequence[Measured]) -> dict[str, Any]:
    """The difference to the row that an ablation is compared with, seed by seed: both runs of a
    seed have the same clients and first model."""
    row = measured.row
    if not row.against:
        nothing = {"change": None, "change_noise": None, "change_verdict": ""}
        return {"against": "", "change_seeds": 0, **nothing}
    is_whole = measured.rounds == row.rounds
    references = [
        m
        for m in all_rows
        if m.row.name == row.against
        and m.rounds == (m.row.rounds if is_whole else measured.rounds)  # like with like
        and (is_whole or row.family)  # rounds of different rows of the table have no common measure
    ]
    theirs = references[0].accuracies if references else {}
    if references and references[0].records == measured.records:
        same = {"change": 0.0, "change_noise": 0.0, "change_verdict": SAME_RUN}
        return {"against": row.against, "change_seeds": len(theirs), **same}
    changes = [a - theirs[seed] for seed, a in measured.accuracies.items() if seed in theirs]
    change, margin = mean(changes), noise(changes)
    return {
        "against": row.against,
        "change_seeds": len(changes),
        "change": change,
        "change_noise": margin,
        "change_verdict": verdict(change, margin),
    }


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def noise(values: Sequence[float], others: int | None = None) -> float | None:
    """Half the width of the 95 % interval (Student's t) of a mean over seeds; None for fewer than
    two. With `others` the mean is compared with another over so many seeds of equal spread.

    >>> round(noise([1.0, 2.0, 3.0]), 2)
    2.48
    """
    if len(values) < 2:
        return None
    share = 1 / len(values) + (1 / others if others else 0)
    return float(stdtrit(len(values) - 1, 0.975)) * stdev(values) * math.sqrt(share)


def verdict(difference: float | None, margin: float | None) -> str:
    """A note on a difference; empty if it exceeds the noise of the seeds."""
    if difference is None or margin is None:
        return "" if difference is None else "one seed"
    return "within seed noise" if abs(difference) <= margin else ""
