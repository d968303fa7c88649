"""What a client makes of a model on its own data, written out."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from scool.data.federation import Federation
from scool.learning.losses import LOSSES
from scool.types import Params


def loss_on(
    federation: Federation, split: str, module: nn.Module, theta: Params, client: int
) -> Tensor:
    """Mean loss over all samples of a client's split; differentiable in theta."""
    part = getattr(federation, split)
    mine = part.mask[client]
    x, y = part.x[part.index[client][mine]].double(), part.y[client][mine]
    return LOSSES[federation.task](functional_call(module, theta, (x,)), y).mean()


def gradient_on(
    federation: Federation, split: str, module: nn.Module, theta: Params, client: int
) -> Params:
    leaves = {n: p.clone().requires_grad_() for n, p in theta.items()}
    loss = loss_on(federation, split, module, leaves, client)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def inner(a: Params, b: Params) -> float:
    return sum(float((a[n] * b[n]).sum()) for n in a)


def minus(a: Params, b: Params) -> Params:
    return {n: a[n] - b[n] for n in a}


def weighted(weights: list[float], models: list[Params]) -> Params:
    """sum_j w_j x_j."""
    pairs = list(zip(weights, models, strict=True))
    return {n: sum((w * m[n] for w, m in pairs), torch.zeros(())) for n in models[0]}


def softmax(scores: list[float]) -> list[float]:
    return torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
