"""Validation samples out of the training samples, for methods that judge by them."""

from dataclasses import replace

import torch

from scool.data.build import pad_rows
from scool.data.federation import Federation, Split
from scool.errors import DataError, require
from scool.randomness import generator


def with_validation(federation: Federation, fraction: float, seed: int) -> Federation:
    """The same clients, each with a share of its training samples set aside (one at least).

    Clients that have validation samples already keep them and their training samples.

    Raises:
        DataError: a client has a single sample: nothing is left to train on.
    """
    require(0 < fraction < 1, "validation", fraction, "give a fraction between 0 and 1")
    train, val = federation.train, federation.val
    kept, held = [], []
    for client, size in enumerate(train.sizes.tolist()):
        rows = train.mask[client].nonzero()[:, 0]
        count = 0 if bool(val.mask[client].any()) else max(1, int(fraction * size + 1e-9))
        if count >= size:
            raise DataError(
                f"client {federation.client_name(client)} has {size} training sample: the method "
                "needs one to learn from and one to judge by. Give the client more samples, leave "
                "it out, or choose a method that needs no validation data"
            )
        chosen = torch.zeros(size, dtype=torch.bool)
        rng = generator(seed, "validation", client)
        chosen[torch.randperm(size, generator=rng)[:count]] = True
        kept.append(rows[~chosen])
        held.append(rows[chosen])
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


def _part(split: Split, rows: list[torch.Tensor], stand_in: list[torch.Tensor]) -> Split:
    columns, mask = pad_rows(rows, stand_in)
    clients = torch.arange(len(rows))[:, None]
    return Split(split.x, split.index[clients, columns], mask, split.y[clients, columns])
