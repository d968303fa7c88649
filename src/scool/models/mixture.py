"""Several models of a client as one: the average of what they answer."""

import copy
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from scool.types import Tree

LOG_WEIGHTS = "log_weights"
SHARPNESS = "sharpness"
TRUST = "trust"
CLASSES = "classes"
NOTHING = -20.0  # members with a smaller logarithmic weight are ignored
MOST_MEMBERS = 64  # in a record; more means damage


@final
class Mixture(nn.Module):
    r"""$p(y \mid x) = \sum_a \omega_a\, p(y \mid x; \theta_a)$.

    For classification $p(y \mid x; \theta_a) = \mathrm{softmax}(\beta_a f_{\theta_a}(x) - \lambda_a
    (1 - c))_y$, where c is 1 for the classes that the client holds, and the outputs are the
    log-probabilities of the mixture, which are logits, too; for regression they are the weighted
    mean of the outputs.
    """

    def __init__(
        self,
        module: nn.Module,
        count: int,
        task: Literal["classification", "regression"],
        classes: int = 1,
    ):
        """`classes`: the length of `classes`; 0: a record of before there were such."""
        super().__init__()
        self.members = nn.ModuleList([copy.deepcopy(module) for _ in range(count)])
        first = next(module.parameters())
        equal = torch.full((count,), 1 / count, dtype=first.dtype, device=first.device)
        self.log_weights = nn.Parameter(equal.log())
        self.sharpness = nn.Parameter(torch.ones_like(equal))  # beta
        self.trust = nn.Parameter(torch.zeros_like(equal)) if classes else None  # lambda
        held = torch.ones(classes, dtype=first.dtype, device=first.device)
        self.classes = nn.Parameter(held) if classes else None  # c, or (1,): all
        self.is_classification = task == "classification"

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([member(x) for member in self.members])  # (A, s, C)
        weights = self.log_weights.log_softmax(0)[:, None, None]
        outputs = torch.where(weights > NOTHING, outputs, 0.0)  # even if not finite
        if self.is_classification:
            sharp = outputs * self.sharpness[:, None, None]
            if self.trust is not None and self.classes is not None:
                sharp = sharp - self.trust[:, None, None] * (1 - self.classes)
            return torch.logsumexp(sharp.log_softmax(dim=-1) + weights, dim=0)
        return (outputs * weights.exp()).sum(dim=0)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Any, prefix: str, *rest: Any
    ) -> None:
        """As many classes as there are in what is loaded."""
        found = state_dict.get(prefix + CLASSES)
        if found is not None and self.classes is not None:
            self.classes = nn.Parameter(self.classes.new_ones(found.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def as_mixture(members: list[Tree], **own: Tensor) -> Tree:
    """The parameters of a `Mixture` for each client from those of its members, and its own.

    >>> sorted(as_mixture([{"weight": torch.zeros(2, 3)}], log_weights=torch.zeros(2, 1)))
    ['log_weights', 'members.0.weight']
    """
    named = {f"members.{a}.{n}": t for a, tree in enumerate(members) for n, t in tree.items()}
    return named | own


def member(tree: Tree, number: int) -> Tree:
    """The parameters of one member."""
    prefix = f"members.{number}."
    return {n.removeprefix(prefix): t for n, t in tree.items() if n.startswith(prefix)}
