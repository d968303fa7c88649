"""Plain SGD of one client alone, and what a server makes of it, written out."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from scool.data.federation import Federation
from scool.learning.local_sgd import LocalSGD, plan_batches
from scool.learning.losses import LOSSES
from scool.types import Params, Tree
from toys import own_data


def local_steps(
    federation: Federation,
    module: nn.Module,
    theta: Params,
    client: int,
    sgd: LocalSGD,
    round: int,
    *,
    anchor: Params | None = None,
    strength: float = 0.0,
    only: Collection[str] | None = None,
    push: Params | None = None,
    seed: int = 3,
) -> Params:
    """theta after the local steps of a round, with a pull, a push and a choice of tensors."""
    ids = torch.arange(federation.num_clients)
    plan = plan_batches(sgd, federation.train.mask, ids, round, seed)
    x, y = own_data(federation, client, torch.float64)
    theta = {name: value.clone() for name, value in theta.items()}
    for s in range(plan.position.shape[1]):
        rows = plan.position[client, s][plan.weight[client, s] > 0]
        if len(rows) == 0:
            continue
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        outputs = functional_call(module, leaves, (x[rows],))
        LOSSES[federation.task](outputs, y[rows]).mean().backward()
        for name, value in theta.items():
            if only is not None and name not in only:
                continue
            step = leaves[name].grad
            assert step is not None
            if anchor is not None:
                step = step + strength * (value - anchor[name])
            if push is not None:
                step = step + push[name]
            theta[name] = value - sgd.lr * step
    return theta


def batch_gradient(
    federation: Federation, module: nn.Module, theta: Params, client: int, number: int, size: int
) -> Params:
    """Of the loss on batch `number` of a client, counted from the start of the run."""
    ids = torch.arange(federation.num_clients)
    one = LocalSGD(steps=1, batch_size=size)
    plan = plan_batches(one, federation.train.mask, ids, number, 3)
    rows = plan.position[client, 0][plan.weight[client, 0] > 0]
    x, y = own_data(federation, client, torch.float64)
    leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
    loss = LOSSES[federation.task](functional_call(module, leaves, (x[rows],)), y[rows]).mean()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def own_loss(federation: Federation, module: nn.Module, theta: Params, client: int) -> float:
    """Mean loss over all of a client's own training samples."""
    x, y = own_data(federation, client, torch.float64)
    with torch.no_grad():
        return float(LOSSES[federation.task](functional_call(module, theta, (x,)), y).mean())


def average(models: Sequence[Params], sizes: Sequence[int]) -> Params:
    """The mean of models weighted by samples."""
    share = [size / sum(sizes) for size in sizes]
    pairs = list(zip(share, models, strict=True))
    return {name: sum((s * m[name] for s, m in pairs), torch.zeros(())) for name in models[0]}


def stacked(models: Sequence[Params]) -> Tree:
    return {name: torch.stack([m[name] for m in models]) for name in models[0]}


def size_of(tree: Tree) -> int:
    """Bytes of one client's share of a tree."""
    return sum(t[0].numel() * t.element_size() for t in tree.values())


def rows_of(values: Sequence[float], num_clients: int) -> Tensor:
    """(K, K) the same weights for everyone."""
    return torch.tensor(values, dtype=torch.float64).expand(num_clients, -1)
