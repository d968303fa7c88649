"""How many samples of each class a client has."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from scool.data.federation import Federation, Split


def class_counts(split: "Split", task: str, outputs: int) -> Tensor:
    """(K, C) samples of each client and class; regression: (K, 1) samples of each client.

    >>> from scool.data.federation import Split
    >>> index, mask = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[True, True], [True, False]])
    >>> split = Split(torch.zeros(2, 3), index, mask, torch.tensor([[0, 2], [2, 0]]))
    >>> class_counts(split, "classification", 3).tolist()
    [[1, 0, 1], [0, 0, 1]]
    """
    mask = split.mask.cpu()
    if task == "regression":
        return mask.sum(dim=1, keepdim=True).int()
    counts = torch.zeros(len(mask), outputs, dtype=torch.int32)
    return counts.scatter_add_(1, split.y.cpu(), mask.int())


def counts_of(federation: "Federation", part: str) -> Tensor:
    return class_counts(getattr(federation, part), federation.task, federation.num_outputs)
