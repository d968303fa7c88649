"""One client after another by `torch.optim`, each with a copy of the module: the yardstick."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from scool.data.arrays import from_arrays
from scool.data.federation import Federation
from scool.learning.local_sgd import LocalSGD, plan_batches
from scool.learning.losses import LOSSES
from scool.models.layers import StreamDropout, with_streams
from scool.randomness import advance, derive
from scool.types import Params, Tree
from toys import one, own_data

Optimiser = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def federation_of(
    shape: tuple[int, ...], sizes: Sequence[int] = (5, 3, 4), classes: int = 3, tokens: int = 0
) -> Federation:
    """Random inputs of a shape, or token ids below `tokens`; labels in turn."""
    rng = torch.Generator().manual_seed(4)
    clients = []
    for size in sizes:
        parts = []
        for count in (size, 4):
            x = torch.randn(count, *shape, generator=rng)
            if tokens:
                x = torch.randint(tokens, (count, *shape), generator=rng)
            parts += [x, torch.arange(count) % classes]
        clients.append(tuple(parts))
    every = torch.ones(len(sizes), classes, dtype=torch.bool)
    federation = from_arrays(clients, num_classes=classes, classes=every)
    if not tokens:
        return federation
    whole = {
        part: getattr(federation, part)._replace(x=getattr(federation, part).x.long())
        for part in ("train", "val", "test")
    }
    return replace(federation, **whole)


def personal(module: nn.Module, theta: Tree, client: int) -> nn.Module:
    """The module with one client's parameters."""
    mine = copy.deepcopy(module)
    mine.load_state_dict(one(theta, client), strict=False)
    return mine


def inputs_of(federation: Federation, client: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`own_data`, with token ids left whole."""
    x, y = own_data(federation, client, dtype)
    return (x if federation.train.x.is_floating_point() else x.long()), y


def mean_loss(module: nn.Module, params: Params, x: Tensor, y: Tensor, task: str) -> Tensor:
    return LOSSES[task](functional_call(module, params, (x,)), y).mean()


def naive_training(
    federation: Federation,
    module: nn.Module,
    theta: Tree,
    sgd: LocalSGD,
    optimiser: Optimiser,
    round: int = 0,
    seed: int = 3,
) -> tuple[Tree, Tensor]:
    """Models and mean losses after a round. Of `sgd` only batches and clipping are read."""
    K = federation.num_clients
    plan = plan_batches(sgd, federation.train.mask, torch.arange(K), round, seed)
    dtype = next(iter(theta.values())).dtype
    models, means = [], []
    for client in range(K):
        mine = with_streams(personal(module, theta, client)).train()
        x, y = inputs_of(federation, client, dtype)
        steps, losses = optimiser(list(mine.parameters())), []
        stream = derive(seed, "dropout", round, client)
        torch.manual_seed(stream)  # of what draws by itself
        for s in range(plan.position.shape[1]):
            rows = plan.position[client, s][plan.weight[client, s] > 0]
            if len(rows) == 0:
                continue
            for layer in mine.modules():
                if isinstance(layer, StreamDropout):
                    layer.stream = advance(torch.tensor(stream), torch.tensor(s))
            for layer in mine.modules():
                if isinstance(layer, nn.BatchNorm1d):
                    layer.train(len(rows) > 1)  # one sample has no variance
            steps.zero_grad()
            loss = LOSSES[federation.task](mine(x[rows]), y[rows]).mean()
            loss.backward()
            if sgd.clip_norm:
                nn.utils.clip_grad_norm_(mine.parameters(), sgd.clip_norm)
            steps.step()
            losses.append(loss.item())
        tensors = mine.state_dict(keep_vars=True)
        models.append({name: tensors[name].detach().to(dtype) for name in theta})
        means.append(sum(losses) / len(losses))
    stacked = {name: torch.stack([m[name] for m in models]) for name in theta}
    return stacked, torch.tensor(means, dtype=torch.float64)


def naive_cross_loss(federation: Federation, module: nn.Module, theta: Tree) -> Tensor:
    """(K, K) every model on all of every client's data."""
    K = federation.num_clients
    result = torch.empty(K, K, dtype=torch.float64)
    for i in range(K):
        mine = personal(module, theta, i).eval()
        for j in range(K):
            x, y = inputs_of(federation, j, next(iter(theta.values())).dtype)
            result[i, j] = LOSSES[federation.task](mine(x), y).mean().detach()
    return result
