"""From run folders to the rows of a table: which run belongs where, and what it amounts to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scool.errors import RunError
from scool.experiment.config import RunConfig
from scool.experiment.options import as_dict
from scool.experiment.recipes import METHODS
from scool.experiment.reproduction import paper
from scool.experiment.reproduction.keeping import GRAPH_ERROR
from scool.experiment.reproduction.matching import differing, flat_options, row_options
from scool.experiment.reproduction.plan import Study
from scool.experiment.reproduction.rows import Row
from scool.recording.folder import RunFolder
from scool.report.lines import figures
from scool.report.records import RunRecord, read_run

# Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom; the last serves all beyond.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)

UNMASKED = "unmasked_accuracy_mean"
SAME_RUN = "the same run"
"""What is said of a change that changes nothing."""


@dataclass(frozen=True)
class Measured:
    """The runs of one row that have the same length, one a seed."""

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
        """Words on runs and clients that diverged; empty where none did."""
        lost = sum(record.status == "diverged" for record in self.records)
        words = [f"diverged in {lost} of {len(self.records)} seeds"] if lost else []
        clients = [int(r.evaluated[-1].get("diverged") or 0) for r in self.scored]
        if any(clients):
            words.append(f"{max(clients)} of {self.scored[0].num_clients} clients stopped")
        return "; ".join(words)


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def sample_std(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample; None for fewer than two.

    >>> sample_std([1.0, 3.0]), sample_std([1.0])
    (1.4142135623730951, None)
    """
    if len(values) < 2:
        return None
    centre = sum(values) / len(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1))


def noise(values: Sequence[float], others: int | None = None) -> float | None:
    """Half the width of the 95 % interval of a mean over seeds; None for fewer than two.

    With `others` the mean is compared with another over so many seeds of equal spread.

    >>> round(noise([1.0, 2.0, 3.0]), 2)
    2.48
    """
    spread = sample_std(values)
    if spread is None:
        return None
    t = _T95[min(len(values) - 1, len(_T95)) - 1]
    return t * spread * math.sqrt(1 / len(values) + (1 / others if others else 0))


def verdict(difference: float | None, margin: float | None) -> str:
    """What a difference is worth: empty where it is beyond the noise of the seeds."""
    if difference is None:
        return ""
    if margin is None:
        return "one seed"
    return "within seed noise" if abs(difference) <= margin else ""


def find_records(folders: Sequence[Path]) -> tuple[list[RunRecord], list[str]]:
    """Every run of a known configuration below some folders, and words on what cannot be read."""
    records: list[RunRecord] = []
    notes: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"results = {str(folder)!r} is no folder: give one with run folders")
        for header in sorted(folder.rglob("run.json")):
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
    """The measured rows in their order, and words on what was left out.

    A run belongs to a row by its configuration, whatever its folder is called. Runs of different
    lengths are never averaged; of several runs of one seed the newest counts. Without `seeds` all
    that are recorded count. Where the study is shorter than a run, its first rounds count.
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
            if record.status not in ("finished", "diverged"):
                notes.append(f"{record.path} is left out: {record.status}, {record.rounds} rounds")
                continue
            rounds = int(record.header.get("rounds") or 0)
            if record.status == "finished" and (record.rounds != rounds or not record.evaluated):
                words = f"damaged, {record.rounds} of {rounds} rounds are recorded"
                notes.append(f"{record.path} is left out: {words}")
                continue
            if study.rounds and rounds > study.rounds and record.status == "finished":
                record, rounds = shortened(record, study.rounds), study.rounds
                if not (record.evaluated and record.evaluated[-1]["round"] == rounds - 1):
                    notes.append(f"{record.path} is left out: round {rounds} was not evaluated")
                    continue
            of_length = lengths.setdefault(rounds, {})
            if (record.seed or 0) in of_length:
                older = of_length[record.seed or 0].path
                notes.append(f"{older} is left out: {record.path} is newer")
            of_length[record.seed or 0] = record
        for rounds in sorted(lengths, reverse=True):
            by_seed = lengths[rounds]
            runs = [by_seed[seed] for seed in sorted(by_seed)]
            found.append(Measured(row, config, rounds, runs))
    return found, list(dict.fromkeys(notes))


def shortened(record: RunRecord, rounds: int) -> RunRecord:
    """The first rounds of a run, as if it had ended there."""
    return replace(
        record,
        rows=[row for row in record.rows if row["round"] < rounds],
        seconds={t: seconds for t, seconds in record.seconds.items() if t < rounds},
        graph_files={t: path for t, path in record.graph_files.items() if t < rounds},
    )


def without_shortened(
    measured: Sequence[Measured], study: Study
) -> tuple[list[Measured], list[str]]:
    """What is shown: shortened runs only of rows that have no whole one, the longest of them; and
    words on the others, which shortened ablations are still compared with."""
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
    """The numbers of a row: ours, the paper's, the difference, and what it is worth."""
    row, runs = measured.row, measured.scored
    seeds = measured.accuracies
    values = list(seeds.values())
    numbers = figures(runs) if runs else {}
    best = [max(e["accuracy_mean"] for e in r.evaluated) for r in runs]
    both = [r.evaluated[-1] for r in runs if r.evaluated[-1].get(UNMASKED) is not None]
    theirs = None if row.family else paper.reported(row.name, study.dataset, study.setting)
    said = theirs.mean if theirs else None
    ours = mean(values)
    clients = study.clients or paper.CLIENTS
    # a shortened run, or one of fewer clients, is not the paper's experiment
    is_whole = measured.rounds >= row.rounds and clients == paper.CLIENTS
    difference = ours - said if is_whole and ours is not None and said is not None else None
    margin = noise(values, paper.SEEDS)
    return {
        "row": row.name,
        "family": row.family,
        "title": row.title,
        "method": row.method,
        "seeds": list(seeds),
        "rounds": measured.rounds,
        "protocol_rounds": row.rounds,
        "clients": clients,
        "protocol_clients": paper.CLIENTS,
        "accuracy": ours,
        "std_clients": numbers.get("std"),
        "std_seeds": sample_std(values),
        "unmasked": mean([e[UNMASKED] for e in both]),
        "unmasked_change": mean([e[UNMASKED] - e["accuracy_mean"] for e in both]),
        "unmasked_seeds": len(both),
        "best_round": mean(best),
        "diverged": measured.stopped,
        "paper": "diverges" if theirs and said is None else said,
        "paper_std_clients": theirs.std_clients if theirs else None,
        "difference": difference,
        "noise": None if difference is None else margin,
        "verdict": verdict(difference, margin),
        **_against(measured, all_rows),
        "graph_l1": numbers.get("l1"),
        "epochs": numbers.get("epochs"),
        "bytes_sent": numbers.get("bytes"),
        "messages": numbers.get("messages"),
        "seconds": numbers.get("seconds"),
        "hardware": sorted({str((r.header.get("hardware") or {}).get("device")) for r in runs}),
        "about": row.about,
        "options": stated_options(measured.config, row),
        "records": [str(r.path) for r in measured.records],
    }


def _against(measured: Measured, all_rows: Sequence[Measured]) -> dict[str, Any]:
    """The difference to the row that an ablation is compared with, seed by seed: both runs of a
    seed have the same clients, first model and batches."""
    row = measured.row
    if not row.against:
        return {"against": "", "change": None, "change_noise": None, "change_verdict": ""}
    is_whole = measured.rounds == row.rounds
    references = [
        m
        for m in all_rows
        if m.row.name == row.against
        and m.rounds == (m.row.rounds if is_whole else measured.rounds)  # like with like
        and (is_whole or row.family)  # rounds of different rows of the table are no common measure
    ]
    theirs = references[0].accuracies if references else {}
    if references and references[0].records == measured.records:
        return {
            "against": row.against,
            "change": 0.0,
            "change_noise": 0.0,
            "change_verdict": SAME_RUN,
        }
    changes = [a - theirs[seed] for seed, a in measured.accuracies.items() if seed in theirs]
    change, margin = mean(changes), noise(changes)
    return {
        "against": row.against,
        "change": change,
        "change_noise": margin,
        "change_verdict": verdict(change, margin),
    }


def stated_options(config: RunConfig, row: Row) -> dict[str, Any]:
    """What a table must say of a run: SGD, what the row is about, and all that departs from the
    method's own defaults."""
    mine = flat_options(as_dict(config.algorithm))
    plain = flat_options(as_dict(METHODS[config.method][1]))
    sgd = config.algorithm.sgd
    work = {"steps": sgd.steps} if sgd.steps else {"epochs": sgd.epochs}
    stated: dict[str, Any] = {"lr": sgd.lr, "batch_size": sgd.batch_size, **work}
    stated["weight_decay"] = sgd.weight_decay
    for name, value in mine.items():
        short = name.rpartition(".")[2]
        if (plain.get(name) != value or short in row.options) and short not in stated:
            stated[short] = value
    stated |= {name: value for name, value in config.settings.between.items() if value}
    stated["model"] = config.settings.model.model
    if config.settings.model.relu_logits:
        stated["relu_logits"] = True
    stated["augment"] = config.settings.data.augment
    return stated


def with_graph_error(record: RunRecord) -> RunRecord:
    """The same with what was measured of the graph in rounds that were not evaluated."""
    extra: Mapping[int, Mapping[str, Any]] = {
        row["round"]: row for row in RunFolder(record.path).rows(GRAPH_ERROR)
    }
    rows = [{**extra.get(row["round"], {}), **row} for row in record.rows]
    return replace(record, rows=rows)


def named(record: RunRecord, name: str) -> RunRecord:
    """The same under the name of its row: a figure shows rows, not options, and runs of a row
    that other machines or versions made are one line."""
    header = {key: record.header.get(key) for key in ("seed", "status", "rounds")}
    identity = {"federation": record.federation_name}
    return replace(record, header={**header, "method": name, "identity": identity})
