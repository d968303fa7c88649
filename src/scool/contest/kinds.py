"""What a method with several kinds of cooperation chose for each owner, and what came of it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scool.contest.numbers import Row
from scool.contest.plan import ALONE, Entry, Setting, Study
from scool.contest.running import Line, Lines

OWN = "alone"
"""The kind of cooperation that is none."""
FEWEST = 10
"""Owners, for a rank correlation to be told."""


def kinds_of(study: Study, lines: Lines, rows: Sequence[Row]) -> list[Row]:
    """One row for each such method in each setting; `rows` are those of `rows_of`."""
    found: list[Row] = []
    for setting in study.settings:
        own = {row["method"]: row for row in rows if row["setting"] == setting.name}
        for entry in study.entries:
            runs = [run for run in lines.tested(setting, entry) if run.get("tracks")]
            if runs and not entry.control and own[entry.name]["gain"] is not None:
                found.append(_row(setting, entry, runs, own))
    return found


def _row(setting: Setting, entry: Entry, runs: Sequence[Line], rows: Mapping[str, Row]) -> Row:
    weights = [run["tracks"] for run in runs]
    gains: list[float | None] = rows[entry.name]["owner_gains"]
    chosen = {
        kind: [_mean([run[kind][i] for run in weights]) for i in range(len(gains))]
        for kind in weights[0]
    }
    alone = [share is not None and share > 0.5 for share in chosen.get(OWN, [None] * len(gains))]
    foreseen = _foreseen(runs, len(gains))
    other = _best_other(entry, rows)
    return {
        "setting": setting.name,
        "title": setting.title,
        "method": entry.name,
        "digits": setting.digits,
        "weights": {kind: _mean(values) for kind, values in chosen.items()},
        "owners": len(gains),
        "alone": sum(alone),
        "gain_alone": _mean(_where(gains, alone, True)),
        "gain_others": _mean(_where(gains, alone, False)),
        "rival": other["title"] if other else None,
        "rival_alone": _mean(_where(other["owner_gains"], alone, True)) if other else None,
        "rival_others": _mean(_where(other["owner_gains"], alone, False)) if other else None,
        "rank_correlation": _rank_correlation(foreseen, gains),
        "each": [
            {
                "owner": name,
                "weights": {kind: values[i] for kind, values in chosen.items()},
                "foreseen": foreseen[i],
                "gain": gains[i],
            }
            for i, name in enumerate(runs[0].get("owners") or range(len(gains)))
        ],
    }


def _foreseen(runs: Sequence[Line], owners: int) -> list[float | None]:
    """Per owner, what the held-out samples say: the mean of the kinds by their weights, less that
    of learning alone; mean over the seeds."""
    found: list[list[float]] = [[] for _ in range(owners)]
    for run in runs:
        scores, weights = run.get("held_out") or {}, run["tracks"]
        for i in range(owners):
            own = {kind: values[i] for kind, values in scores.items()}
            if OWN in own and None not in own.values():
                mean = sum(weights[kind][i] * score for kind, score in own.items())
                found[i].append(mean - own[OWN])
    return [_mean(values) for values in found]


def _best_other(entry: Entry, rows: Mapping[str, Row]) -> Row | None:
    """The rival with the best mean that is neither this method nor learning alone."""
    rivals = [
        row
        for name, row in rows.items()
        if name not in (entry.name, ALONE) and row["rank"] is not None and row["gain"] is not None
    ]
    return min(rivals, key=lambda row: row["rank"], default=None)


def _where(
    values: Sequence[float | None], mask: Sequence[bool], wanted: bool
) -> list[float | None]:
    return [value for value, is_in in zip(values, mask, strict=True) if is_in == wanted]


def _rank_correlation(a: Sequence[float | None], b: Sequence[float | None]) -> float | None:
    """Spearman's, over the owners that have both; None where they are few or do not vary."""
    from scipy.stats import spearmanr

    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if len(pairs) < FEWEST or any(len({pair[side] for pair in pairs}) < 2 for side in (0, 1)):
        return None
    found: Any = spearmanr([x for x, _ in pairs], [y for _, y in pairs])
    return float(found.statistic) if math.isfinite(found.statistic) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
