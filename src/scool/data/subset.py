"""Parts of a federation: fewer clients, fewer samples, or validation in place of test samples."""

from dataclasses import replace
from typing import Any

import torch

from scool.data.build import group_graph
from scool.data.federation import Federation, Split
from scool.errors import require
from scool.randomness import generator


def validation_as_test(federation: Federation) -> Federation:
    """The clients with their validation samples where the test samples were, and none left to
    validate by. So a run can neither look at test samples nor train on those it is judged by."""
    val = federation.val
    return replace(federation, test=val, val=val._replace(mask=torch.zeros_like(val.mask)))


def some_clients(federation: Federation, count: int) -> Federation:
    """At most `count` clients, evenly spaced in the list, the first and the last included. Classes
    without a training sample are dropped."""
    require(count >= 1, "clients", count, "give at least 1")
    require(federation.preprocessing is None, "clients", count, "a table has columns by client")
    everybody = federation.num_clients
    if count >= everybody:
        return federation
    chosen = torch.linspace(0, everybody - 1, count).round().long()
    truth, groups = federation.truth, federation.groups
    if groups is not None:
        groups = groups[chosen].unique(return_inverse=True)[1]
    if truth is not None:  # rows sum to one again
        truth = truth[chosen][:, chosen]
        truth = group_graph(groups) if groups is not None else truth / truth.sum(1, keepdim=True)
    names = federation.client_names
    parts = {part: _rows(getattr(federation, part), chosen) for part in ("train", "val", "test")}
    return replace(
        federation,
        **_held(federation, parts, federation.classes[chosen]),
        truth=truth,
        groups=groups,
        client_names=None if names is None else tuple(names[k] for k in chosen.tolist()),
    )


def _rows(split: Split, chosen: torch.Tensor) -> Split:
    return Split(split.x, split.index[chosen], split.mask[chosen], split.y[chosen])


def at_most(federation: Federation, samples: int, seed: int) -> Federation:
    """At most `count` training samples per client, a seeded choice; test samples are kept."""
    require(samples >= 1, "samples", samples, "give at least 1")
    mask = federation.train.mask.clone()
    for client, own in enumerate(mask):
        rows = own.nonzero()[:, 0]
        order = torch.randperm(len(rows), generator=generator(seed, "at most", client))
        own[rows[order[samples:]]] = False
    train = _packed(federation.train._replace(mask=mask))
    parts = {"train": train, "val": federation.val, "test": federation.test}
    return replace(federation, **_held(federation, parts, federation.classes))


def _held(federation: Federation, parts: dict[str, Split], classes: torch.Tensor) -> dict[str, Any]:
    """The parts without the classes that have no training sample any more."""
    if federation.task == "regression":
        return {**parts, "classes": classes}
    train = parts["train"]
    held = torch.zeros(federation.num_outputs, dtype=torch.bool)
    held[train.y[train.mask]] = True
    kept = {name: part._replace(mask=part.mask & held[part.y]) for name, part in parts.items()}
    return {**kept, "classes": classes & held}


def _packed(split: Split) -> Split:
    """The same samples without unused columns; valid entries come first."""
    order = (~split.mask).long().argsort(dim=1, stable=True)[:, : int(split.sizes.max())]
    y = split.y
    if y.dim() == 3:
        y = y.gather(1, order[..., None].expand(-1, -1, y.shape[2]))
    else:
        y = y.gather(1, order)
    return Split(split.x, split.index.gather(1, order), split.mask.gather(1, order), y)
