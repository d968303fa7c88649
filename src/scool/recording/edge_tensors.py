"""Edges as tensors of a file: a matrix of few clients, as records always held it, else lists."""

from collections.abc import Mapping

import torch
from torch import Tensor

from scool.graph.edges import SMALL, Edges

LISTS = ("/i", "/j", "/values", "/fill")
PARTS = ("", *LISTS)  # what a name may be followed by


def to_tensors(graph: Edges) -> dict[str, Tensor]:
    """The tensors by what follows the name of the graph."""
    if len(graph) <= SMALL:
        return {"": graph.dense()}
    fill = torch.tensor(graph.fill, dtype=graph.dtype)
    parts = (graph.i.int(), graph.j.int(), graph.values, fill)
    return dict(zip(LISTS, parts, strict=True))


def from_tensors(tensors: Mapping[str, Tensor], clients: int, fill: float | bool) -> Edges:
    """The graph of so many clients; of a matrix the entries other than `fill` are listed.

    Raises:
        ValueError: it is none; says what was found.
    """
    if "" in tensors:
        matrix = tensors[""]
        if tuple(matrix.shape) != (clients, clients):
            raise ValueError(str(tuple(matrix.shape)))
        is_set = matrix.dtype == torch.bool
        return Edges.of(matrix, bool(matrix.all()) if is_set else fill)
    if any(name not in tensors for name in LISTS):
        raise ValueError("nothing")
    i, j, values, fill_ = (tensors[name] for name in LISTS)
    i, j = i.long(), j.long()
    keys = i * clients + j
    fits = i.shape == j.shape == values.shape[:1] and bool((keys[1:] > keys[:-1]).all())
    if not fits or (len(i) and not 0 <= int(torch.min(i.min(), j.min())) <= int(j.max()) < clients):
        raise ValueError("a list of pairs that is not sorted")
    return Edges(clients, i, j, values, fill_.item())
