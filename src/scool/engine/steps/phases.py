"""One local phase of many models: its samples, its steps one after the other, and its outcome."""

from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor

from scool.data.federation import Split, are_tokens
from scool.data.transform import ImageTransform
from scool.engine.machine import HAS_TRITON
from scool.learning.local_sgd import LocalSGD, plan_batches, shortened
from scool.models.stack import flat
from scool.randomness import advance, derive, uniform
from scool.types import Tree


@final
class Samples:
    """One split of the federation as the models see it."""

    def __init__(
        self,
        split: Split,
        transform: ImageTransform | None,
        dtype: torch.dtype,
        class_weights: Tensor | None = None,
    ) -> None:
        """`class_weights` (K, C) are weights of the samples of each class; None: all 1."""
        self.split = split
        self.class_weights = None if class_weights is None else class_weights.to(dtype)
        self.transform = transform
        self.dtype = dtype
        self.width = split.index.shape[1]
        is_image = transform is not None and split.x.dtype == torch.uint8 and split.x.dim() == 4
        self._has_kernel = (
            is_image
            and split.x.is_cuda
            and split.x.shape[1] in (1, 3)
            and dtype == torch.float32
            and HAS_TRITON
        )

    def fetch(
        self, clients: Tensor, position: Tensor, draws: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets of entries `position` (n, ...) of the clients' (n,) own lists.

        Whole numbers (token ids) stay as they are. `draws` (n, ..., d) are the random numbers of
        the augmentation; without them the inputs are prepared as for evaluation.
        """
        rows = clients.view(-1, *[1] * (position.dim() - 1))
        pool_rows = self.split.index[rows, position]
        y = self.split.y[rows, position]
        if self._has_kernel and self.transform is not None:
            from scool.engine.kernels.images import fetch_images

            return fetch_images(self.split.x, pool_rows, draws, self.transform, self.dtype), y
        x = self.split.x[pool_rows]
        if self.transform is not None:
            x = self.transform.evaluate(x) if draws is None else self.transform.augment(x, draws)
        if y.is_floating_point():
            y = y.to(self.dtype)
        return (x if are_tokens(x) else x.to(self.dtype)), y

    def weigh(self, clients: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Weights (n, s) of the clients' samples with targets y, by their classes."""
        if self.class_weights is None:
            return weight
        return weight * self.class_weights[clients].gather(1, y)

    def augmentation(self, key: int, streams: Tensor, shape: torch.Size) -> Tensor | None:
        """Random numbers for `shape` samples of each stream; None where nothing is random."""
        if self.transform is None or not self.transform.num_draws:
            return None
        return uniform(key, streams, (*shape, self.transform.num_draws))


class Batch(NamedTuple):
    """One local step of c clients."""

    x: Tensor  # (c, b, ...)
    y: Tensor  # (c, b, ...)
    weight: Tensor  # (c, b): 1, or what its class weighs, for a sample, 0 for padding
    stream: Tensor | None = None  # (c,) random stream of the models in this step


class Rate(NamedTuple):
    """What the update in the backward pass needs to know."""

    touched: Tensor  # a scalar that requires a gradient, so that every layer is visited
    lr: float
    decay: float = 0.0
    strength: float = 0.0  # of the pull, which is a decay and a term added afterwards
    pulled: frozenset[str] = frozenset()  # tensors with an anchor
    only: frozenset[str] | None = None  # tensors that learn

    def of(self, weight: str) -> tuple[Tensor, float, float]:
        """The step of the layer with this weight; one that does not learn takes steps of length
        0."""
        learns = self.only is None or weight in self.only
        pull = self.strength if weight in self.pulled else 0.0
        return self.touched, self.lr * learns, (self.decay + pull) * learns


class Phase(NamedTuple):
    """The samples of one local phase of c clients, S steps of b samples."""

    ids: Tensor  # (c,) the clients
    position: Tensor  # (c, S, b) entries of each client's own list
    weight: Tensor  # (c, S, b): 1 for a sample, 0 for padding
    active: Tensor  # (c, S): 1 where a client takes the step
    draws: Tensor | None  # (c, S, b, d) random numbers of the augmentation
    stream: Tensor | None = None  # (c,) random stream of the models in this round
    start: Tensor | None = None  # (c,) whose model each begins with; None: one row each

    def begin(self, theta: Tree) -> Tree:
        """The models (c, ...) to begin with."""
        return theta if self.start is None else {n: t[self.start] for n, t in theta.items()}

    def shortened(self, share: Tensor) -> "Phase":
        """The same where clients do only a share (c,) of their steps."""
        count = shortened((self.active > 0).sum(dim=1), share)
        taken = torch.arange(self.active.shape[1], device=count.device) < count[:, None]
        weight = self.weight * taken[..., None].to(self.weight.dtype)
        return self._replace(weight=weight, active=self.active * taken.to(self.active.dtype))

    def of(self, client: int) -> "Phase":
        """The phase of one client alone."""
        return Phase(*(None if part is None else part[client : client + 1] for part in self))  # type: ignore


def batch_at(samples: Samples, phase: Phase, step: Tensor) -> Batch:
    """The batch of a step, whose number (1,) stays on the device: reading it would wait."""
    position = phase.position.index_select(1, step)[:, 0]
    draws = None if phase.draws is None else phase.draws.index_select(1, step)[:, 0]
    x, y = samples.fetch(phase.ids, position, draws)
    stream = None if phase.stream is None else advance(phase.stream, step)
    weight = samples.weigh(phase.ids, y, phase.weight.index_select(1, step)[:, 0])
    return Batch(x, y, weight, stream)


def plan_phase(
    samples: Samples, sgd: LocalSGD, hosts: Tensor, names: Tensor, round: int, seed: int
) -> Phase:
    """The phase of a round on the data of the hosts (c,), with the ids `names` (c,) in random
    streams: a function of (seed, round, name)."""
    plan = plan_batches(sgd, samples.split.mask[hosts], names, round, seed)
    shape = plan.position.shape[1:]
    draws = samples.augmentation(derive(seed, "augment", round), names, shape)
    return Phase(hosts, plan.position, plan.weight.to(samples.dtype), plan.active, draws)


def dropout_streams(names: Tensor, round: int, seed: int) -> Tensor:
    """(c,) the random stream of each model in a round."""
    streams = [derive(seed, "dropout", round, name) for name in names.tolist()]
    return torch.tensor(streams, device=names.device)


class Stepper(Protocol):
    """A way to take local steps. Buffers hold the models and whatever the optimiser carries."""

    def begin(self, theta: Tree, anchor: Tree | None) -> Tree:
        """Fresh buffers; the caller's tensors are not changed. The anchor of a pull, or the
        slope of a push."""
        ...

    def load(
        self, buffers: Tree, theta: Tree, anchor: Tree | None, start: Tensor | None = None
    ) -> None:
        """Start again from other models, or from rows `start` of them, in the same buffers."""
        ...

    def step(self, buffers: Tree, batch: Batch, active: Tensor) -> Tensor:
        """One step of every client in place; its mean loss (c,). A client that has finished
        (active 0) does not move."""
        ...

    def end(self, buffers: Tree, lend: bool = False) -> Tree:
        """The models, in tensors that the buffers do not share, unless they may be lent."""
        ...


def fill(buffer: Tensor, stacked: Tensor, rows: Tensor | None) -> None:
    """Some rows, or all, into a buffer: a gather and a copy would write large models twice."""
    if rows is None:
        buffer.copy_(stacked)
    else:
        torch.index_select(stacked, 0, rows, out=buffer)


def stepwise(
    stepper: Stepper, samples: Samples, theta: Tree, phase: Phase, anchor: Tree | None = None
) -> tuple[Tree, Tensor]:
    """Step after step from Python.

    Returns:
        the models after the last step, and the losses (c, S) of each client's steps.
    """
    buffers = stepper.begin(theta, anchor)
    losses = torch.zeros(phase.active.shape, device=phase.ids.device, dtype=torch.float64)
    for step in torch.arange(phase.active.shape[1], device=phase.ids.device).split(1):
        active = phase.active.index_select(1, step)[:, 0]
        found = stepper.step(buffers, batch_at(samples, phase, step), active)
        losses.index_copy_(1, step, found.double()[:, None])
    return stepper.end(buffers), losses


class Outcome(NamedTuple):
    """The outcome of a phase for c models."""

    theta: Tree  # (c, ...); lent, where the phase says whose models to begin with
    loss: Tensor  # (c,) mean over the steps; on the CPU, as the next
    stop: Tensor  # (c,) the step at which a number was not finite, -1 for none


def examine(phase: Phase, theta: Tree, losses: Tensor) -> Outcome:
    """The outcome of a phase, from the models after it and the losses (c, S) of its steps.
    Non-finite numbers are detected here, so that no step waits for the host."""
    taken = phase.active > 0
    count = taken.sum(dim=1)
    mean = losses.where(taken, 0.0).sum(dim=1) / count.clamp(min=1)
    broken = taken & ~losses.isfinite()
    stop = torch.where(broken.any(dim=1), broken.to(torch.int8).argmax(dim=1), -1)
    is_bad = (stop < 0) & ~are_finite(theta)  # the last step broke the model
    return Outcome(theta, mean.cpu(), torch.where(is_bad, count - 1, stop).cpu())


def are_finite(tree: Tree) -> Tensor:
    """(c,) bool: all numbers of the model are finite. Minimum and maximum show it without a copy of
    the model."""
    parts: list[Tensor] = []
    for stacked in tree.values():
        low, high = flat(stacked).aminmax(dim=1)
        parts.append(low.isfinite() & high.isfinite())
    return torch.stack(parts).all(dim=0)
