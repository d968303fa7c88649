"""The step that all methods which exchange updates share."""

from torch import Tensor

from scool.contracts import Engine
from scool.graph.edges import Edges, Matrix
from scool.types import Tree


def mix_updates(engine: Engine, weights: Matrix, theta: Tree, half: Tree) -> Tree:
    r"""$\theta_i^{t+1} = \theta_i^t + \sum_j \hat w_{ij} (\theta_j^{t+1/2} - \theta_j^t)$.

    A client whose row is the unit vector keeps its own result to the bit, so that a graph without
    edges is local SGD exactly and not up to rounding.
    """
    mixed = engine.mix(weights, {n: half[n] - theta[n] for n in theta}, overwrite=True)
    graph = Edges.of(weights).nonzero_pairs()
    alone = (graph.loop_values() == 1) & (graph.degrees == 1)
    rows = alone[engine.owned.to(alone.device)].nonzero()[:, 0]
    for n, update in mixed.items():  # in place: the stack of all models is large
        update.add_(theta[n])
        own = rows.to(update.device)
        update[own] = half[n][own]
    return mixed


def per_client(value: Tensor, like: Tensor) -> Tensor:
    """(n,) numbers, one a client, shaped to multiply a stacked tensor (n, ...)."""
    return value.to(like).view(-1, *[1] * (like.dim() - 1))
