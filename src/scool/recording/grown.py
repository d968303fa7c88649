"""Records of rounds before a run had all its clients, as if they had been there, and absent."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional

from scool.graph.edges import Edges, Matrix

PER_CLIENT = ("scores", "blocks")
TABLES = ("metrics", "tracks", "held_out")
"""What the row of a round has of each client: lists, and lists by name."""


def widened(graph: Matrix, clients: int) -> Matrix:
    """The weights of a round with so many clients: nobody learns from those beyond its own."""
    if clients <= len(graph):
        return graph
    if isinstance(graph, Edges):
        return Edges(clients, graph.i, graph.j, graph.values, graph.fill)
    found = graph.new_zeros(clients, clients)
    found[: len(graph), : len(graph)] = graph
    return found


def widened_table(table: Tensor, clients: int) -> Tensor:
    """Numbers (K, M) of clients with rows of 0 for those beyond its own."""
    return functional.pad(table, (0, 0, 0, max(0, clients - len(table))))


def widened_row(row: dict[str, Any], clients: int) -> dict[str, Any]:
    """The row of a round with so many clients: nothing is known of those beyond its own.

    >>> widened_row({"round": 0, "scores": [1.0], "blocks": [2]}, 2)
    {'round': 0, 'scores': [1.0, None], 'blocks': [2, None], 'absent': [1]}
    """
    tables: list[Mapping[str, Any]] = [row[name] for name in TABLES if _is_table(row.get(name))]
    lists = [row[name] for name in PER_CLIENT if isinstance(row.get(name), list)]
    lists += [values for table in tables for values in table.values()]
    count = len(lists[0]) if lists else clients
    if count >= clients:
        return row
    more = [None] * (clients - count)
    found = {name: _longer(value, more) if _has(name) else value for name, value in row.items()}
    absent = row.get("absent", [])
    late = list(range(count, clients))
    return found | {"absent": absent + (late if isinstance(absent, list) else len(late))}


def _has(name: str) -> bool:
    return name in PER_CLIENT or name in TABLES


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(v, list) for v in value.values())


def _longer(value: Any, more: list[None]) -> Any:
    if isinstance(value, list):
        return [*value, *more]
    is_table = _is_table(value)
    return {name: [*values, *more] for name, values in value.items()} if is_table else value
