"""The places of clients in pictures: order in a heat map, positions in a network."""

import math
from collections.abc import Sequence

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from scool.display.order import by_label
from scool.display.records import RunRecord
from scool.evaluation.scores import communities
from scool.graph.mixing import normalise_rows


def learned_order(record: RunRecord, w: Tensor) -> tuple[list[int], list[int | None] | None]:
    """The order that shows the learned structure, and the block of each client where there is one.

    Blocks come from the prior where it has them. For other methods they are the communities of
    the graph, as many as there are true groups; without those, the order of a clustering tree.
    Clients in quarantine have no block and come last.
    """
    blocks = next((row["blocks"] for row in reversed(record.rows) if row.get("blocks")), None)
    if blocks is not None and len(blocks) == len(w):
        return _by_block(blocks), list(blocks)
    groups = record.clients.groups if record.clients else None
    if groups is not None and len(w) > 2:
        blocks = _communities(record, w, groups)
        return _by_block(blocks), blocks
    return _tree_order(w), None


def _by_block(blocks: Sequence[int | None]) -> list[int]:
    """Clients of the same block side by side, those without one last."""
    return by_label(torch.tensor([math.inf if b is None else float(b) for b in blocks]))


def _communities(record: RunRecord, w: Tensor, groups: Tensor) -> list[int | None]:
    """The community of each client, None for those in quarantine."""
    idle = (record.rows[-1].get("quarantined") or {}) if record.rows else {}
    active = [i for i in range(len(w)) if str(i) not in idle]
    if not active:
        return [None] * len(w)
    found = communities(w[active][:, active], int(groups[active].unique().numel()))
    which = dict(zip(active, found.tolist(), strict=True))
    return [which.get(i) for i in range(len(w))]


def _tree_order(w: Tensor) -> list[int]:
    """Leaves of an average-linkage tree over the mutual weights."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if len(w) < 3:
        return list(range(len(w)))
    near = _mutual(w).numpy()
    far = near.max() - near
    np.fill_diagonal(far, 0)
    return leaves_list(linkage(squareform(far, checks=False), method="average")).tolist()


def _mutual(w: Tensor) -> Tensor:
    """(K, K) mean of both directions, no client with itself."""
    rows = normalise_rows(w.double().nan_to_num(0.0).clamp(min=0))
    return ((rows + rows.T) / 2).fill_diagonal_(0)


def positions(w: Tensor) -> list[list[float]]:
    """(K, 2) places in [-1, 1], near for clients that learn from each other, equal every time."""
    mutual = _mutual(w)
    strong = torch.where(mutual >= _visible(mutual), mutual, 0.0)
    graph = nx.from_numpy_array(strong.numpy())
    # Without edges a spring layout is noise: a circle says "alone" more plainly.
    if not graph.number_of_edges():
        place = nx.circular_layout(graph)
    else:
        steps = 150 if len(w) <= 300 else 50  # more would take seconds
        distance = 2.2 / len(w) ** 0.5
        place = nx.spring_layout(graph, seed=0, k=distance, method="force", iterations=steps)
    points = np.array([place[client] for client in range(len(w))])
    points = points - points.mean(axis=0)
    points = points / max(float(np.abs(points).max()), 1e-9)
    return [[round(float(x), 3), round(float(y), 3)] for x, y in points]


def _visible(mutual: Tensor) -> float:
    """Edges below this are left out of the layout: a twentieth of the strongest."""
    return max(float(mutual.max()) / 20, 1e-12)
