"""What a rank holds: the data of its clients, and a device."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from scool.data.federation import Federation, Split
from scool.engine.device import resolve_device
from scool.errors import ConfigError


@dataclass(frozen=True)
class Shard(Federation):
    """Some clients of a federation. It may lack what the others hold, so it is not checked anew."""

    def __post_init__(self) -> None:
        pass


def cut(federation: Federation, clients: Tensor) -> Shard:
    """The clients `clients` (n,) with the samples they use, and no others."""

    def part(split: Split) -> Split:
        index = split.index[clients]
        used, rows = index.unique(return_inverse=True)
        return Split(split.x[used], rows.view_as(index), split.mask[clients], split.y[clients])

    return Shard(
        name=federation.name,
        train=part(federation.train),
        val=part(federation.val),
        test=part(federation.test),
        classes=federation.classes[clients],
        task=federation.task,
        transform=federation.transform,
    )


def rank_device(name: str, rank: int) -> str:
    """The device of a rank: on a machine with GPUs, one each."""
    local_rank = int(os.environ.get("LOCAL_RANK", rank))  # on its own machine, says torchrun
    device = resolve_device(name)
    if device.type != "cuda" or device.index is not None:
        return str(device)
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"device = {name!r} is not possible: this machine has {count} GPUs and more ranks. "
            f"Start {count} ranks on it, or use --device cpu"
        )
    return f"cuda:{local_rank}"
