"""Models on data: on a draw of the data of others, on whole splits, and their gradients there."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.func import grad, vmap

from scool.contracts import PerClient, PerSample
from scool.data.federation import Task
from scool.engine.ledger import PairList
from scool.engine.machine import tensor_cores
from scool.engine.steps.formulation import Formulation
from scool.engine.steps.local_steps import split_statistics
from scool.engine.steps.phases import Batch, Samples, are_finite
from scool.errors import require
from scool.learning.local_sgd import draw_samples
from scool.learning.losses import CrossDraw, Loss, Objective, sample_count, with_label_noise
from scool.models import Functional
from scool.randomness import derive
from scool.types import Params, Tree


class Part(NamedTuple):
    """Samples of p owners, m of each."""

    x: Tensor  # (p, m, ...)
    y: Tensor  # (p, m, ...)
    weight: Tensor  # (p, m): 1, or what its class weighs; 0 for padding


@final
class Drawn:
    """The draw of a round: which samples of each client the models are tried on.

    `samples` may be those of n out of `num_clients` clients; `ids` (n,) says which.
    """

    def __init__(
        self,
        samples: Samples,
        draw: CrossDraw,
        num_clients: int,
        round: int,
        seed: int,
        ids: Tensor,
    ) -> None:
        self.samples, self.draw, self.num_clients, self.ids = samples, draw, num_clients, ids
        self.key = derive(seed, "cross", round)
        self.augment_key = derive(seed, "cross-augment", round)
        self.count = min(draw.cross_samples or samples.width, samples.width)

    def of(self, readers: Tensor, owners: Tensor) -> Part:
        """What reader p sees of the data in row `owners[p]` of the samples; with a shared draw all
        readers see the same."""
        streams = self.ids[owners]
        if self.draw.cross_draw == "pair":
            streams = readers * self.num_clients + streams
        mask = self.samples.split.mask[owners]
        position, weight = draw_samples(mask, streams, self.draw.cross_samples, self.key)
        draws = None
        if self.draw.cross_augment:
            shape = position.shape[1:]
            draws = self.samples.augmentation(self.augment_key, streams, shape)
        x, y = self.samples.fetch(owners, position, draws)
        return Part(x, y, self.samples.weigh(owners, y, weight.to(self.samples.dtype)))

    def losses(self, formulation: Formulation, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss a sample, with the label noise of the draw."""
        values = formulation.loss(outputs, targets)
        return with_label_noise(values, self.draw.cross_noise, outputs.shape[-1])


def check_draw(draw: CrossDraw, task: Task, objective: Objective) -> None:
    """Refuse what a task, or another loss than that of its likelihood, does not have."""
    remedy = "only labels can be noisy in this way; leave it at 0 for regression"
    fits = not draw.cross_noise or task == "classification"
    require(fits, "cross_noise", draw.cross_noise, remedy)
    remedy = f"loss = {objective.name!r} is not a log-likelihood; use cross_entropy, or give 0"
    is_sound = not draw.cross_noise or objective.is_standard(task)
    require(is_sound, "cross_noise", draw.cross_noise, remedy)


def suits_dense(edges: PairList, num_clients: int, draw: CrossDraw) -> bool:
    """Whether trying all models on all data is no more work than trying the pairs."""
    return draw.cross_draw == "shared" and len(edges.i) > 0.5 * num_clients**2


def dense_losses(formulation: Formulation, theta: Tree, drawn: Drawn, rows: int) -> Tensor:
    """(m, n) every model on every client's draw: all models share the samples.

    `rows` bounds the samples that go through models in one call.
    """
    first = next(iter(theta.values()))
    clients = torch.arange(len(drawn.ids), device=first.device)
    x, y, weight = drawn.of(clients, clients)
    x, y = x.flatten(0, 1), y.flatten(0, 1)
    values = first.new_empty(len(first), len(x))
    # A GPU wants all models in a call, a CPU one model and many samples.
    count = min(len(first), rows if first.is_cuda else max(1, rows // len(x)))
    for models in torch.arange(len(first)).split(count):
        mine = slice(int(models[0]), int(models[-1]) + 1)
        chosen = {name: t[mine] for name, t in theta.items()}
        for part in torch.arange(len(x), device=x.device).split(max(1, rows // count)):
            outputs = formulation.shared_outputs(chosen, x[part]).flatten(0, 1)
            targets = y[part].expand(len(models), *y[part].shape).flatten(0, 1)
            found = drawn.losses(formulation, outputs, targets)
            values[mine, part] = found.view(len(models), -1)
    values = values.view(len(first), *weight.shape)
    return values.mul_(weight).sum(2) / sample_count(weight)


def sparse_losses(
    formulation: Formulation, theta: Tree, readers: Tensor, edges: PairList, drawn: Drawn, rows: int
) -> Tensor:
    """(E,) every model on the draws of its own neighbours.

    Args:
        theta: m models, those of the clients `readers` (m,).
        edges: model i on the samples in row j, model after model.
    """
    first = next(iter(theta.values()))
    i, j = edges.i.to(first.device), edges.j.to(first.device)
    count = i.bincount(minlength=len(first))
    degree = int(count.max())
    slot = torch.arange(len(i), device=i.device) - (count.cumsum(0) - count)[i]
    listed = i.new_zeros(len(first), degree)  # padded with the first client
    listed[i, slot] = j
    result = first.new_empty(listed.shape)
    for models in torch.arange(len(first), device=first.device).split(
        max(1, rows // (degree * drawn.count))
    ):
        chosen = {name: t[models] for name, t in theta.items()}
        for slots in torch.arange(degree, device=i.device).split(max(1, rows // drawn.count)):
            columns = listed[models[:, None], slots]
            reading = readers[models, None].expand_as(columns).flatten()
            x, y, weight = drawn.of(reading, columns.flatten())
            x = x.view(len(models), -1, *x.shape[2:])
            outputs = formulation.outputs(chosen, x).flatten(0, 1)
            values = drawn.losses(formulation, outputs, y.flatten(0, 1)).view(*columns.shape, -1)
            weight = weight.view(*columns.shape, -1)
            mean = (values * weight).sum(2) / sample_count(weight)
            result[models[:, None], slots] = mean
    return result[i, slot]


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
        share = here.sum(dim=1).double() / count.clamp(min=1)
        weight = source.weigh(ids, y, here.to(source.dtype))
        grads, losses, _ = formulation.gradient(theta, Batch(x, y, weight))
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


def mixed_gradients(
    model: Functional, loss: Loss, theta: Tree, batch: Batch, weights: Tensor, models: int
) -> Tree:
    r"""$\sum_j w_{ij} \nabla L(b_j; \theta_i)$ of m models, weights (m, K), for the batches of K
    clients; so many models at a time. A batch of weight 0 does not count, whatever it gives."""
    found = _weighted_gradients(model, loss, theta, batch, weights, models)
    for i in (~are_finite(found)).nonzero()[:, 0].tolist():  # 0 times infinity is NaN
        used = weights[i] != 0
        own = {name: t[i : i + 1] for name, t in theta.items()}
        again = {name: torch.zeros_like(t) for name, t in own.items()}
        if bool(used.any()):
            few = Batch(batch.x[used], batch.y[used], batch.weight[used])
            row = weights[i : i + 1, used]
            again = _weighted_gradients(model, loss, own, few, row, models)
        for name, g in again.items():
            found[name][i] = g[0]
    return found


def _weighted_gradients(
    model: Functional, loss: Loss, theta: Tree, batch: Batch, weights: Tensor, models: int
) -> Tree:
    """The same as a plain sum."""
    x, y, here, _ = batch
    share = (here / sample_count(here)[:, None]).flatten()
    x, y = x.flatten(0, 1), y.flatten(0, 1)

    def objective(params: Params, statistics: Params, row: Tensor) -> Tensor:
        per_sample = row[:, None].expand(-1, here.shape[1]).flatten()
        return (loss(model(params | statistics, x), y) * share * per_sample).sum()

    gradient: Callable[..., Tree] = vmap(grad(objective), chunk_size=models)
    params, statistics = split_statistics(theta)
    still = {name: torch.zeros_like(t) for name, t in statistics.items()}
    return gradient(params, statistics, weights) | still
