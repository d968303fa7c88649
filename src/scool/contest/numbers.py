"""From the runs of a contest to its numbers: per method and federation, and per method."""

import math
from collections.abc import Sequence
from statistics import stdev
from typing import Any

import torch
from torch import Tensor

from scool.contest.plan import ALONE, Entry, Setting, Study
from scool.contest.running import Line, Lines
from scool.evaluation.paired import ROUND_OFF, paired_difference

Row = dict[str, Any]
WORST = 0.1
"""The share of the clients whose mean is told as the worst."""


def rows_of(study: Study, lines: Lines) -> list[Row]:
    """One row for each method in each setting that has a finished run."""
    rows: list[Row] = []
    for setting in study.settings:
        alone = next((e for e in study.entries if e.name == ALONE), None)
        theirs = _by_seed(setting, lines.tested(setting, alone)) if alone else {}
        own = [_row(setting, entry, lines, theirs) for entry in study.entries]
        found = [row for row in own if row is not None]
        _rank(found, setting.sign)
        rows += found
    return rows


def _by_seed(setting: Setting, runs: Sequence[Line]) -> dict[int, Tensor]:
    """(K,) scores of each seed that did not diverge, with a sign such that more is better."""
    return {
        run["seed"]: setting.sign
        * torch.tensor([math.nan if s is None else s for s in run["scores"]])
        for run in runs
        if run.get("scores") and run["score"] is not None
    }


def _row(setting: Setting, entry: Entry, lines: Lines, theirs: dict[int, Tensor]) -> Row | None:
    tuned = lines.tuned(setting, entry)
    if tuned is None:
        return None
    best, runs = lines.chosen(setting, entry), lines.tested(setting, entry)
    if best is not None and not runs:
        return None
    ours, sign = _by_seed(setting, runs), setting.sign
    means = [sign * float(scores.nanmean()) for scores in ours.values()]
    lost = sum(run["score"] is None for run in runs)
    problems = [f"diverged with {lost} of {len(runs)} seeds"] if lost else []
    if some := sum(bool(run["problem"]) and run["score"] is not None for run in runs):
        problems.append(f"some clients diverged with {some} of {len(runs)} seeds")
    return {
        "setting": setting.name,
        "method": entry.name,
        "title": entry.title,
        "control": entry.control,
        "metric": setting.metric,
        "seeds": sorted(ours),
        "clients": len(next(iter(ours.values()))) if ours else None,
        "mean": _mean(means),
        "std_seeds": stdev(means) if len(means) > 1 else None,
        "std_clients": _mean([float(s[~s.isnan()].std()) for s in ours.values()]),
        "best": _mean([run["best"] for run in runs if run.get("best") is not None]),
        "masked": _mean([run["masked"] for run in runs if run.get("masked") is not None]),
        "published": setting.published.get(entry.name),
        "worst_tenth": _mean([sign * _worst(scores) for scores in ours.values()]),
        **_beside(setting, entry, ours, theirs, _split_ratio(runs), _names(runs)),
        "rank": None,
        "bytes": _mean([run["bytes"] for run in runs if "bytes" in run]),
        "epochs": _mean([run["epochs"] for run in runs if run.get("epochs") is not None]),
        "seconds": _mean([run["seconds"] for run in runs if "seconds" in run]),
        "options": best,
        "candidates": len(tuned),
        "validation": _validation(tuned, sign),
        "problem": "; ".join(problems) if best is not None else "every candidate diverged",
    }


def _worst(scores: Tensor) -> float:
    """The mean of the worst tenth of the clients, at least one."""
    there = scores[~scores.isnan()].sort().values
    return float(there[: math.ceil(WORST * len(there))].mean())


def _beside(
    setting: Setting,
    entry: Entry,
    ours: dict[int, Tensor],
    theirs: dict[int, Tensor],
    split_ratio: float,
    names: Sequence[str] | None,
) -> Row:
    """What it gains over learning alone, for all and client by client."""
    seeds = [seed for seed in sorted(ours) if seed in theirs]
    nothing: Row = dict.fromkeys(BESIDE)
    if not seeds or entry.name == ALONE:
        return nothing
    widest = max(len(found[seed]) for found in (ours, theirs) for seed in seeds)
    a, b = (torch.full((len(seeds), widest), math.nan, dtype=torch.float64) for _ in range(2))
    for row, seed in enumerate(seeds):
        a[row, : len(ours[seed])], b[row, : len(theirs[seed])] = ours[seed], theirs[seed]
    found = paired_difference(
        a,
        b,
        same_clients=setting.same_clients,
        seeds=seeds,
        names=names,
        split_ratio=split_ratio,
    )
    ends, others = found.over_seeds, found.over_clients
    can_tell = setting.same_clients and len(seeds) > 1 and found.compared > 0
    better = [own is not None and own.low > ROUND_OFF for own in found.own_noise]
    return {
        "gain": found.mean,
        "gain_low": ends.low if ends else None,
        "gain_high": ends.high if ends else None,
        "gain_clients_low": others.low if others else None,
        "gain_clients_high": others.high if others else None,
        "worse": found.share_worse if found.compared else None,
        "clearly_worse": len(found.clearly_worse) / found.compared if can_tell else None,
        "clearly_better": sum(better) / found.compared if can_tell else None,
        "owner_gains": [_rounded(gain) for gain in found.by_client.tolist()],
        "owners_worse": found.names_worse if names else None,
        "owners_clearly_worse": found.clearly_worse if can_tell else None,
    }


BESIDE = (
    *("gain", "gain_low", "gain_high", "gain_clients_low", "gain_clients_high"),
    *("worse", "clearly_worse", "clearly_better"),
    *("owner_gains", "owners_worse", "owners_clearly_worse"),
)


def _rounded(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None


def _split_ratio(runs: Sequence[Line]) -> float:
    """Test samples over training samples."""
    return _mean([run["split_ratio"] for run in runs if "split_ratio" in run]) or 0.0


def _names(runs: Sequence[Line]) -> Sequence[str] | None:
    """The owners, where a run says who they are."""
    return next((run["owners"] for run in runs if run.get("owners")), None)


def _validation(tuned: Sequence[Any], sign: int) -> float | None:
    """What the chosen candidate had in stage one."""
    means = [
        sum(line["score"] for line in runs) / len(runs)
        for _, runs in tuned
        if all(line["score"] is not None and not line["problem"] for line in runs)
    ]
    return max(means, key=lambda value: sign * value, default=None)


def _rank(rows: list[Row], sign: int) -> None:
    """1 is the best; equal means share their places; who has none comes last. Controls have no
    rank."""
    rivals = [row for row in rows if not row["control"]]
    values = [-math.inf if row["mean"] is None else sign * row["mean"] for row in rivals]
    for row, value in zip(rivals, values, strict=True):
        better, equal = sum(v > value for v in values), values.count(value)
        row["rank"] = better + (equal + 1) / 2


def overall_of(study: Study, rows: Sequence[Row]) -> list[Row]:
    """One row for each method: means over the settings that it has a row in."""
    found: list[Row] = []
    most = len({row["setting"] for row in rows})
    for entry in study.entries:
        mine = [row for row in rows if row["method"] == entry.name]
        if not mine:
            continue
        found.append(
            {
                "method": entry.name,
                "title": entry.title,
                "control": entry.control,
                "settings": len(mine),
                "of": most,
                "rank": _mean([row["rank"] for row in mine if row["rank"] is not None]),
                "first": sum(row["rank"] is not None and row["rank"] < 1.5 for row in mine),
                "below_alone": sum(
                    row["gain_high"] is not None and row["gain_high"] < 0 for row in mine
                ),
                **{
                    name: _mean([row[name] for row in mine if row[name] is not None])
                    for name in _MEANS
                },
                "most_worse": max(
                    (row["clearly_worse"] for row in mine if row["clearly_worse"] is not None),
                    default=None,
                ),
                "epochs": _mean([row["epochs"] for row in mine if row["epochs"] is not None]),
            }
        )
    return sorted(found, key=lambda row: (bool(row["control"]), row["rank"] or math.inf))


_MEANS = ("worse", "clearly_worse")


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
