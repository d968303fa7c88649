"""Who gets which sample: pure functions of (labels, clients, seed)."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scool.errors import ConfigError, DataError, require, unknown
from scool.randomness import derive, generator


class Parts(NamedTuple):
    """The samples of each client and its classes."""

    indices: list[Tensor]  # K tensors of rows, int64
    classes: Tensor  # (K, C) bool
    groups: Tensor | None = None  # (K,) where clients were planted in groups


def noniid(labels: Tensor, num_clients: int, classes_per_client: int, seed: int) -> Parts:
    """The paper's non-IID split: each client has N classes, each class is held by E clients.

    The samples of a class, in file order, are cut into E shards. For each s, the row of the s-th
    shards of all classes is shuffled and cut into R chunks of N; chunk r goes to client s R + r.
    """
    shards = _shards(labels, num_clients, classes_per_client)
    rng = generator(seed, "partition", "noniid")
    owned: list[list[Tensor]] = []
    for row in zip(*shards, strict=True):  # shard s of every class
        order = torch.randperm(len(row), generator=rng).tolist()
        for start in range(0, len(row), classes_per_client):
            owned.append([row[label] for label in order[start : start + classes_per_client]])
    return _collect(labels, [torch.cat(rows) for rows in owned])


def noniid_sbm(labels: Tensor, num_clients: int, classes_per_client: int) -> Parts:
    """The paper's non-IID SBM split: R groups of E clients, disjoint classes between groups.

    Group r owns classes r N to r N + N - 1; client r E + s gets shard s of each of them. Nothing in
    it is random.

    >>> noniid_sbm(torch.tensor([0, 1, 0, 1]), 2, 1).indices
    [tensor([0, 2]), tensor([1, 3])]
    """
    shards = _shards(labels, num_clients, classes_per_client)
    per_class = len(shards[0])
    indices, groups = [], []
    for start in range(0, len(shards), classes_per_client):
        for s in range(per_class):
            indices.append(torch.cat([shards[start + n][s] for n in range(classes_per_client)]))
            groups.append(start // classes_per_client)
    return _collect(labels, indices)._replace(groups=torch.tensor(groups))


def pathological(
    labels: Tensor, num_clients: int, classes_per_client: int, seed: int, unequal: bool = False
) -> Parts:
    """Any number N of classes for each client, every class with about as many holders.

    Clients in random order take the N classes that fewest hold yet, ties by chance. The samples of
    a class go to its holders in equal parts, or in parts proportional to draws from U(0.1, 1).

    >>> parts = pathological(torch.arange(10).repeat(6), 4, 3, seed=0)
    >>> parts.classes.sum(dim=1).tolist(), sorted(parts.classes.sum(dim=0).tolist())
    ([3, 3, 3, 3], [1, 1, 1, 1, 1, 1, 1, 1, 2, 2])
    """
    count = _num_classes(labels)
    remedy = f"give 1 to {count}, as many as there are"
    require(0 < classes_per_client <= count, "classes_per_client", classes_per_client, remedy)
    _require_enough(labels, num_clients, classes_per_client)
    rng = generator(seed, "partition", "pathological")
    held = torch.zeros(count, dtype=torch.int64)
    holders: list[list[int]] = [[] for _ in range(count)]
    for client in torch.randperm(num_clients, generator=rng).tolist():
        order = held + torch.rand(count, generator=rng)  # the number of holders outweighs chance
        taken = order.argsort()[:classes_per_client]
        held[taken] += 1
        for label in taken.tolist():
            holders[label].append(client)
    owned: list[list[Tensor]] = [[] for _ in range(num_clients)]
    for label, own in enumerate(holders):
        rows = (labels == label).nonzero().flatten()
        if len(rows) < len(own):
            raise ConfigError(
                f"class {label} has {len(rows)} samples for {len(own)} clients: give fewer clients "
                "or classes_per_client"
            )
        rows = rows[torch.randperm(len(rows), generator=rng)]
        for client, part in zip(own, _cut(rows, len(own), rng, unequal), strict=True):
            owned[client].append(part)
    return _collect(labels, [torch.cat(rows).sort().values for rows in owned])


def _cut(rows: Tensor, parts: int, rng: torch.Generator, unequal: bool) -> list[Tensor]:
    """Cut rows into parts of at least one row."""
    if not parts:
        return []
    share = torch.rand(parts, generator=rng) * 0.9 + 0.1 if unequal else torch.ones(parts)
    ends = share.cumsum(0) / share.sum() * (len(rows) - parts)
    cuts = ends.round().long() + torch.arange(1, parts + 1)
    return list(rows.tensor_split(cuts[:-1].tolist()))


def _shards(labels: Tensor, num_clients: int, classes_per_client: int) -> list[list[Tensor]]:
    """[class][s]: E consecutive shards of each class in file order; the last takes the rest."""
    count = _num_classes(labels)
    require(
        0 < classes_per_client <= count and count % classes_per_client == 0,
        "classes_per_client",
        classes_per_client,
        f"give a divisor of the {count} classes",
    )
    groups = count // classes_per_client  # R
    require(
        num_clients > 0 and num_clients % groups == 0,
        "clients",
        num_clients,
        f"{count} classes at {classes_per_client} per client need a multiple of {groups} clients; "
        f"give {max(1, round(num_clients / groups)) * groups} or another classes_per_client",
    )
    per_class = num_clients // groups  # E
    shards: list[list[Tensor]] = []
    for label in range(count):
        rows = (labels == label).nonzero().flatten()
        size = len(rows) // per_class
        if size == 0:
            raise ConfigError(
                f"class {label} has {len(rows)} samples for {per_class} clients: "
                f"give at most {len(rows) * groups} clients"
            )
        cuts = [size * s for s in range(1, per_class)]
        shards.append(list(rows.tensor_split(cuts)))
    return shards


def dirichlet(
    labels: Tensor, num_clients: int, alpha: float, seed: int, min_size: int = 1
) -> Parts:
    """Each class is spread over the clients by a draw from Dirichlet(alpha, ..., alpha).

    No draw is repeated: clients left with fewer than `min_size` samples take
    one after another from the client that has most, so 1,000 clients take no longer than 10.
    """
    require(alpha > 0, "dirichlet_alpha", alpha, "give a positive number")
    _require_enough(labels, num_clients, min_size)
    rng = np.random.default_rng(derive(seed, "partition", "dirichlet"))
    owned: list[list[int]] = [[] for _ in range(num_clients)]
    for label in labels.unique().tolist():
        rows = rng.permutation((labels == label).nonzero().flatten().numpy())
        share = rng.dirichlet(np.full(num_clients, alpha))
        cuts = np.rint(np.cumsum(share)[:-1] * len(rows)).astype(int)
        for client, piece in enumerate(np.split(rows, cuts)):
            owned[client].extend(piece.tolist())
    for rows in owned:
        rng.shuffle(rows)  # a donor gives a random sample, not one of its last class
    _level(owned, min_size)
    return _collect(labels, [torch.tensor(sorted(rows)) for rows in owned])


def _level(owned: list[list[int]], min_size: int) -> None:
    """Move samples, in place, from the largest clients to those below `min_size`."""
    donors = [(-len(rows), client) for client, rows in enumerate(owned)]
    heapq.heapify(donors)
    for rows in owned:
        while len(rows) < min_size:
            size, donor = heapq.heappop(donors)
            rows.append(owned[donor].pop())
            heapq.heappush(donors, (size + 1, donor))


def iid(labels: Tensor, num_clients: int, seed: int) -> Parts:
    """Equal shares of one shuffled deck. The task of every client is all classes."""
    _require_enough(labels, num_clients, 1)
    order = torch.randperm(len(labels), generator=generator(seed, "partition", "iid"))
    parts = _collect(labels, [rows.sort().values for rows in order.tensor_split(num_clients)])
    return parts._replace(classes=parts.classes.any(dim=0).expand(num_clients, -1).clone())


def explicit(labels: Tensor, indices: Sequence[Sequence[int] | Tensor]) -> Parts:
    """The rows a person chose for each client."""
    rows = [torch.as_tensor(client, dtype=torch.int64) for client in indices]
    require(len(rows) > 0, "indices", [], "give one list of rows per client")
    for client, chosen in enumerate(rows):
        if len(chosen) == 0:
            raise DataError(f"client {client} has no sample: give it rows or leave it out")
        if int(chosen.min()) < 0 or int(chosen.max()) >= len(labels):
            raise DataError(
                f"client {client} asks for rows {int(chosen.min())} to {int(chosen.max())}: "
                f"there are {len(labels)} samples, rows 0 to {len(labels) - 1}"
            )
    return _collect(labels, rows)


def share_out(
    kind: str,
    labels: Tensor,
    num_clients: int,
    classes_per_client: int,
    alpha: float,
    seed: int,
    unequal: bool = False,
) -> Parts:
    """One of the partitions by name."""
    if kind == "pathological":
        return pathological(labels, num_clients, classes_per_client, seed, unequal)
    if kind == "noniid":
        return noniid(labels, num_clients, classes_per_client, seed)
    if kind == "sbm":
        return noniid_sbm(labels, num_clients, classes_per_client)
    if kind == "dirichlet":
        return dirichlet(labels, num_clients, alpha, seed)
    if kind == "iid":
        return iid(labels, num_clients, seed)
    unknown("partition", kind, ("noniid", "sbm", "pathological", "dirichlet", "iid"))


def keep_some(parts: Parts, labels: Tensor, size: int, seed: int) -> Parts:
    """At most `size` samples of each client, a seeded choice."""
    kept = []
    for client, rows in enumerate(parts.indices):
        rng = generator(seed, "partition", "keep", client)
        kept.append(rows[torch.randperm(len(rows), generator=rng)[:size].sort().values])
    left = _collect(labels, kept)
    held = left.classes.any(dim=0)  # a task keeps its classes as long as someone holds them
    return Parts(kept, parts.classes & held, parts.groups)


def _require_enough(labels: Tensor, num_clients: int, min_size: int) -> None:
    require(num_clients > 0, "clients", num_clients, "a federation has at least one client")
    require(min_size > 0, "min_size", min_size, "each client needs at least one sample")
    require(
        num_clients * min_size <= len(labels),
        "clients",
        num_clients,
        f"{len(labels)} samples serve at most {len(labels) // min_size} clients "
        f"with {min_size} or more each",
    )


def _num_classes(labels: Tensor) -> int:
    return int(labels.max()) + 1


def _collect(labels: Tensor, indices: list[Tensor]) -> Parts:
    classes = torch.zeros(len(indices), _num_classes(labels), dtype=torch.bool)
    for client, rows in enumerate(indices):
        classes[client, labels[rows]] = True
    return Parts(indices, classes)
