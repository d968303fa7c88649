"""Pictures of a comparison: accuracy over rounds, and the learned graphs beside the true one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.style
import numpy as np

from scool.display.graphs import Panel, draw_panels
from scool.display.order import shown_order
from scool.display.style import WIDE, line_style, picture
from scool.recording.disk import write_bytes
from scool.run.result import Result


@matplotlib.style.context("default")  # nothing from a matplotlibrc, see `styled`
def accuracy_figure(results: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Mean test score of all clients over rounds, a line a method, a band over seeds."""
    is_class = next(iter(results.values()))[0].federation.task == "classification"
    key = "accuracy_mean" if is_class else "r2_mean"
    figure, ((axes,),) = picture(width=6.4, height=3.8)
    for number, (method, runs) in enumerate(results.items()):
        rows = [[row for row in run.history if row.get(key) is not None] for run in runs]
        rounds = [row["round"] + 1 for row in rows[0]]
        curves = np.array([[row[key] for row in run] for run in rows])
        style = line_style(number)
        marker = "o" if len(rounds) == 1 else None
        axes.plot(rounds, curves.mean(axis=0), label=method, marker=marker, **style)
        if len(runs) > 1:
            low, high = curves.min(axis=0), curves.max(axis=0)
            axes.fill_between(rounds, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy, mean over clients (%)" if is_class else "test $R^2$")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    write_bytes(path, figure.render("png", dpi=150))


def graphs_figure(results: Mapping[str, Result], path: Path) -> None:
    """Heat maps of the weights of the last round, clients by their true group or their classes."""
    federation = next(iter(results.values())).federation
    order, by = shown_order(federation.groups, federation.classes, federation.num_clients)
    panels: list[Panel] = []
    if federation.truth is not None:
        panels.append(Panel("true graph", federation.truth.cpu(), order, by))
    for method, result in results.items():
        if result.graph is not None and method != "truth":
            panels.append(Panel(method, result.graph, order, by))
    title = "who learns from whom: mixing weights of the last round"
    write_bytes(path, draw_panels(panels, WIDE, title).render("png", dpi=200))
