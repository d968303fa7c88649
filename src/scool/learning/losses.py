"""What the clients minimise: a loss per sample, a minus log-likelihood, and weights of classes; and
which samples of D_j stand for D_j when theta_i is tried on it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import torch
import torch.nn.functional as F
from torch import Tensor

from scool.data.federation import Federation, Task
from scool.errors import ConfigError, check_fields, require, unknown

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs (s, C), targets (s, ...)) -> (s,)."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log-probability of the right class, over all C logits."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared distance: minus a unit-variance Gaussian log-density, less its constant."""
    return 0.5 * (outputs - targets).square().sum(dim=-1)


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    r"""$-(1 - p)^2 \log p$ with p of the right class: samples that are easy count less. Lin et al.,
    ICCV 2017."""
    values = cross_entropy(outputs, targets)
    return (1 - torch.exp(-values)).square() * values


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error up to 1, from there on a straight line: wild targets count less."""
    return F.huber_loss(outputs, targets, reduction="none").sum(dim=-1)


def as_metric(loss: Loss) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A loss as a metric of `Engine.measure`."""
    return lambda outputs, targets, classes: loss(outputs, targets)


def sample_count(weight: Tensor) -> Tensor:
    """How many samples there are, 1 at least, by weights (..., b) that are 0 for padding: what a
    mean over a batch divides by. Weights of classes do not change it."""
    return (weight > 0).sum(dim=-1).clamp(min=1)


def with_label_noise(loss: Tensor, noise: float, num_classes: int) -> Tensor:
    r"""$-\log\big((1-\epsilon)\,p + \epsilon/C\big)$ from the losses $-\log p$: a label is right
    with probability $1-\epsilon$, else any of the C.

    No sample then costs more than $\log(C/\epsilon)$, so that the mean loss tells the share of
    samples a model understands. The predictor that knows no inputs, $p = 1/C$, keeps its loss.

    >>> with_label_noise(torch.tensor([0.0, 100.0]), 0.1, 10)
    tensor([0.0943, 4.6052])
    """
    if not noise:
        return loss
    floor = math.log(noise) - math.log(num_classes)
    return -torch.logaddexp(math.log1p(-noise) - loss, torch.full_like(loss, floor))


LOSSES: dict[Task, Loss] = {"classification": cross_entropy, "regression": squared_error}
"""The default loss of each task."""

_NAMED: dict[str, tuple[Task | None, Loss]] = {
    "cross_entropy": ("classification", cross_entropy),
    "focal": ("classification", focal),
    "squared_error": ("regression", squared_error),
    "huber": ("regression", huber),
}
_BUILT_IN = frozenset(_NAMED)


def loss_name(loss: str | Loss) -> str:
    """The name of a loss; your own function becomes known under its name.

    Raises:
        ConfigError: there is none of that name, or scool has a built-in one.
    """
    if isinstance(loss, str):
        return loss if loss == "auto" or loss in _NAMED else unknown("loss", loss, _NAMED)
    name = getattr(loss, "__name__", "")
    remedy = (
        "give a name, or a function (outputs, targets) -> one number per sample that def gives a "
        "name, by which records call it: no lambda, no object"
    )
    require(callable(loss) and name.isidentifier(), "loss", loss, remedy)
    remedy = "scool has a loss of that name; choose another"
    is_free = name != "auto" and name not in _BUILT_IN
    require(is_free or _NAMED.get(name, (None, None))[1] is loss, "loss", name, remedy)
    if name not in _BUILT_IN:
        _NAMED[name] = (None, loss)
    return name


def weight_words(weights: str | Sequence[Any]) -> tuple[str, ...]:
    """`balanced`, or a weight per class, as words that records can hold.

    >>> weight_words("balanced"), weight_words([1, 2.5])
    (('balanced',), ('1.0', '2.5'))
    """
    words = [weights] if isinstance(weights, str) else [str(w) for w in weights]
    if words in ([], ["balanced"]):
        return tuple(words)
    remedy = "give 'balanced', or a positive number for each class"
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        require(False, "class_weights", weights, remedy)
        raise
    require(all(0 < w < math.inf for w in numbers), "class_weights", weights, remedy)
    return tuple(str(w) for w in numbers)


@final
@dataclass(frozen=True)
class Objective:
    r"""$L_i(\theta) = \frac{1}{n_i} \sum_s c_{i, y_s}\, \ell(f(x_s; \theta), y_s)$: everything that
    trains, and the cross losses. Weights $c_i$ that are `balanced` are $n_i / (C_i n_{ic})$ by the
    client's own training samples, 1 on average."""

    name: str = "auto"
    class_weights: tuple[str, ...] = ()

    def loss(self, task: Task) -> Loss:
        r"""$\ell$, (outputs (s, C), targets (s, ...)) -> (s,).

        Raises:
            ConfigError: it is for another task, or unknown.
        """
        if self.name == "auto":
            return LOSSES[task]
        if self.name not in _NAMED:
            unknown("loss", self.name, _NAMED)
        its_task, loss = _NAMED[self.name]
        others = ", ".join(name for name, (of, _) in _NAMED.items() if of == task)
        remedy = f"it is for {its_task}, the data are for {task}: use {others}"
        require(its_task in (None, task), "loss", self.name, remedy)
        return loss if self.name in _BUILT_IN else _checked(self.name, loss)

    def is_standard(self, task: Task) -> bool:
        r"""Whether $\ell$ is the minus log-likelihood that formulas of the paper assume."""
        return self.loss(task) is LOSSES[task]

    def weights(self, federation: Federation) -> Tensor | None:
        """(K, C) weights of the classes for each client; None where all are 1."""
        if not self.class_weights:
            return None
        is_class = federation.task == "classification"
        words = ", ".join(self.class_weights)
        require(is_class, "class_weights", words, "a regression has no classes; leave them out")
        train, count = federation.train, federation.num_outputs
        if self.class_weights != ("balanced",):
            fits = len(self.class_weights) == count
            require(fits, "class_weights", words, f"give {count} numbers, one for each class")
            weights = torch.tensor([*map(float, self.class_weights)], dtype=torch.float64)
            return weights.to(train.x.device).expand(federation.num_clients, count)
        here = F.one_hot(train.y.clamp(min=0), count) * train.mask[..., None]
        counts = here.sum(dim=1).double()  # (K, C)
        present = (counts > 0).sum(dim=1, keepdim=True).clamp(min=1)
        balanced = counts.sum(dim=1, keepdim=True) / (present * counts.clamp(min=1))
        return torch.where(counts > 0, balanced, 1.0)

    def uninformed(self, num_classes: int) -> float:
        """The loss of a classifier that ignores its inputs, averaged over the classes."""
        if self.is_standard("classification") and self.class_weights in ((), ("balanced",)):
            return math.log(num_classes)
        classes = torch.arange(num_classes)
        values = self.loss("classification")(torch.zeros(num_classes, num_classes), classes)
        if self.class_weights not in ((), ("balanced",)):
            values = values * torch.tensor([float(word) for word in self.class_weights])
        return float(values.double().mean())


def _checked(name: str, loss: Loss) -> Loss:
    """Your own loss, with a check of what it returns."""

    def checked(outputs: Tensor, targets: Tensor) -> Tensor:
        values = loss(outputs, targets)
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        if found != (len(outputs),):
            raise ConfigError(
                f"loss = {name!r} gives {found} for outputs {tuple(outputs.shape)}: return one "
                f"number per sample, ({len(outputs)},), e.g. with reduction='none'"
            )
        return values

    return checked


@dataclass(frozen=True)
class CrossDraw:
    r"""Samples for the cross losses $L_{ij} = L(D_j; \theta_i)$.

    One batch of ten per pair, as released, leaves the graph noisy; fifty samples bring its distance
    to the truth from 0.45 to 0.05 on CIFAR-10, at little cost.
    """

    cross_samples: int = 50
    """Samples of D_j that a pair is judged by; 0 takes all of D_j."""
    cross_draw: Literal["shared", "pair"] = "shared"
    """`shared`: one draw of D_j per round serves all models; `pair`: a draw for every pair."""
    cross_augment: bool = True
    """Send the samples through the training augmentation (where the data has one)."""
    cross_noise: float = 0.0
    """epsilon: a label counts as noise with this probability, which bounds the loss of a sample."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(
            self.cross_samples >= 0,
            "cross_samples",
            self.cross_samples,
            "give a positive number, or 0 for all samples",
        )
        is_share = 0 <= self.cross_noise < 1
        require(is_share, "cross_noise", self.cross_noise, "give a share of labels in [0, 1)")
