"""Curves and figures of one method over its seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scool.columns import COLUMNS, Column
from scool.display.records import RunRecord
from scool.evaluation.metrics import metric_columns
from scool.evaluation.paired import Paired, paired_difference

Row = Mapping[str, Any]


def cumulative(record: RunRecord, name: str) -> dict[int, float]:
    """Bytes, messages or seconds since the start, by round."""
    total, found = 0.0, {}
    for row in record.rows:
        value = record.seconds.get(row["round"]) if name == "seconds" else row.get(name)
        total += value or 0
        found[row["round"]] = total
    return found


def epochs(record: RunRecord) -> dict[int, float] | None:
    """Passes over the data since the start, by round: as counted, or in older records as asked
    for; None where neither is known."""
    if record.rows and all(row.get("epochs") is not None for row in record.rows):
        return cumulative(record, "epochs")
    sgd = record.algorithm.get("sgd") or {}
    if sgd.get("steps") or "epochs" not in sgd:
        return None
    return {row["round"]: sgd["epochs"] * (row["round"] + 1) for row in record.rows}


def common_rounds(records: Sequence[RunRecord], has: Callable[[Row], bool]) -> list[int]:
    """Rounds that every run with any such round has."""
    sets = [{row["round"] for row in record.rows if has(row)} for record in records]
    sets = [rounds for rounds in sets if rounds]
    return sorted(set.intersection(*sets)) if sets else []


def curve(records: Sequence[RunRecord], name: str) -> dict[str, list[Any]]:
    """Mean over the seeds of a field of the rows, with the smallest and the largest."""
    rounds = common_rounds(records, lambda row: isinstance(row.get(name), int | float))
    by_run = [
        {row["round"]: row[name] for row in record.rows if row["round"] in set(rounds)}
        for record in records
    ]
    values = np.array([[run[t] for t in rounds] for run in by_run if run], dtype=float)
    if not rounds:
        return {"round": [], "mean": [], "low": [], "high": []}
    return {
        "round": rounds,
        "mean": values.mean(axis=0).tolist(),
        "low": values.min(axis=0).tolist(),
        "high": values.max(axis=0).tolist(),
    }


def client_band(records: Sequence[RunRecord], rounds: Sequence[int]) -> dict[str, list[Any]]:
    """The 10th and the 90th percentile of the scores of all clients, over all seeds."""
    low: list[float | None] = []
    high: list[float | None] = []
    rows = [{row["round"]: row["scores"] for row in record.evaluated} for record in records]
    for t in rounds:
        scores = [s for run in rows for s in run.get(t, []) if s is not None]
        low.append(float(np.percentile(scores, 10)) if scores else None)
        high.append(float(np.percentile(scores, 90)) if scores else None)
    return {"clients_low": low, "clients_high": high}


def axes_of(records: Sequence[RunRecord], rounds: Sequence[int]) -> dict[str, Any]:
    """What was spent by the end of each round, mean over the seeds."""
    found: dict[str, Any] = {}
    for name in ("bytes", "seconds"):
        spent = [cumulative(record, name) for record in records]
        found[name] = [_mean([run[t] for run in spent if t in run]) for t in rounds]
    passes = [epochs(record) for record in records]
    passes = [run for run in passes if run]
    means = [_mean([run[t] for run in passes if t in run]) for t in rounds]
    return found | {"epochs": means if passes else None}


def curves(records: Sequence[RunRecord]) -> dict[str, Any]:
    """Score and losses over rounds, with what they cost."""
    score = curve(records, f"{records[0].score_name}_mean")
    score |= client_band(records, score["round"]) | axes_of(records, score["round"])
    found = {"score": score}
    for name in ("test_loss", "train_loss"):
        line = curve(records, name)
        found[name] = line | axes_of(records, line["round"])
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def final_scores(record: RunRecord) -> list[float | None]:
    """Of the last evaluated round, one per client."""
    return list(record.evaluated[-1]["scores"]) if record.evaluated else []


def local_of(record: RunRecord, records: Sequence[RunRecord]) -> int | None:
    """The run among some that trains the same clients by local learning alone."""
    found = (
        number
        for number, other in enumerate(records)
        if other.is_local_only and other.evaluated and record.same_clients(other)
    )
    return next(found, None)


def against_local(
    records: Sequence[RunRecord], everybody: Sequence[RunRecord]
) -> dict[str, Any] | None:
    """What the clients of a method's runs gain over learning alone, as `Paired.to_dict` has it;
    None if no such run is known, or this is one."""
    pairs = [(record, local_of(record, everybody)) for record in records if record.evaluated]
    known = [(record, everybody[alone]) for record, alone in pairs if alone is not None]
    if not known or all(record.is_local_only for record, _ in known):
        return None
    return paired_runs(known).to_dict()


def paired_runs(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> Paired:
    """The scores of runs against those of others on the same clients, a pair per seed. Clients are
    the same ones in every seed where their data or their names are."""
    ours, theirs = (
        [[math.nan if s is None else s for s in final_scores(record)] for record in some]
        for some in zip(*pairs, strict=True)
    )
    names = {tuple(r.clients.client_names or ()) if r.clients else () for r, _ in pairs}
    same = len({record.federation_key for record, _ in pairs}) == 1
    same = same or (len(names) == 1 and names != {()})
    seeds = [record.seed or 0 for record, _ in pairs]
    first = pairs[0][0].clients
    known = first.client_names if first else None
    return paired_difference(ours, theirs, same_clients=same, seeds=seeds, names=known)


def figures(records: Sequence[RunRecord]) -> dict[str, Any]:
    """The row of a method in the comparison table: means over the seeds."""
    name = records[0].score_name
    last = [record.evaluated[-1] for record in records if record.evaluated]
    scores = [[s for s in final_scores(record) if s is not None] for record in records]

    def number(column: Column) -> float | None:
        if column.of == "last round":
            return _mean([row.get(column.field) for row in last])
        if column.name == "rounds":
            return _mean([record.rounds for record in records])
        if column.name == "seconds" and not any(record.seconds for record in records):
            return None
        spent = [
            epochs(record) if column.name == "epochs" else cumulative(record, column.field)
            for record in records
        ]
        return _mean([run[max(run)] for run in spent if run])

    return {
        "score": _mean([row.get(f"{name}_mean") for row in last]),
        "std": _mean([row.get(f"{name}_std") for row in last]),
        "worst": _mean([min(s) for s in scores if s]),
        **{column.name: number(column) for column in (*COLUMNS, *metric_columns(last))},
        "seeds": len(records),
        "status": ", ".join(sorted({record.status for record in records})),
    }
