"""Your own data: a list of arrays or torch datasets, one entry per client."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from scool.data.array_reading import Part, Parts, check_shapes, read_client, with_inputs
from scool.data.build import group_graph, hold_out, pad_rows, true_graph
from scool.data.doubts import warn_doubts
from scool.data.federation import Federation, Split, Task, Truth, check_names
from scool.data.transform import ImageTransform
from scool.errors import DataError, check_kind, require, unknown

MOST_CLASSES = 100_000  # found in the labels; with more they must be ids, not numbers from 0 on


def from_arrays(
    clients: Iterable[Any],
    *,
    name: str = "own data",
    task: Task = "classification",
    num_classes: int | None = None,
    classes: Tensor | Literal["all", "own"] | None = None,
    truth: Tensor | Truth | None = None,
    groups: Sequence[int] | Sequence[str] | Tensor | None = None,
    test_fraction: float = 0.2,
    val_fraction: float = 0.0,
    seed: int = 0,
    transform: ImageTransform | None = None,
    tokens: bool = False,
    client_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> Federation:
    """A federation from the data of each client, numpy or torch, of any sizes.

    Args:
        clients: one entry per client: `(x, y)`, `(x_train, y_train, x_test, y_test)`, a mapping
            with those names (also x_val, y_val; or x, y), a torch Dataset of (x, y) pairs, or two
            of them (train, test).
        name: what reports call it.
        task: `regression` takes float targets of shape (n,) or (n, outputs).
        num_classes: default: the largest label plus one; labels are whole numbers from 0 on.
        classes: which classes a client's model may answer with: by default `all` that any client
            has, its `own` (the labels in its parts, the protocol of the paper), or (K, C) bool.
        truth: (K, K) rows that sum to one, or a rule such as `identical` to derive it from classes.
        groups: a number or a name per client; gives the truth where `truth` is absent.
        test_fraction: share of the samples set aside where a client brings no test data.
        val_fraction: share of the training samples set aside where it brings no validation data.
        seed: for the choice of these samples.
        transform: required for uint8 images.
        tokens: inputs are whole numbers and stay so, for a model that begins with an embedding;
            else they become floats.
        client_names: for messages and reports.
        class_names: one per class.

    >>> import numpy as np
    >>> own = [(np.zeros((5, 3)), np.array([0, 1, 0, 1, 1])) for _ in range(4)]
    >>> from_arrays(own).train.sizes.tolist()
    [4, 4, 4, 4]
    """
    if task not in ("classification", "regression"):
        unknown("task", task, ("classification", "regression"))
    check_kind("test_fraction", test_fraction, float)
    check_kind("val_fraction", val_fraction, float)
    check_kind("seed", seed, int)
    try:
        clients = list(clients)
    except TypeError:
        raise DataError(
            f"clients = {clients!r} is not possible: give a list, one entry per client"
        ) from None
    if len(clients) == 0:
        raise DataError("there are no clients: give a list with the data of at least one")
    if num_classes is not None:
        require(num_classes >= 1, "num_classes", num_classes, "give at least 1")
    read = [read_client(client, number, task) for number, client in enumerate(clients)]
    read = [with_inputs(client, number, tokens) for number, client in enumerate(read)]
    check_shapes(read)
    _set_aside(read, "test", test_fraction, seed)
    _set_aside(read, "val", val_fraction, seed)
    names = None if client_names is None else tuple(client_names)
    check_names(names, len(read))
    warn_doubts(read, task, names)
    train, val, test = (_stack([own[part] for own in read]) for part in ("train", "val", "test"))
    held = _tasks(read, task, num_classes)
    group = None if groups is None else _group_ids(groups)
    asked = held if task == "regression" else _answers(classes, held)
    return Federation(
        name=name,
        train=train,
        val=val,
        test=test,
        classes=asked,
        task=task,
        truth=_truth(truth, group, asked if isinstance(classes, Tensor) else held),
        groups=group,
        transform=transform,
        client_names=names,
        class_names=None if class_names is None else tuple(class_names),
    )


def _set_aside(read: list[Parts], part: str, fraction: float, seed: int) -> None:
    """Give every client without this part some of its training samples for it, in place."""
    rows = [torch.arange(len(client["train"][1])) for client in read]
    kept, held = hold_out(rows, fraction, seed, part)
    for client, keep, hold in zip(read, kept, held, strict=True):
        if part not in client:
            x, y = client["train"]
            client[part] = (x[hold], y[hold])
            client["train"] = (x[keep], y[keep])


def _stack(parts: list[Part]) -> Split:
    """One pool of all clients' samples and each client's stretch of it."""
    x = torch.cat([x for x, _ in parts])
    y = torch.cat([y for _, y in parts])
    rows = list(torch.arange(len(y)).split([len(own) for _, own in parts]))
    if len(x) == 0:  # no client has this part: one blank row that all masks exclude
        x, y = x.new_zeros(1, *x.shape[1:]), y.new_zeros(1, *y.shape[1:])
    index, mask = pad_rows(rows)
    return Split(x, index, mask, y[index])


def _tasks(read: list[Parts], task: Task, num_classes: int | None) -> Tensor:
    if task == "regression":
        return torch.ones(len(read), read[0]["train"][1].shape[1], dtype=torch.bool)
    labels = [torch.cat([y for _, y in client.values()]) for client in read]
    count = num_classes or _count_classes(labels)
    classes = torch.zeros(len(read), count, dtype=torch.bool)
    for client, own in enumerate(labels):
        classes[client, own[(own >= 0) & (own < count)]] = True  # the rest is refused by `check`
    return classes


def _answers(classes: Any, held: Tensor) -> Tensor:
    """(K, C) the classes that each client's model may answer with."""
    if isinstance(classes, Tensor):
        return classes
    remedy = "give 'all', 'own', or a (K, C) boolean tensor"
    require(classes in (None, "all", "own"), "classes", classes, remedy)
    return held if classes == "own" else held.any(dim=0).expand_as(held).clone()


def _count_classes(labels: list[Tensor]) -> int:
    """The largest label plus one; labels that are ids of something else are refused."""
    largest = max((int(own.max()) for own in labels if len(own)), default=0)
    samples = sum(len(own) for own in labels)
    if largest >= min(MOST_CLASSES, max(10 * samples, 100)):
        client = next(n for n, own in enumerate(labels) if len(own) and int(own.max()) == largest)
        raise DataError(
            f"client {client} has label {largest}, which makes {largest + 1} classes for {samples} "
            "samples: encode labels as 0..C-1, or give num_classes if there are as many"
        )
    return max(largest, 0) + 1


def _group_ids(groups: Any) -> Tensor:
    """(K,) a number per client; names are numbered in the order of their appearance."""
    if isinstance(groups, Sequence | np.ndarray) and all(isinstance(g, str) for g in groups):
        ids = {name: number for number, name in enumerate(dict.fromkeys(groups))}
        return torch.tensor([ids[name] for name in groups])
    try:
        found = torch.as_tensor(groups)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"groups = {groups!r:.60} cannot be read ({error}): give a number or a name per client"
        ) from error
    if found.dim() != 1:
        raise DataError(f"groups has shape {tuple(found.shape)}: give a number per client")
    if not bool(found.isfinite().all()):
        raise DataError("groups holds a number that is not finite: give a whole number per client")
    return found


def _truth(truth: Any, group: Tensor | None, classes: Tensor) -> Tensor | None:
    if isinstance(truth, str):
        return true_graph(classes, truth)  # pyright: ignore[reportArgumentType]
    if truth is not None:
        try:
            return torch.as_tensor(truth).double()
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"truth cannot be read ({error}): give a (K, K) array of numbers, or a rule"
            ) from error
    return None if group is None else group_graph(group)
