"""Pictures of a comparison: accuracy over rounds, and the learned graphs beside the true one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scool.drawing.style import line_style, picture
from scool.experiment.result import Result
from scool.recording.atomic import write_bytes


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
    """Heat maps of the weights of the last round, clients ordered by their true group."""
    federation = next(iter(results.values())).federation
    order = _order(federation.groups, federation.num_clients)
    panels: list[tuple[str, Tensor]] = []
    if federation.truth is not None:
        panels.append(("true graph", federation.truth.cpu()))
    for method, result in results.items():
        if result.graph is not None and method != "truth":
            panels.append((method, result.graph))
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = picture(rows, columns, width=2.6 * columns, height=2.8 * rows)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (name, w) in zip(grid.flat, panels, strict=False):
        w = w.double()[order][:, order].clamp(min=0)
        top = float(w.max()) or 1.0
        axes.imshow((w / top).numpy(), cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("learns from client", fontsize=7)
        axes.set_ylabel("client", fontsize=7)
        axes.tick_params(labelsize=6)
    words = "clients ordered by true group" if federation.groups is not None else "clients by id"
    figure.suptitle(
        f"who learns from whom: mixing weights of the last round, {words}; bright is strong "
        "(each panel scaled to its largest weight)",
        fontsize=8,
    )
    write_bytes(path, figure.render("png", dpi=150))


def _order(groups: Tensor | None, num_clients: int) -> Tensor:
    return torch.arange(num_clients) if groups is None else torch.argsort(groups, stable=True)
