"""The step that all methods which exchange updates share."""

import torch
from torch import Tensor

from scool.contracts import Engine
from scool.graph.edges import Edges, Matrix
from scool.models.norms import is_statistic
from scool.types import Tree


def mix_updates(engine: Engine, weights: Matrix, theta: Tree, half: Tree) -> Tree:
    r"""$\theta_i^{t+1} = \theta_i^t + \sum_j \hat w_{ij} (\theta_j^{t+1/2} - \theta_j^t)$.

    Running statistics are not moved by gradients: they are averaged like models. A client whose row
    is the unit vector keeps its own result to the bit, so that a graph without edges is local SGD
    exactly and not up to rounding.
    """
    sent = {n: half[n].clone() if is_statistic(n) else half[n] - theta[n] for n in theta}
    mixed = engine.mix(weights, sent, overwrite=True)
    graph = Edges.of(weights).nonzero_pairs()
    total = graph.row_sums()[engine.owned.cpu()]
    alone = (graph.loop_values() == 1) & (graph.degrees == 1)
    rows = alone[engine.owned.to(alone.device)].nonzero()[:, 0]
    for n, update in mixed.items():  # in place: the stack of all models is large
        if is_statistic(n):
            share = per_client(total, update)
            update.copy_(torch.where(share > 0, update / share, theta[n]))
        else:
            update.add_(theta[n])
        own = rows.to(update.device)
        update[own] = half[n][own]
    return mixed


def mix_and_move(engine: Engine, weights: Matrix, theta: Tree, half: Tree) -> Tree:
    r"""$\theta_i^{t+1} = \sum_j w_{ij} \theta_j^t + \theta_i^{t+1/2} - \theta_i^t$; of running
    statistics the average of those after local learning."""
    sent = {n: half[n] if is_statistic(n) else t for n, t in theta.items()}
    mixed = engine.mix(weights, sent)
    for n, t in theta.items():
        if not is_statistic(n):
            mixed[n] = mixed[n] + half[n] - t
    return mixed


def per_client(value: Tensor, like: Tensor) -> Tensor:
    """(n,) numbers, one a client, shaped to multiply a stacked tensor (n, ...)."""
    return value.to(like).view(-1, *[1] * (like.dim() - 1))
