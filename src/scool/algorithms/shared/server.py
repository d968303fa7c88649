"""What a server does with the models of those who took part in a round."""

import torch
from torch import Tensor

from scool.algorithms.shared.participation import shares
from scool.contracts import Engine
from scool.types import Tree


def server_average(
    engine: Engine, chosen: Tensor, trained: Tree, before: Tree
) -> tuple[Tree, Tensor]:
    r"""$x = \sum_{i \in A} \frac{n_i}{\sum_A n} \theta_i$ for everyone, and those weights (K, K).

    Where all of A are in quarantine nothing is sent: `before` as it is, and the unit matrix.

    Args:
        chosen: (K,) bool, the participants A.
        trained: the tensors that are averaged.
        before: what stays where there is nobody to average.
    """
    share = shares(engine, chosen)
    if share is None:
        return before, torch.eye(engine.num_clients, dtype=torch.float64)
    graph = share.expand(engine.num_clients, -1)
    return engine.mix(graph, trained, via="server"), graph
