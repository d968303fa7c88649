"""A federation as one owner sees it: all members by name, samples only of its own."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scool.data.federation import Federation, Split
from scool.engine.ranks.placement import Shard
from scool.errors import DataError

PARTS = ("train", "val", "test")


class About(NamedTuple):
    """What an owner tells all others about its data."""

    sizes: Mapping[str, int]  # samples of each part
    targets: tuple[list[float], list[float]] | None = None
    """Regression: mean and sum of squared deviations of the training targets, per output."""
    held_out: tuple[list[float], list[float]] | None = None
    """The same of the validation targets, where there are any."""


def about(own: Federation) -> About:
    """What the owner of a federation of one client tells."""
    sizes = {part: int(getattr(own, part).sizes[0]) for part in PARTS}
    if own.task == "classification":
        return About(sizes)
    return About(sizes, _targets(own.train), _targets(own.val) if sizes["val"] else None)


def _targets(split: Split) -> tuple[list[float], list[float]]:
    y = split.y[0][split.mask[0]].double()
    mean = y.mean(dim=0)
    return mean.tolist(), (y - mean).square().sum(dim=0).tolist()


def widths_of(members: Iterable[About]) -> dict[str, int]:
    """The most samples that a member has of each part."""
    sizes = [member.sizes for member in members]
    return {part: max(size[part] for size in sizes) for part in PARTS}


def pooled_variance(members: Sequence[About], are_joined: bool = False) -> float:
    r"""Variance of all training targets, summed over outputs: $\frac1n \sum_k [S_k + n_k
    (\mu_k - \mu)^2]$ with each owner's $n_k$, $\mu_k$ and sum of squared deviations $S_k$;
    `are_joined`: with the validation targets among them."""
    told = [(m.sizes["train"], *m.targets) for m in members if m.targets]
    if are_joined:
        told += [(m.sizes["val"], *m.held_out) for m in members if m.held_out]
    if not told:
        return 0.0
    n, mean, squares = (torch.tensor(part, dtype=torch.float64) for part in zip(*told, strict=True))
    centre = (n[:, None] * mean).sum(dim=0) / n.sum()
    return float((squares + n[:, None] * (mean - centre).square()).sum() / n.sum())


def alone(own: Federation, place: int, names: Sequence[str], widths: Mapping[str, int]) -> Shard:
    """The federation of all members, with the samples of the owner in `place` and no others.

    Args:
        own: a federation of one client.
        names: of all members, in the order of their places.
        widths: of `widths_of` all members. Own samples are padded to it, as they are where one
            process holds everybody.

    Raises:
        DataError: `own` has another number of clients.
    """
    if own.num_clients != 1:
        raise DataError(f"the data of one owner have {own.num_clients} clients: give exactly one")
    return Shard(
        name=own.name,
        train=_widened(own.train, place, len(names), widths["train"]),
        val=_widened(own.val, place, len(names), widths["val"]),
        test=_widened(own.test, place, len(names), widths["test"]),
        classes=own.classes.expand(len(names), -1).clone(),
        task=own.task,
        transform=own.transform,
        client_names=tuple(names),
        class_names=own.class_names,
        preprocessing=own.preprocessing,
    )


def _widened(split: Split, place: int, clients: int, width: int) -> Split:
    """(K, width): the samples in one row; padding repeats the first one."""
    size = int(split.sizes[0])
    order = split.mask[0].to(torch.int8).argsort(descending=True, stable=True)[:size]
    width = max(1, width, size)

    def pad(rows: Tensor, fill: Tensor) -> Tensor:
        out = fill.expand(clients, width, *rows.shape[2:]).clone()
        out[place, :size] = rows[0, order]
        return out

    mask = torch.zeros(clients, width, dtype=torch.bool)
    mask[place, :size] = True
    index, y = (pad(rows, rows[0, 0]) for rows in (split.index, split.y))
    return Split(split.x, index, mask, y)
