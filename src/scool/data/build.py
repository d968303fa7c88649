"""From labelled data and a partition to a federation; validation samples; true graphs."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scool.data.federation import Federation, Split, Truth
from scool.data.partition import Parts
from scool.data.transform import ImageTransform
from scool.errors import DataError, require, unknown
from scool.randomness import generator


def from_partition(
    name: str,
    x_train: Tensor,
    y_train: Tensor,
    x_test: Tensor,
    y_test: Tensor,
    parts: Parts,
    *,
    truth_kind: Truth | None = "identical",
    val_fraction: float = 0.0,
    seed: int = 0,
    transform: ImageTransform | None = None,
    class_names: tuple[str, ...] | None = None,
    test_fraction: float = 0.0,
) -> Federation:
    """A federation over one labelled dataset.

    Args:
        name: what reports call it.
        x_train: (P, ...) the pool that training and validation samples come from.
        y_train: (P,) labels.
        x_test: (Q, ...) the test pool; a client is tested on all samples of its classes.
        y_test: (Q,) labels.
        parts: which rows each client has, see `scool.data.partition`.
        truth_kind: which clients should cooperate; None if unknown.
        val_fraction: share of each client's samples set aside for validation.
        seed: for the choice of the validation samples.
        transform: how uint8 images become network inputs.
        class_names: one per class.
        test_fraction: where it is positive, a client is tested on that share of its own rows, and
            the test pool is not used.
    """
    rows = parts.indices
    if test_fraction:
        rows, test_rows = hold_out(rows, test_fraction, seed, "test")
        x_test, y_test = x_train, y_train
    else:
        test_rows = [own[y_test].nonzero().flatten() for own in parts.classes]
    train_rows, val_rows = hold_out(rows, val_fraction, seed)
    classes = parts.classes
    if test_fraction:  # no client may have kept a training sample of a class
        held = torch.zeros(classes.shape[1], dtype=torch.bool)
        held[y_train[torch.cat(train_rows)]] = True
        classes = classes & held
        val_rows, test_rows = ([r[held[y_train[r]]] for r in p] for p in (val_rows, test_rows))
    return Federation(
        name=name,
        train=share_pool(x_train, y_train, train_rows),
        val=share_pool(x_train, y_train, val_rows, train_rows),
        test=share_pool(x_test, y_test, test_rows),
        classes=classes,
        truth=None if truth_kind is None else true_graph(classes, truth_kind),
        groups=parts.groups,
        transform=transform,
        class_names=class_names,
    )


def hold_out(
    rows: list[Tensor], fraction: float, seed: int, purpose: str = "validation"
) -> tuple[list[Tensor], list[Tensor]]:
    """Split each client's rows by a seeded choice; the first part always keeps one row or more.

    >>> [len(part[0]) for part in hold_out([torch.arange(10)], 0.2, seed=0)]
    [8, 2]
    """
    field = "val_fraction" if purpose == "validation" else f"{purpose}_fraction"
    require(0 <= fraction < 1, field, fraction, "give a number in [0, 1)")
    kept: list[Tensor] = []
    held: list[Tensor] = []
    for client, own in enumerate(rows):
        count = min(int(fraction * len(own)), max(len(own) - 1, 0))
        chosen = torch.zeros(len(own), dtype=torch.bool)
        rng = generator(seed, purpose, client)
        chosen[torch.randperm(len(own), generator=rng)[:count]] = True
        kept.append(own[~chosen])
        held.append(own[chosen])
    return kept, held


def share_pool(
    x: Tensor, y: Tensor, rows: list[Tensor], stand_in: list[Tensor] | None = None
) -> Split:
    """Clients as rows of one pool, padded to equal length.

    Padding repeats the client's own first row, so that a bad number of one client never reaches
    another; a client with no row at all borrows the first of `stand_in`.
    """
    index, mask = pad_rows(rows, stand_in)
    return Split(x, index, mask, y[index])


def group_task(train: Split, groups: Tensor, num_classes: int) -> Tensor:
    """(K, C): the classes that someone of the client's group has a training sample of."""
    held = torch.zeros(int(groups.max()) + 1, num_classes, dtype=torch.bool)
    held[groups[:, None].expand_as(train.y)[train.mask], train.y[train.mask]] = True
    return held[groups]


def within(split: Split, classes: Tensor) -> Split:
    """Only the samples of each client's own classes."""
    return split._replace(mask=split.mask & classes.gather(1, split.y))


def pad_rows(rows: list[Tensor], stand_in: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """(K, N) indices and mask of K lists of rows, N >= 1."""
    sizes = torch.tensor([len(own) for own in rows])
    first = [
        own[:1] if len(own) else (stand_in[client][:1] if stand_in else torch.zeros(1).long())
        for client, own in enumerate(rows)
    ]
    filled = [own if len(own) else first[client] for client, own in enumerate(rows)]
    index = pad_sequence(filled, batch_first=True)
    mask = torch.arange(index.shape[1])[None, :] < sizes[:, None]
    return torch.where(mask, index, torch.stack(first)), mask


def with_validation(
    federation: Federation, fraction: float, seed: int, first: int = 0, of_all: bool = True
) -> Federation:
    """The same clients, each with a share of its training samples set aside (one at least).

    Clients that have validation samples already keep them and their training samples. `first` is
    the number of the first client, where these are some of many. With `of_all=False` clients that
    have none stay without where others have some, and so does one with a single sample, or with the
    last samples of a class.

    Raises:
        DataError: a client has a single sample: nothing is left to train on. With `of_all=False`
            only where nobody has more.
    """
    require(0 < fraction < 1, "validation", fraction, "give a fraction between 0 and 1")
    train, val = federation.train, federation.val
    if not of_all and bool(val.mask.any()):
        return federation
    spares = not of_all and int(train.sizes.max()) > 1
    kept, held = [], []
    for client, size in enumerate(train.sizes.tolist()):
        rows = train.mask[client].nonzero()[:, 0]
        count = 0 if bool(val.mask[client].any()) else max(1, int(fraction * size + 1e-9))
        if size == 1 and spares:
            count = 0
        if count >= size:
            raise DataError(
                f"client {federation.client_name(client)} has {size} training sample, and one to "
                "learn from and one to judge by are needed. Give the client more samples, leave it "
                "out (min_rows of a table), or choose a method and options without validation"
            )
        chosen = torch.zeros(size, dtype=torch.bool)
        rng = generator(seed, "validation", first + client)
        chosen[torch.randperm(size, generator=rng)[:count]] = True
        kept.append(rows[~chosen])
        held.append(rows[chosen])
    if not of_all and federation.task == "classification":
        _keep_last(train.y, kept, held)
    if not any(len(rows) for rows in held):
        return federation
    if bool(val.mask.any()):
        few = [client for client, rows in enumerate(held) if len(rows)]
        raise DataError(
            f"client {federation.client_name(few[0])} has no validation samples and others have: "
            "give all clients some (a larger --val-fraction), or none"
        )
    try:
        return replace(federation, train=_part(train, kept, kept), val=_part(train, held, kept))
    except DataError as error:
        reason = f"setting {fraction:g} of the samples aside for validation leaves too few"
        raise DataError(f"{reason}: {error}") from error


def _keep_last(y: Tensor, kept: list[Tensor], held: list[Tensor]) -> None:
    """Give samples back, in place, whose class nobody would learn any more: one of each."""
    trained = {int(label) for i, rows in enumerate(kept) for label in y[i, rows].unique()}
    for i, rows in enumerate(held):
        for row, label in zip(rows.tolist(), y[i, rows].tolist(), strict=True):
            if label not in trained:
                trained.add(label)
                held[i] = held[i][held[i] != row]
                kept[i] = torch.cat([kept[i], torch.tensor([row])]).sort().values


def without_validation(federation: Federation) -> Federation:
    """The same clients, with their validation samples among the training samples."""
    train, val = federation.train, federation.val
    is_shared = train.x.data_ptr() == val.x.data_ptr() and len(train.x) == len(val.x)
    x, offset = (train.x, 0) if is_shared else (torch.cat([train.x, val.x]), len(train.x))
    index = torch.cat([train.index, val.index + offset], dim=1)
    mask, y = torch.cat([train.mask, val.mask], dim=1), torch.cat([train.y, val.y], dim=1)
    rows = [own.nonzero()[:, 0] for own in mask.cpu()]
    joined = _part(Split(x, index, mask, y), rows, rows)
    nobody = [own[:0] for own in rows]
    return replace(federation, train=joined, val=_part(joined, nobody, rows))


def _part(split: Split, rows: list[Tensor], stand_in: list[Tensor]) -> Split:
    columns, mask = pad_rows(rows, stand_in)
    clients = torch.arange(len(rows))[:, None]
    return Split(split.x, split.index[clients, columns], mask, split.y[clients, columns])


# ---------------------------------------------------------------------- true graphs


def true_graph(classes: Tensor, kind: Truth) -> Tensor:
    """The graph a perfect method would find, from the class sets of the clients.

    Args:
        classes: (K, C) bool.
        kind: which clients should cooperate: `identical` class sets, any `overlap`, or in
            proportion to the `fraction` of classes they share, or to its square (`squared`).

    Returns:
        (K, K) float64, rows sum to one, self included.

    >>> true_graph(torch.tensor([[1, 1, 0], [1, 1, 0], [0, 1, 1]]).bool(), "fraction")[2].tolist()
    [0.25, 0.25, 0.5]
    """
    common = classes.double() @ classes.double().T
    if kind == "identical":
        size = classes.sum(dim=1)
        weight = ((common == size[:, None]) & (common == size[None, :])).double()
    elif kind == "overlap":
        weight = (common > 0).double()
    elif kind == "fraction":
        weight = common
    elif kind == "squared":
        weight = common**2
    else:
        unknown("truth", kind, ("identical", "overlap", "fraction", "squared"))
    return weight / weight.sum(dim=1, keepdim=True)


def group_graph(groups: Tensor) -> Tensor:
    """The true graph of planted groups: (K, K) float64, equal weights inside a group.

    >>> group_graph(torch.tensor([0, 1, 0]))[0].tolist()
    [0.5, 0.0, 0.5]
    """
    same = (groups[:, None] == groups[None, :]).double()
    return same / same.sum(dim=1, keepdim=True)
