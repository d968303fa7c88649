"""Local learning: which samples each client sees at each of its steps, and the SGD options."""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from scool.errors import check_fields, require
from scool.randomness import derive, uniform
from scool.types import Tree


@dataclass(frozen=True)
class LocalSGD:
    r"""SGD on the client's own data, $\theta_i \leftarrow \theta_i - \eta \nabla L$, or Adam.

    A round is `epochs` passes over the client's data, or `steps` mini-batches where that is given.
    Batches continue where the last round stopped, each pass in a fresh order; momentum and Adam's
    moments are reset in every round.
    """

    lr: float = 0.01
    """Learning rate; 0: the method finds one, which `scool` alone does."""
    epochs: int = 5
    """Passes over the client's own data in a round."""
    steps: int = 0
    """Mini-batches in a round; 0: `epochs` decides."""
    batch_size: int = 10
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    """Look ahead along the momentum."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """adamw applies the weight decay separately, the others add it to the gradient."""
    clip_norm: float = 0.0
    """Cut a client's gradient to this length; 0 leaves it."""
    lr_schedule: Literal["constant", "exponential", "cosine"] = "constant"
    """exponential: times lr_decay every round; cosine: down to lr_decay * lr over lr_rounds."""
    lr_decay: float = 1.0
    """What a schedule multiplies by, below 1."""
    lr_rounds: int = 100

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.lr >= 0, "lr", self.lr, "give a positive learning rate")
        require(self.epochs >= 1, "epochs", self.epochs, "give at least 1")
        require(self.steps >= 0, "steps", self.steps, "give 0 (count in epochs) or more")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "give at least 1")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "give a number in [0, 1)")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "give 0 or more")
        require(self.clip_norm >= 0, "clip_norm", self.clip_norm, "give 0 (off) or more")
        require(0 <= self.lr_decay <= 1, "lr_decay", self.lr_decay, "give a number in [0, 1]")
        require(self.lr_rounds >= 1, "lr_rounds", self.lr_rounds, "give at least 1")
        if self.nesterov:
            has = self.momentum > 0 and self.optimizer == "sgd"
            require(has, "nesterov", True, "it needs optimizer sgd and a momentum above 0")

    @property
    def remark(self) -> str:
        """What was asked for and has no effect; empty if all has one.

        >>> LocalSGD(lr_schedule="cosine").remark
        "lr_schedule = 'cosine' has no effect with lr_decay = 1: give one below 1, e.g. 0"
        """
        if self.momentum > 0 and self.optimizer != "sgd":
            return (
                f"momentum = {self.momentum} has no effect with optimizer = {self.optimizer!r}, "
                "which has moments of its own: leave it out, or give sgd"
            )
        if self.lr_schedule == "constant" and self.lr_decay < 1:
            return (
                f"lr_decay = {self.lr_decay} has no effect with lr_schedule = 'constant': "
                "give exponential or cosine"
            )
        if self.lr_schedule != "constant" and self.lr_decay == 1:
            example = "0" if self.lr_schedule == "cosine" else "0.99"
            return (
                f"lr_schedule = {self.lr_schedule!r} has no effect with lr_decay = 1: "
                f"give one below 1, e.g. {example}"
            )
        return ""

    def rate(self, round: int) -> float:
        """The learning rate of a round.

        >>> LocalSGD(lr=1.0, lr_schedule="exponential", lr_decay=0.5).rate(2)
        0.25
        """
        if self.lr_schedule == "exponential":
            return self.lr * self.lr_decay**round
        if self.lr_schedule == "cosine":
            done = min(1.0, round / self.lr_rounds)
            share = (1 + math.cos(math.pi * done)) / 2
            return self.lr * (self.lr_decay + (1 - self.lr_decay) * share)
        return self.lr

    def at_round(self, round: int) -> "LocalSGD":
        """The same with the learning rate of a round."""
        if self.lr_schedule == "constant":
            return self
        rate = max(self.rate(round), 1e-300)
        return replace(self, lr=rate, lr_schedule="constant")

    def steps_per_round(self, sizes: Tensor) -> Tensor:
        """(n,) local steps of clients with that many samples."""
        per_epoch = -(-sizes // self.batch_size)
        return torch.full_like(sizes, self.steps) if self.steps else self.epochs * per_epoch

    def samples_per_round(self, sizes: Tensor, round: int, share: Tensor | None = None) -> Tensor:
        """(n,) samples that the local steps of a round go through; of clients that do only a share
        (n,) of their steps, the samples of these.

        >>> LocalSGD(steps=2, batch_size=4).samples_per_round(torch.tensor([6, 9]), 0)
        tensor([6, 8])
        """
        if not self.steps and share is None:
            return self.epochs * sizes
        per_epoch = (-(-sizes // self.batch_size)).clamp(min=1)

        def after(step: Tensor) -> Tensor:
            rest = ((step % per_epoch) * self.batch_size).minimum(sizes)
            return step // per_epoch * sizes + rest

        count = self.steps_per_round(sizes)
        taken = count if share is None else shortened(count, share)
        return after(round * count + taken) - after(round * count)


def shortened(steps: Tensor, share: Tensor) -> Tensor:
    """(n,) steps of clients that do a share of them, at least one.

    >>> shortened(torch.tensor([10, 1, 0]), torch.tensor([0.25, 0.5, 0.5]))
    tensor([3, 1, 0])
    """
    return (steps * share.to(steps.device) - 1e-9).ceil().long().clamp(min=1).minimum(steps)


class Pull(NamedTuple):
    r"""A proximal term of the local objective, $\frac{\lambda}{2} \|\theta_i - a_i\|^2$: every
    gradient becomes $\nabla L + \lambda (\theta_i - a_i)$."""

    anchor: Tree  # a_i of the clients held here
    strength: float  # lambda


class Push(NamedTuple):
    r"""A linear term of the local objective, $\langle g_i, \theta_i \rangle$: every gradient
    becomes $\nabla L + g_i$."""

    slope: Tree  # g_i of the clients held here


class Rule(NamedTuple):
    """What a local step does with a gradient, the same for all clients and steps of a phase."""

    sgd: LocalSGD
    strength: float = 0.0  # of the pull towards an anchor
    only: frozenset[str] | None = None  # tensors that learn; None: all
    pushes: bool = False  # the anchor is the slope of a push

    @property
    def moves_alone(self) -> bool:
        """Whether a client without samples would move: by decay, pull or push."""
        return self.sgd.weight_decay > 0 or self.strength > 0 or self.pushes


class Batches(NamedTuple):
    """The samples of every local step: positions in each client's own list, padded by weight 0."""

    position: Tensor  # (n, S, b) int64
    weight: Tensor  # (n, S, b) float: 1 for a sample, 0 for padding

    @property
    def active(self) -> Tensor:
        """(n, S) float: 1 where the client takes the step, 0 where it has finished its round."""
        return self.weight.amax(dim=2)


def plan_batches(sgd: LocalSGD, mask: Tensor, clients: Tensor, round: int, seed: int) -> Batches:
    """Batches of one round, a function of (seed, round, client) alone.

    Step number g of a client (counted from the start of the run) is batch `g mod p` of epoch
    `g div p`, with p the batches of one epoch; each epoch is a fresh shuffle.

    Args:
        mask: (n, N) which entries of the clients' lists are samples.
        clients: (n,) their ids.
    """
    sizes = mask.sum(dim=1)  # (n,)
    per_epoch = (-(-sizes // sgd.batch_size)).clamp(min=1)
    per_round = sgd.steps_per_round(sizes)
    step = torch.arange(int(per_round.max()), device=mask.device)  # (S,)
    g = (round * per_round)[:, None] + step  # (n, S) step number since the start of the run
    epoch, batch = g // per_epoch[:, None], g % per_epoch[:, None]
    first = epoch[:, :1]
    order = _shuffles(mask, clients, first, int((epoch - first).max()) + 1, seed)  # (n, E, N)
    width = min(sgd.batch_size, mask.shape[1])  # no client has more samples
    slot = batch[..., None] * sgd.batch_size + torch.arange(width, device=mask.device)
    taken = (slot < sizes[:, None, None]) & (step < per_round[:, None])[..., None]  # (n, S, b)
    flat = (epoch - first)[..., None] * mask.shape[1] + slot.clamp(max=mask.shape[1] - 1)
    position = order.flatten(1).gather(1, flat.flatten(1)).view_as(slot)
    return Batches(position, taken.double())


def _shuffles(mask: Tensor, clients: Tensor, first: Tensor, epochs: int, seed: int) -> Tensor:
    """(n, E, N) sample positions in the order of epochs first, first + 1, ...; padding last."""
    epoch = first + torch.arange(epochs, device=mask.device)  # (n, E)
    streams = (clients[:, None] << 32) + epoch  # one stream of numbers per (client, epoch)
    keys = uniform(derive(seed, "shuffle"), streams.flatten(), (mask.shape[1],))
    keys = keys.view(len(clients), epochs, -1).masked_fill(~mask[:, None, :], 2.0)
    return keys.argsort(dim=-1)


def draw_samples(mask: Tensor, streams: Tensor, count: int, key: int) -> tuple[Tensor, Tensor]:
    """`count` samples of each list without replacement (all of a shorter one).

    Args:
        mask: (n, N) which entries are samples.
        streams: (n,) what the draw of each row depends on besides `key`.

    Returns:
        positions (n, count) and their weights (n, count), 0 for padding.
    """
    count = min(count, mask.shape[1]) if count else mask.shape[1]
    keys = uniform(key, streams, (mask.shape[1],)).masked_fill(~mask, 2.0)
    position = keys.argsort(dim=-1)[:, :count]
    weight = torch.arange(count, device=mask.device) < mask.sum(dim=1, keepdim=True)
    return position, weight.double()
