"""Clients by clients and clients by classes, as heat maps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from scool.display.style import COLUMN, WEIGHTS, Picture, picture, styled

MOST_TICKS = 10
"""Names on an axis of clients."""


def largest_other(w: Tensor) -> float:
    """The largest weight to another client, 0 where there is none."""
    others = w.double().cpu().nan_to_num(0.0).clone().fill_diagonal_(0)
    return max(0.0, float(others.max()))


def draw_graph(
    axes: Any,
    w: Tensor,
    order: Sequence[int],
    title: str,
    by: str,
    ticks: int = MOST_TICKS,
    names: Sequence[str] | None = None,
) -> Any:
    """Who learns from whom; the scale ends at the largest weight to another client."""
    shown = w.double().cpu().nan_to_num(0.0).clamp(min=0).numpy()[np.ix_(order, order)]
    top = largest_other(w) or 1.0
    image = axes.imshow(shown, cmap=WEIGHTS, vmin=0, vmax=top, interpolation="nearest")
    axes.set_title(title)
    axes.set_xlabel("learns from client")
    axes.set_ylabel(f"client, by {by}")
    axes.grid(visible=False)
    name_clients(axes.set_xticks, order, ticks, names)
    name_clients(axes.set_yticks, order, ticks, names)
    if names and len(order) <= ticks:
        axes.tick_params(axis="x", labelrotation=90)
    return image


def draw_partition(
    axes: Any, counts: Tensor, order: Sequence[int], classes: Sequence[str], by: str
) -> Any:
    """How many samples of which class each client has."""
    shown = counts.cpu().numpy()[list(order)].T
    image = axes.imshow(shown, cmap=WEIGHTS, vmin=0, aspect="auto", interpolation="nearest")
    axes.set_xlabel(f"client, by {by}")
    axes.set_ylabel("class")
    axes.grid(visible=False)
    name_clients(axes.set_xticks, order)
    every = -(-len(classes) // 20)
    at = list(range(0, len(classes), every))
    axes.set_yticks(at, [_short(classes[c]) for c in at])
    return image


def draw_sizes(axes: Any, counts: Tensor, order: Sequence[int], by: str) -> None:
    """How many samples each client has, where there are no classes."""
    axes.bar(range(len(order)), counts.cpu().sum(dim=1).numpy()[list(order)], color="#2465a4")
    axes.set_xlabel(f"client, by {by}")
    axes.set_ylabel("samples")
    name_clients(axes.set_xticks, order)


def graph_picture(
    w: Tensor, order: Sequence[int], title: str, by: str, names: Sequence[str] | None = None
) -> Picture:
    """One graph with its scale."""
    with styled():
        figure, ((axes,),) = picture(width=COLUMN, height=2.9)
        image = draw_graph(axes, w, order, title, by, names=names)
        figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    return figure


def partition_picture(
    counts: Tensor, order: Sequence[int], classes: Sequence[str], by: str, title: str = ""
) -> Picture:
    """Who has what, with its scale; bars where there is one column only."""
    with styled():
        figure, ((axes,),) = picture(width=COLUMN, height=2.4)
        axes.set_title(plain(title))
        if counts.shape[1] == 1:
            draw_sizes(axes, counts, order, by)
        else:
            image = draw_partition(axes, counts, order, classes, by)
            whole = MaxNLocator(integer=True, nbins=6)
            figure.colorbar(image, ax=axes, label="samples", shrink=0.8, ticks=whole)
    return figure


def name_clients(
    set_ticks: Any, order: Sequence[int], most: int = MOST_TICKS, names: Sequence[str] | None = None
) -> None:
    """All names of few clients; else some of the numbers, where they tell about those in between,
    all or none."""
    if names and len(order) <= most:
        set_ticks(range(len(order)), [_short(names[client]) for client in order])
        return
    if len(order) > most and list(order) != sorted(order):
        set_ticks([])
        return
    every = -(-len(order) // most)
    at = list(range(0, len(order), every))
    set_ticks(at, [str(order[place]) for place in at])


def _short(name: str, length: int = 14) -> str:
    return plain(name if len(name) <= length else name[: length - 1] + "…")


def plain(text: str) -> str:
    r"""A name as matplotlib shall show it: a dollar sign starts no formula.

    >>> plain("a$b$")
    'a\\$b\\$'
    """
    return text.replace("$", r"\$")
