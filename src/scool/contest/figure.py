"""One figure of a contest: what each owner gains over learning alone, method by method."""

import math
from collections.abc import Sequence
from typing import Any

from scool.contest.numbers import Row
from scool.contest.plan import Setting, Study
from scool.display.style import COLOURS, WIDE, Picture, picture, styled

COLUMNS = 3
"""Panels beside each other."""


def gains_figure(study: Study, rows: Sequence[Row], overall: Sequence[Row]) -> Picture:
    """A panel for each federation, a line for each method by mean rank. A dot is an owner, red
    where it is worse off beyond its own noise; a bar is the mean with its 95 % interval over the
    seeds. What lies outside the panel stands at its edge."""
    shown = [r for r in rows if r["gain"] is not None]
    settings = [s for s in study.settings if any(r["setting"] == s.name for r in shown)]
    titles = {
        r["method"]: r["title"] for r in overall if any(r["method"] == s["method"] for s in shown)
    }
    places = {method: -number for number, method in enumerate(titles)}
    across = min(COLUMNS, max(1, len(settings)))
    down = max(1, math.ceil(len(settings) / across))
    with styled():
        height = down * (0.5 + 0.16 * len(titles))
        figure, grid = picture(down, across, width=WIDE, height=height)
        panels = [axes for line in grid for axes in line]
        for number, (axes, setting) in enumerate(zip(panels, settings, strict=False)):
            _panel(axes, setting, [r for r in shown if r["setting"] == setting.name], places)
            axes.set_yticks([*places.values()], [*titles.values()])
            axes.set_ylim(min(places.values()) - 0.7, 0.7)
            axes.tick_params(axis="y", length=0, labelleft=number % across == 0)
        for axes in panels[len(settings) :]:
            axes.set_axis_off()
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
    axes.locator_params(axis="x", nbins=4)
    axes.grid(False, axis="y")


UNITS = {"accuracy": "points", "r2": "$R^2$", "auc": "AUC", "rmse": "error"}


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The whiskers of a box plot, one and a half times the middle half beyond it, and zero."""
    ordered = sorted(values) or [0.0]
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.25, 0.75))
    room = 1.5 * (high - low)
    low = min(0.0, next(value for value in ordered if value >= low - room))
    high = max(0.0, next(value for value in reversed(ordered) if value <= high + room))
    return (low, high) if low < high else (-1.0, 1.0)
