"""One figure of a contest: what each owner gains over learning alone, method by method."""

import math
from collections.abc import Sequence
from typing import Any

from scool.contest.numbers import Row
from scool.contest.plan import Setting, Study
from scool.display.style import COLOURS, WIDE, Picture, picture, styled

SEEN = 0.95
"""The share of the owners of the middle that a panel has room for."""


def gains_figure(study: Study, rows: Sequence[Row], overall: Sequence[Row]) -> Picture:
    """A panel for each federation, a line for each method by mean rank. A dot is an owner, red
    where it is worse off beyond its own noise; a bar is the mean with its 95 % interval over the
    seeds. What lies outside the panel stands at its edge."""
    places = {row["method"]: -number for number, row in enumerate(overall)}
    titles = {row["method"]: row["title"] for row in overall}
    shown = [r for r in rows if r["gain"] is not None]
    settings = [s for s in study.settings if any(r["setting"] == s.name for r in shown)]
    methods = [m for m in places if any(r["method"] == m for r in shown)]
    with styled():
        height = 0.5 + 0.16 * len(methods)
        figure, grid = picture(1, max(1, len(settings)), width=WIDE, height=height)
        for number, (axes, setting) in enumerate(zip(grid[0], settings, strict=False)):
            _panel(axes, setting, [r for r in shown if r["setting"] == setting.name], places)
            axes.set_yticks([places[m] for m in methods], [titles[m] for m in methods])
            axes.set_ylim(min(places.values()) - 0.7, max(places[m] for m in methods) + 0.7)
            axes.tick_params(axis="y", length=0, labelleft=number == 0)
    return figure


def _panel(axes: Any, setting: Setting, rows: Sequence[Row], places: dict[str, int]) -> None:
    low, high = _ends([g for row in rows for g in row["owner_gains"] if g is not None])
    for row in rows:
        y, worse = places[row["method"]], set(row["owners_clearly_worse"] or ())
        for is_worse in (False, True):
            own = [
                min(max(gain, low), high)
                for owner, gain in enumerate(row["owner_gains"])
                if gain is not None and (owner in worse) == is_worse
            ]
            colour = COLOURS[1 if is_worse else 7]
            axes.plot(own, [y] * len(own), "o", color=colour, ms=2, alpha=0.5, mew=0)
        mean = min(max(row["gain"], low), high)
        if row["gain_low"] is not None:
            ends = [min(max(row[name], low), high) for name in ("gain_low", "gain_high")]
            axes.plot(ends, [y, y], "-", color=COLOURS[0], lw=1.2)
        axes.plot([mean], [y], "|", color=COLOURS[0], ms=7, mew=1.4)
    axes.axvline(0, color="black", linewidth=0.6)
    room = 0.04 * (high - low)
    axes.set_xlim(low - room, high + room)
    axes.set_title(f"{setting.title} ({UNITS.get(setting.metric, setting.metric)})")
    axes.grid(False, axis="y")


UNITS = {"accuracy": "points", "r2": "$R^2$", "auc": "AUC", "rmse": "error"}


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """What the middle of the values needs, and zero."""
    ordered = sorted(values) or [0.0]
    cut = math.floor((1 - SEEN) / 2 * len(ordered))
    low, high = min(0.0, ordered[cut]), max(0.0, ordered[-1 - cut])
    return (low, high) if low < high else (-1.0, 1.0)
