"""Data that no method could learn from are refused when a federation is made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from scool.errors import DataError

if TYPE_CHECKING:
    from scool.data.federation import Federation, Split

PARTS = ("train", "val", "test")


def check(federation: "Federation") -> None:
    """Refuse data that no method could learn from; NaN inputs are left to the engine.

    Raises:
        DataError: shapes disagree, a client has no training sample, a label or an index is out of
            range or outside the client's task, a class of a client has no training sample
            anywhere, or the true graph is none.
    """
    for part in PARTS:
        _check_shapes(federation, part, getattr(federation, part))
    empty = (federation.train.sizes == 0).nonzero().flatten().tolist()
    if empty:
        raise DataError(
            f"client {federation.client_name(empty[0])} has no training sample "
            f"({len(empty)} such clients): give it data or leave it out"
        )
    if federation.task == "classification":
        for part in PARTS:
            _check_labels(federation, part, getattr(federation, part))
        _check_held(federation)
    _check_graph(federation)


def _check_shapes(federation: "Federation", part: str, split: "Split") -> None:
    clients, outputs = federation.classes.shape
    shape = tuple(split.index.shape)
    target = shape if federation.task == "classification" else (*shape, outputs)
    problem = None
    if len(shape) != 2 or shape[0] != clients or shape[1] == 0:
        problem = f"index has shape {shape}, not ({clients}, N) with N >= 1"
    elif tuple(split.mask.shape) != shape or split.mask.dtype != torch.bool:
        problem = f"mask is {split.mask.dtype} {tuple(split.mask.shape)}, not bool {shape}"
    elif tuple(split.y.shape) != target:
        problem = f"y has shape {tuple(split.y.shape)}, not {target}"
    elif split.x.shape[1:] != federation.train.x.shape[1:]:
        problem = f"inputs have shape {tuple(split.x.shape[1:])}, not {federation.input_shape}"
    elif split.x.dtype == torch.uint8 and federation.transform is None:
        problem = "inputs are uint8 and there is no transform; pass one, or float inputs"
    elif len(split.x) <= int(split.index.max()) or int(split.index.min()) < 0:
        low, high = int(split.index.min()), int(split.index.max())
        problem = f"index holds rows {low} to {high} of a pool of {len(split.x)} samples"
    if problem:
        raise DataError(f"{part} data of federation {federation.name!r}: {problem}")


def _check_labels(federation: "Federation", part: str, split: "Split") -> None:
    high = federation.num_outputs
    wrong = (split.y < 0) | (split.y >= high)
    if wrong.any():
        client, column = wrong.nonzero()[0].tolist()
        raise DataError(
            f"client {federation.client_name(client)} has {part} label "
            f"{int(split.y[client, column])}: labels run from 0 to {high - 1}"
        )
    foreign = ~federation.classes.gather(1, split.y) & split.mask
    if foreign.any():
        client, column = foreign.nonzero()[0].tolist()
        raise DataError(
            f"client {federation.client_name(client)} has {part} label "
            f"{int(split.y[client, column])}, which is not among its classes: "
            "add it to `classes` or drop the sample"
        )


def _check_held(federation: "Federation") -> None:
    train = federation.train
    held = torch.zeros(federation.num_outputs, dtype=torch.bool, device=train.y.device)
    held[train.y[train.mask]] = True
    lost = (federation.classes & ~held).nonzero().tolist()
    if lost:
        client, label = lost[0]
        raise DataError(
            f"client {federation.client_name(client)} has class {label} in its task, but nobody "
            "holds a training sample of it: add samples, or take the class out of `classes`"
        )


def check_names(names: Sequence[str] | None, clients: int) -> None:
    """One name for each client, and no name twice.

    Raises:
        DataError: there are too few or too many, or two are the same.
    """
    if names is None:
        return
    if len(names) != clients:
        raise DataError(f"{len(names)} client_names for {clients} clients: give a name per client")
    if twice := sorted({str(name) for name in names if names.count(name) > 1}):
        raise DataError(
            f"client_names has {twice[0]!r} {names.count(twice[0])} times: give each client a name "
            "of its own"
        )


def _check_graph(federation: "Federation") -> None:
    clients, truth, groups = federation.num_clients, federation.truth, federation.groups
    if groups is not None and tuple(groups.shape) != (clients,):
        raise DataError(f"groups has shape {tuple(groups.shape)}: give one number per client")
    check_names(federation.client_names, clients)
    if truth is None:
        return
    if tuple(truth.shape) != (clients, clients):
        raise DataError(f"truth has shape {tuple(truth.shape)}, not ({clients}, {clients})")
    wrong = ~((truth >= 0) & truth.isfinite())
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise DataError(
            f"truth[{row}, {column}] = {float(truth[row, column])}: give a weight of 0 or more"
        )
    sums = truth.sum(dim=1)
    if bool(((sums - 1).abs() > 1e-6).any()):
        row = int((sums - 1).abs().argmax())
        raise DataError(
            f"truth is not a graph with rows that sum to one (row {row} sums to "
            f"{float(sums[row]):.6g}): divide each row by its sum"
        )
