"""Pictures of a comparison: accuracy over rounds, and the learned graphs beside the true one."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scool.experiment.result import Result
from scool.recording.atomic import write_bytes

# Okabe and Ito's palette: told apart by colour-blind readers; line styles serve readers in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STYLES = ("-", "--", "-.", ":")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    write_bytes(path, picture.getvalue())


def accuracy_figure(results: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Mean test score of all clients over rounds, a line a method, a band over seeds."""
    plt = _pyplot()
    is_class = next(iter(results.values()))[0].federation.task == "classification"
    key = "accuracy_mean" if is_class else "r2_mean"
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for number, (method, runs) in enumerate(results.items()):
        rows = [[row for row in run.history if row.get(key) is not None] for run in runs]
        rounds = [row["round"] + 1 for row in rows[0]]
        curves = np.array([[row[key] for row in run] for run in rows])
        style = {"color": COLOURS[number % 8], "linestyle": STYLES[number // 2 % 4]}
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
    _save(figure, path)
    plt.close(figure)


def graphs_figure(results: Mapping[str, Result], path: Path) -> None:
    """Heat maps of the weights of the last round, clients ordered by their true group."""
    plt = _pyplot()
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
    figure, grid = plt.subplots(
        rows, columns, figsize=(2.6 * columns, 2.8 * rows), layout="constrained", squeeze=False
    )
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
    _save(figure, path)
    plt.close(figure)


def _order(groups: Tensor | None, num_clients: int) -> Tensor:
    return torch.arange(num_clients) if groups is None else torch.argsort(groups, stable=True)
