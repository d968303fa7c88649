"""Who the clients of a run were: `clients.safetensors`, enough for a report, without their data."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from scool.data.federation import Federation
from scool.recording.folder import CLIENTS as NAME
from scool.recording.folder import RunFolder
from scool.recording.seals import (
    BOOL,
    NUMBERS,
    OBJECT,
    SHAPE,
    TEXT,
    TEXTS,
    Kind,
    check_kinds,
    damaged,
    or_null,
)

PARTS = ("train", "val", "test")


class Clients(NamedTuple):
    """What a run folder records about its clients."""

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
    preprocessing: dict[str, Any] | None = None  # how rows of a table become inputs

    @property
    def num_clients(self) -> int:
        return len(self.classes)

    @property
    def held(self) -> Tensor:
        """(K, C) bool: the classes that a client has samples of, whatever it may answer with."""
        return torch.stack([counts > 0 for counts in self.counts.values()]).any(dim=0)


def describe_clients(federation: Federation) -> Clients:
    """The record of a federation."""
    transform, truth, groups = federation.transform, federation.truth, federation.groups
    return Clients(
        name=federation.name,
        task=federation.task,
        counts={part: federation.counts(part) for part in PARTS},
        classes=federation.classes.cpu(),
        truth=None if truth is None else truth.cpu().float(),
        groups=None if groups is None else groups.cpu(),
        client_names=list(federation.client_names) if federation.client_names else None,
        class_names=list(federation.class_names) if federation.class_names else None,
        input_shape=federation.input_shape,
        mean=None if transform is None else transform.mean,
        std=None if transform is None else transform.std,
        tokens=federation.takes_tokens,
        preprocessing=federation.preprocessing.to_dict() if federation.preprocessing else None,
    )


def clients_file(federation: Federation) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The record as tensors and words; the same federation gives the same."""
    clients = describe_clients(federation)
    # Half the bytes: with a hundred classes the counts are most of the file.
    tensors = {f"counts/{part}": counts.int() for part, counts in clients.counts.items()}
    tensors |= {"classes": clients.classes.clone()}
    for name, tensor in (("truth", clients.truth), ("groups", clients.groups)):
        if tensor is not None:
            tensors[name] = tensor.contiguous()
    words = {word: getattr(clients, word) for word in _WORDS}
    if clients.preprocessing is not None:
        words["preprocessing"] = clients.preprocessing
    return tensors, words


_WORDS = ("name", "task", "client_names", "class_names", "input_shape", "mean", "std", "tokens")
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("name", "task"), TEXT),
    **dict.fromkeys(("client_names", "class_names"), or_null(TEXTS)),
    **dict.fromkeys(("mean", "std"), or_null(NUMBERS)),
    "input_shape": SHAPE,
    "tokens": BOOL,
    "preprocessing": or_null(OBJECT),
}


def read_clients(folder: RunFolder) -> Clients | None:
    """The record of a run folder; None if an older version wrote none.

    Raises:
        RunError: there is one, but it cannot be read, or there must be one.
    """
    path = folder.path / NAME
    if not path.exists() and not path.is_symlink() and NAME not in folder.listed.files:
        return None
    try:
        about, tensors, _ = folder.read(NAME, "clients")
        check_kinds(about, _KINDS, optional=["tokens", "preprocessing"])
        clients = Clients(
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
            preprocessing=about.get("preprocessing"),
        )
        _check_shapes(clients)
        return clients
    except KeyError as error:
        raise damaged(path, ValueError(f"it lacks {error}"), _REMEDY) from error
    except (OSError, ValueError) as error:
        raise damaged(path, error, _REMEDY) from error


_REMEDY = (
    "Bring back a whole copy, or let `scool resume` write it again (`scool rerun` where the run "
    "kept no models)"
)


def _check_shapes(clients: Clients) -> None:
    """Check that all parts have the same number of clients and classes.

    Raises:
        ValueError: says which do not.
    """
    if clients.classes.dim() != 2 or clients.classes.dtype != torch.bool:
        raise ValueError("classes is not a table of clients and classes")
    count, outputs = clients.classes.shape
    columns = 1 if clients.task == "regression" else outputs
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        **{f"counts/{part}": (clients.counts[part], (count, columns)) for part in PARTS},
        "truth": (clients.truth, (count, count)),
        "groups": (clients.groups, (count,)),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)} where {shape} fits")
    if clients.groups is not None and clients.groups.is_floating_point():
        raise ValueError("groups are not whole numbers")
    if (clients.mean is None) != (clients.std is None):
        raise ValueError("it has one of mean and std")
    for name, names, length in (
        ("client_names", clients.client_names, count),
        ("class_names", clients.class_names, outputs),
    ):
        if names is not None and len(names) != length:
            raise ValueError(f"{name} has {len(names)} names where {length} fit")
