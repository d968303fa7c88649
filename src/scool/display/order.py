"""The order of the clients in a heat map."""

import torch
from torch import Tensor


def by_label(labels: Tensor) -> list[int]:
    """Clients of the same label side by side, by number inside."""
    return torch.argsort(labels.cpu(), stable=True).tolist()


def by_classes(classes: Tensor) -> list[int] | None:
    """Clients with the same classes (K, C) side by side, those of the first class first; None if
    that shows little: all clients have the same classes, or most have none in common.

    >>> by_classes(torch.tensor([[0, 1, 1], [1, 1, 0], [0, 1, 1], [1, 1, 0]]).bool())
    [1, 3, 0, 2]
    """
    if not classes.numel():
        return None
    _, which, sizes = (~classes).int().unique(dim=0, return_inverse=True, return_counts=True)
    is_shared = sizes[which] > 1
    return by_label(which) if len(sizes) > 1 and is_shared.float().mean() >= 0.5 else None


def known_order(groups: Tensor | None, classes: Tensor | None) -> tuple[list[int], str] | None:
    """By true group (K,), else by common classes, if these are known; and a name for the order."""
    if groups is not None:
        return by_label(groups), "true group"
    order = None if classes is None else by_classes(classes)
    return None if order is None else (order, "classes")


def shown_order(
    groups: Tensor | None, classes: Tensor | None, num_clients: int
) -> tuple[list[int], str]:
    """The same, by number where neither is known."""
    return known_order(groups, classes) or (list(range(num_clients)), "number")
