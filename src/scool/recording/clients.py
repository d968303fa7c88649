"""Who the clients of a run were: `clients.safetensors`, enough for a report, without their data."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from scool.data.federation import Federation
from scool.data.looks import counts_of
from scool.errors import RunError
from scool.recording.atomic import write_bytes

FORMAT = "scool-clients-1"
NAME = "clients.safetensors"
PARTS = ("train", "val", "test")


class Clients(NamedTuple):
    """What a run folder says about its clients."""

    name: str  # of the federation
    task: str
    counts: dict[str, Tensor]  # part -> (K, C) samples of each class; regression: (K, 1) samples
    classes: Tensor  # (K, C) bool, the task of each client
    truth: Tensor | None  # (K, K) rows sum to one
    groups: Tensor | None  # (K,)
    client_names: list[str] | None
    class_names: list[str] | None
    input_shape: tuple[int, ...]
    mean: tuple[float, ...] | None  # of the image normalisation, where there is one
    std: tuple[float, ...] | None
    tokens: bool  # whether inputs are whole numbers that stay so

    @property
    def num_clients(self) -> int:
        return len(self.classes)


def describe_clients(federation: Federation) -> Clients:
    """The record of a federation."""
    transform, truth, groups = federation.transform, federation.truth, federation.groups
    return Clients(
        name=federation.name,
        task=federation.task,
        counts={part: counts_of(federation, part) for part in PARTS},
        classes=federation.classes.cpu(),
        truth=None if truth is None else truth.cpu().float(),
        groups=None if groups is None else groups.cpu(),
        client_names=list(federation.client_names) if federation.client_names else None,
        class_names=list(federation.class_names) if federation.class_names else None,
        input_shape=federation.input_shape,
        mean=None if transform is None else transform.mean,
        std=None if transform is None else transform.std,
        tokens=federation.takes_tokens,
    )


def write_clients(folder: Path, federation: Federation) -> None:
    """Write the record; the same federation gives the same bytes."""
    clients = describe_clients(federation)
    # Half the bytes: with a hundred classes the counts are most of the file.
    tensors = {f"counts/{part}": counts.int() for part, counts in clients.counts.items()}
    tensors |= {"classes": clients.classes.clone()}
    for name, tensor in (("truth", clients.truth), ("groups", clients.groups)):
        if tensor is not None:
            tensors[name] = tensor.contiguous()
    about: dict[str, Any] = {"format": FORMAT}
    words = ("name", "task", "client_names", "class_names", "input_shape", "mean", "std", "tokens")
    about |= {word: getattr(clients, word) for word in words}
    write_bytes(folder / NAME, save(tensors, metadata={"scool": json.dumps(about)}))


def read_clients(folder: Path) -> Clients | None:
    """The record of a run folder; None where an older version wrote none.

    Raises:
        RunError: there is one, but it cannot be read.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["scool"])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
        if about["format"] != FORMAT:
            raise RunError(f"{path} was written by another version of scool ({about['format']})")
        return Clients(
            name=about["name"],
            task=about["task"],
            counts={part: tensors[f"counts/{part}"].long() for part in PARTS},
            classes=tensors["classes"],
            truth=tensors.get("truth"),
            groups=tensors.get("groups"),
            client_names=about["client_names"],
            class_names=about["class_names"],
            input_shape=tuple(about["input_shape"]),
            mean=None if about["mean"] is None else tuple(about["mean"]),
            std=None if about["std"] is None else tuple(about["std"]),
            tokens=about.get("tokens", False),
        )
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{path} cannot be read ({error}): delete it; `scool resume` writes it again"
        ) from error
