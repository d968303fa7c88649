"""Means over all samples of a split, as many of them at a time as memory has room for."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import vmap

from scool.contracts import PerClient, PerSample
from scool.engine.memory import tensor_cores
from scool.engine.steps.formulation import Formulation
from scool.engine.steps.local_steps import Batch
from scool.engine.steps.samples import Samples
from scool.types import Tree


def _batches(source: Samples, ids: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, targets and which of them are samples (c, s) of c clients, about `rows` at a time."""
    mask = source.split.mask[ids]
    for part in torch.arange(source.width, device=ids.device).split(max(1, rows // len(ids))):
        x, y = source.fetch(ids, part.expand(len(ids), -1), None)
        yield x, y, mask[:, part]


def mean_gradient(
    formulation: Formulation, source: Samples, theta: Tree, ids: Tensor, rows: int
) -> tuple[Tree, Tensor]:
    """Of the models (c, ...) of clients ids (c,): gradients of their mean losses, and these (c,)
    float64; 0 and NaN for a client without samples."""
    count = source.split.mask[ids].sum(dim=1).double()
    mean = torch.zeros_like(count)
    total = {name: torch.zeros_like(t) for name, t in theta.items()}
    for x, y, here in _batches(source, ids, rows):
        weight = here.to(source.dtype)
        share = weight.sum(dim=1).double() / count.clamp(min=1)
        grads, losses = formulation.gradient(theta, Batch(x, y, weight))
        mean += losses.double() * share
        for name, g in grads.items():
            total[name] += g * share.to(g).view(-1, *[1] * (g.dim() - 1))
    return total, mean.where(count > 0, torch.nan)


def mean_metric(
    formulation: Formulation,
    source: Samples,
    theta: Tree,
    ids: Tensor,
    classes: Tensor,
    metric: PerSample,
    rows: int,
) -> Tensor:
    """(c,) or (c, m) float64 means of a metric, NaN for a client without samples. `classes` (c, C)
    says which ones the clients have."""
    judge = vmap(metric)
    sums: list[Tensor] = []
    for x, y, here in _batches(source, ids, rows):
        with tensor_cores():
            outputs = formulation.outputs(theta, x)
        values = judge(outputs, y, classes).double()  # (c, s[, m])
        here = here.view(*values.shape[:2], *[1] * (values.dim() - 2))
        sums.append(values.where(here, 0.0).sum(dim=1))
    total = torch.stack(sums).sum(dim=0)
    count = source.split.mask[ids].sum(dim=1).view(-1, *[1] * (total.dim() - 1))
    return total / count  # 0 / 0 is NaN


def client_metric(
    formulation: Formulation,
    source: Samples,
    theta: Tree,
    ids: Tensor,
    classes: Tensor,
    metric: PerClient,
    count: int,
    rows: int,
) -> Tensor:
    """(c, count) float64 numbers of a metric that sees all samples of a client, NaN for a client
    without samples."""
    outputs: list[Tensor] = []
    targets: list[Tensor] = []
    for x, y, _ in _batches(source, ids, rows):
        with tensor_cores():
            outputs.append(formulation.outputs(theta, x).double().cpu())
        targets.append(y.double().cpu() if y.is_floating_point() else y.cpu())
    found = torch.full((len(ids), count), torch.nan, dtype=torch.float64)
    answers, right = torch.cat(outputs, dim=1), torch.cat(targets, dim=1)
    mask, classes = source.split.mask[ids].cpu(), classes.cpu()
    for i in mask.any(dim=1).nonzero()[:, 0].tolist():
        found[i] = metric(answers[i][mask[i]], right[i][mask[i]], classes[i])
    return found
