"""Graphs, blocks and partitions for papers, each with the numbers it shows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scool.display.curves import Plot, Row
from scool.display.differences import group_runs
from scool.display.layout import learned_order
from scool.display.matrices import (
    draw_graph,
    largest_other,
    name_clients,
    partition_picture,
    plain,
)
from scool.display.order import known_order, shown_order
from scool.display.records import RunRecord
from scool.display.style import Picture, picture, styled
from scool.errors import RunError

PANELS = 40
"""Most heat maps in a figure."""


def first_runs(records: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """One run per method: its first seed."""
    return {label: records[runs[0]] for label, runs in group_runs(records).items()}


def client_order(record: RunRecord, w: Tensor) -> tuple[list[int], str]:
    """By true group where it is known, else by common classes, else by what was learned."""
    clients = record.clients
    if clients is not None and (known := known_order(clients.groups, clients.held)):
        return known
    order, blocks = learned_order(record, w)
    return order, "likeness" if blocks is None else "learned block"


class Panel(NamedTuple):
    """One heat map."""

    label: str
    w: Tensor
    order: list[int]
    by: str


def plot_graph(records: Sequence[RunRecord], width: float) -> Plot:
    """The weights of the last round of each method beside the true graph."""
    panels: list[Panel] = []
    rows: list[Row] = []
    for label, record in first_runs(records).items():
        found = record.last_graph()
        if found is None:
            continue
        round, w = found
        truth = record.clients.truth if record.clients else None
        order, by = client_order(record, w)
        if truth is not None and not panels:
            panels.append(Panel("true graph", truth, order, by))
            rows += strongest_edges("true graph", None, None, truth)
        panels.append(Panel(label, w, order, by))
        rows += strongest_edges(label, record.seed, round + 1, w)
    if not panels:
        raise RunError("this plot is not possible: no graph is recorded in these runs")
    if len(panels) > PANELS:
        raise RunError(
            f"this plot is not possible: {len(panels)} graphs are too many for a figure. Give "
            f"at most {PANELS - 1} methods"
        )
    return Plot(draw_panels(panels, width), rows)


def draw_panels(panels: Sequence[Panel], width: float, title: str = "") -> Picture:
    """Heat maps that share one scale, each divided by its own largest weight."""
    columns = min(len(panels), 2 if width < 5 else 4)
    lines = -(-len(panels) // columns)
    with styled():
        height = (width / columns + 0.55) * lines + 0.75 + (0.4 if title else 0)
        figure, grid = picture(lines, columns, width=width, height=height)
        if title:
            figure.suptitle(plain(title), fontsize="medium")
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        image: Any = None
        for place, (label, w, order, by) in enumerate(panels):
            axes = grid.flat[place]
            top = largest_other(w)
            words = f"{plain(label)}\n({f'largest {top:.2g}' if top else 'nobody else'})"
            image = draw_graph(axes, w / (top or 1.0), order, words, by, ticks=5)
            if place % columns:
                axes.set_ylabel("")
            if place + columns < len(panels):
                axes.set_xlabel("")
        words = "weight, as a part of the largest to another client"
        bar = {"location": "bottom", "shrink": 0.6, "aspect": 40, "label": words}
        figure.colorbar(image, ax=grid, **bar)
    return figure


def strongest_edges(label: str, seed: int | None, round: int | None, w: Tensor) -> list[Row]:
    return [
        {"method": label, "seed": seed, "round": round, "client": i, "from": j, "weight": value}
        for (i, j), value in zip(w.nonzero().tolist(), w[w != 0].tolist(), strict=True)
    ]


def plot_partition(records: Sequence[RunRecord], width: float) -> Plot:
    """How many training samples of which class each client has."""
    record = next((r for r in records if r.clients is not None), None)
    if record is None or record.clients is None:
        raise RunError(
            "this plot is not possible: these runs have no clients.safetensors that can be read "
            "(older versions wrote none); `scool resume RUN` adds it"
        )
    clients = record.clients
    counts = clients.counts["train"]
    classes = clients.class_names or [str(c) for c in range(counts.shape[1])]
    order, by = shown_order(clients.groups, clients.held, clients.num_clients)
    figure = partition_picture(counts, order, classes, by)
    figure.set_size_inches(width, 0.72 * width)
    names = clients.client_names or [""] * clients.num_clients
    rows: list[Row] = [
        {"client": i, "name": names[i], "class": classes[c], "samples": int(counts[i, c])}
        for i in range(clients.num_clients)
        for c in range(counts.shape[1])
    ]
    return Plot(figure, rows)


def plot_blocks(records: Sequence[RunRecord], width: float) -> Plot:
    """The block of each client over rounds, one panel per method with blocks; clients in quarantine
    are left blank."""
    panels: list[tuple[str, RunRecord, list[int], np.ndarray]] = []
    rows: list[Row] = []
    for label, record in first_runs(records).items():
        with_blocks = [row for row in record.rows if row.get("blocks")]
        if not with_blocks:
            continue
        rounds = [row["round"] + 1 for row in with_blocks]
        blocks = np.array([row["blocks"] for row in with_blocks], dtype=float)  # None is NaN
        panels.append((label, record, rounds, blocks))
        about = {"method": label, "seed": record.seed}
        rows += [
            about | {"round": row["round"] + 1, "client": i, "block": block}
            for row in with_blocks
            for i, block in enumerate(row["blocks"])
        ]
    if not panels:
        raise RunError("this plot is not possible: no run has blocks. Give one with SBM or MMSBM")
    most = 1 + max(int(np.nanmax(blocks)) for *_, blocks in panels)
    with styled():
        figure, grid = picture(len(panels), 1, width=width, height=0.62 * width * len(panels))
        for axes, (label, record, rounds, blocks) in zip(grid.flat, panels, strict=True):
            order, by = client_order(record, torch.eye(blocks.shape[1]))
            image = _draw_blocks(axes, rounds, blocks, order, most)
            axes.set(title=plain(label), xlabel="round", ylabel=f"client, by {by}")
            ticks = list(range(0, most, -(-most // 10)))
            figure.colorbar(image, ax=axes, label="block", ticks=ticks)
    return Plot(figure, rows)


def _draw_blocks(
    axes: Any, rounds: Sequence[int], blocks: np.ndarray, order: Sequence[int], most: int
) -> Any:
    """Rounds by clients; blocks differ in lightness, so that they can be printed in grey."""
    from matplotlib import colormaps

    axes.grid(visible=False)
    name_clients(axes.set_yticks, order)
    return axes.imshow(
        blocks.T[list(order)],
        cmap=colormaps["cividis"].resampled(most),
        vmin=-0.5,
        vmax=most - 0.5,
        aspect="auto",
        interpolation="nearest",
        extent=(rounds[0] - 0.5, rounds[-1] + 0.5, len(order) - 0.5, -0.5),
    )
