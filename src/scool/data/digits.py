"""The 8x8 handwritten digits that scikit-learn carries: real data without a download.

1,797 images of the UCI test set "Optical Recognition of Handwritten Digits" (Alpaydin, Kaynak).
"""

import torch
from torch import Tensor

from scool.data import partition
from scool.data.build import from_partition, group_graph, group_task, hold_out, pad_rows, within
from scool.data.federation import Federation, Split, Truth
from scool.errors import require
from scool.randomness import generator

TEST_SIZE = 357  # a fifth; the other 1,440 serve 40 clients of up to 36


def digits(
    num_clients: int = 40,
    groups: int = 4,
    samples_per_client: int = 24,
    *,
    seed: int = 0,
    val_fraction: float = 0.0,
) -> Federation:
    """Groups that label the digits differently: cooperation helps inside a group and hurts across.

    Every group has its own random permutation of the ten labels; client i is in group
    i % groups. Clients hold disjoint images with the classes about balanced, and are tested on a
    common held-out pool with the labels of their own group.

    >>> digits(num_clients=8, groups=2).train.sizes.tolist()
    [24, 24, 24, 24, 24, 24, 24, 24]
    """
    x, y = digit_images()
    pool, held_out = split_pool(y, seed)
    _check_sizes(num_clients, groups, samples_per_client, len(pool))
    group = torch.arange(num_clients) % groups
    names = [
        torch.randperm(10, generator=generator(seed, "digits", "names", g)) for g in range(groups)
    ]
    named = torch.stack(names)[group][:, y]  # (K, 1797) every digit as client i labels it

    def split(index: Tensor, mask: Tensor) -> Split:
        return Split(x, index, mask, named.gather(1, index))

    rows = _deal(pool, y, num_clients, samples_per_client, seed)
    train_rows, val_rows = hold_out(rows, val_fraction, seed)
    train = split(*pad_rows(train_rows))
    classes = group_task(train, group, 10)
    return Federation(
        name="digits/permuted",
        train=train,
        val=within(split(*pad_rows(val_rows, train_rows)), classes),
        test=within(split(*pad_rows([held_out] * num_clients)), classes),
        classes=classes,
        truth=group_graph(group),
        groups=group,
        class_names=tuple(str(c) for c in range(10)),
    )


def _check_sizes(num_clients: int, groups: int, samples_per_client: int, available: int) -> None:
    require(
        0 < num_clients <= available,
        "clients",
        num_clients,
        f"give 1 to {available}, as many as there are training digits",
    )
    require(
        0 < groups <= num_clients,
        "groups",
        groups,
        f"give 1 to {num_clients}",
    )
    require(
        0 < samples_per_client <= available // num_clients,
        "samples_per_client",
        samples_per_client,
        f"{num_clients} clients x {samples_per_client} samples do not fit the {available} training "
        f"digits; give 1 to {available // num_clients}, or fewer clients",
    )


def digits_by_class(
    kind: str,
    num_clients: int = 40,
    *,
    classes_per_client: int = 2,
    samples_per_client: int = 0,
    alpha: float = 0.5,
    unequal: bool = False,
    truth_kind: Truth = "identical",
    seed: int = 0,
    val_fraction: float = 0.0,
) -> Federation:
    """The digits with their usual labels, shared out by `noniid`, `sbm`, `pathological`,
    `dirichlet` or `iid`."""
    x, y = digit_images()
    pool, held_out = split_pool(y, seed)
    labels = y[pool]
    parts = partition.share_out(kind, labels, num_clients, classes_per_client, alpha, seed, unequal)
    if samples_per_client:
        parts = partition.keep_some(parts, labels, samples_per_client, seed)
    return from_partition(
        f"digits/{kind}",
        x[pool],
        labels,
        x[held_out],
        y[held_out],
        parts,
        truth_kind=None if kind == "dirichlet" else truth_kind,
        val_fraction=val_fraction,
        seed=seed,
        class_names=tuple(str(c) for c in range(10)),
    )


def digit_images() -> tuple[Tensor, Tensor]:
    """(1797, 64) float32 pixels in [0, 1] and (1797,) labels."""
    from sklearn.datasets import load_digits  # takes a second to import

    pixels, labels = load_digits(return_X_y=True)
    return torch.from_numpy(pixels).float() / 16, torch.from_numpy(labels).long()  # counts 0 to 16


def split_pool(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Rows for training and a held-out pool with the same class balance."""
    order = _interleave(torch.arange(len(labels)), labels, seed, "digits/test")
    held_out = order[:TEST_SIZE].sort().values
    return order[TEST_SIZE:].sort().values, held_out


def _deal(pool: Tensor, labels: Tensor, clients: int, size: int, seed: int) -> list[Tensor]:
    """Disjoint hands of `size` rows, classes about balanced, in a random order of clients."""
    order = _interleave(pool, labels, seed, "digits/deal")[: clients * size]
    hands = order.view(clients, size)
    shuffled = torch.randperm(clients, generator=generator(seed, "digits", "hands"))
    return list(hands[shuffled])


def _interleave(rows: Tensor, labels: Tensor, seed: int, purpose: str) -> Tensor:
    """A random order in which every stretch has the classes in about the same proportion."""
    rng = generator(seed, purpose)
    rows = rows[torch.randperm(len(rows), generator=rng)]
    place = torch.rand(len(rows), generator=rng)
    for label in labels.unique():
        own = (labels[rows] == label).nonzero().flatten()
        place[own] = (place[own] + torch.arange(len(own))) / len(own)  # spread over (0, 1)
    return rows[place.argsort(stable=True)]
