"""A checkpoint in parts: one file for every rank, and one for what all ranks hold alike.

The common file is written last: while it is not there, neither is the checkpoint. It names the
rank of every client, so that any number of ranks can take their clients out of the parts.
"""

from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import Tensor

from scool.errors import RunError
from scool.recording.checkpoint import Checkpoint
from scool.recording.disk import delete

HOLDER = "shards/holder"  # in the common file: (K,) the rank of each client
CLIENTS = "shards/clients"  # in a part: (n,) the clients whose rows it holds


def part_name(rounds: int, rank: int, ranks: int) -> str:
    return f"shard-{rounds:06d}-{rank}-of-{ranks}.safetensors"


def part_names(folder: Path, rounds: int) -> list[str]:
    """The parts of a checkpoint that are there."""
    return sorted(file.name for file in folder.glob(f"shard-{rounds:06d}-*.safetensors"))


def forget_parts(folder: Path, before: int | None = None) -> None:
    """Delete the parts of checkpoints that are no longer there, or only of those before a round:
    a later one may be under way."""
    kept = {file.stem.split("-")[1] for file in folder.glob("checkpoint-*.safetensors")}
    for file in folder.glob("shard-*.safetensors"):
        rounds = file.stem.split("-")[1]
        is_over = before is None or (rounds.isdigit() and int(rounds) < before)
        if rounds not in kept and is_over:
            delete(file)


def take_rows(
    checkpoint: Checkpoint,
    load_part: Callable[[int, int], Checkpoint],
    clients: Tensor | None = None,
    stacked: Collection[str] | None = None,
) -> Checkpoint:
    """A checkpoint with the rows of the clients (n,) in all tensors that have one row per client.

    Args:
        checkpoint: a whole one, or the common file of one in parts.
        load_part: gives the part of a rank, of so many ranks.
        clients: whose rows; None: all, in order.
        stacked: the names of the tensors with a row per client; needed for a whole checkpoint, a
            part knows them.

    Raises:
        RunError: a part is missing or damaged. Nothing is changed.
    """
    tensors = dict(checkpoint.tensors)
    if HOLDER not in tensors:
        if clients is None:
            return checkpoint
        rows = {name: tensors[name][clients] for name in stacked or () if name in tensors}
        return Checkpoint(checkpoint.rounds, tensors | rows)
    holder = _checked(tensors[HOLDER], checkpoint.rounds)
    wanted = torch.arange(len(holder)) if clients is None else clients
    place = torch.full((len(holder),), -1, dtype=torch.int64)
    place[wanted] = torch.arange(len(wanted))
    ranks = int(holder.max()) + 1
    for rank in sorted(set(holder[wanted].tolist())):
        part = dict(load_part(rank, ranks).tensors)
        held = part.pop(CLIENTS, None)
        expected = (holder == rank).nonzero()[:, 0]
        if held is None or not torch.equal(held.sort().values, expected):
            raise RunError(
                f"{part_name(checkpoint.rounds, rank, ranks)} belongs to another checkpoint than "
                f"that of round {checkpoint.rounds}"
            )
        rows = place[held]
        here = rows >= 0
        for name, t in part.items():
            if name not in tensors:
                tensors[name] = t.new_empty(len(wanted), *t.shape[1:])
            tensors[name][rows[here]] = t[here]
    return Checkpoint(checkpoint.rounds, tensors)


def _checked(holder: Tensor, rounds: int) -> Tensor:
    is_list = holder.dim() == 1 and holder.dtype == torch.int64 and len(holder) > 0
    if not is_list or not 0 <= int(holder.min()) <= int(holder.max()) < len(holder):
        raise RunError(f"the checkpoint of round {rounds} does not say which rank holds whom")
    return holder
