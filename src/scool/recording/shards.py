"""A checkpoint in parts: one file for every rank, and one for what all ranks hold alike.

The common file is written last: while it is not there, neither is the checkpoint. It names the
rank of every client, so that any number of ranks can take their clients out of the parts.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from scool.errors import RunError
from scool.recording.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

HOLDER = "shards/holder"  # in the common file: (K,) the rank of each client
CLIENTS = "shards/clients"  # in a part: (n,) the clients whose rows it holds


def _part(folder: Path, rounds: int, rank: int, ranks: int) -> Path:
    return folder / f"shard-{rounds:06d}-{rank}-of-{ranks}.safetensors"


def save_part(
    folder: Path, rounds: int, rank: int, ranks: int, clients: Tensor, rows: Mapping[str, Tensor]
) -> None:
    """The rows of the clients (n,) that one rank holds."""
    save_checkpoint(_part(folder, rounds, rank, ranks), rounds, {**rows, CLIENTS: clients})


def forget_parts(folder: Path) -> None:
    """Delete the parts of checkpoints that are no longer there."""
    kept = {file.stem.split("-")[1] for file in folder.glob("checkpoint-*.safetensors")}
    for file in folder.glob("shard-*.safetensors"):
        if file.stem.split("-")[1] not in kept:
            file.unlink(missing_ok=True)


def take_rows(
    checkpoint: Checkpoint,
    folder: Path,
    clients: Tensor | None = None,
    stacked: Collection[str] | None = None,
) -> Checkpoint:
    """A checkpoint with the rows of the clients (n,) in all tensors that have one row a client.

    Args:
        checkpoint: a whole one, or the common file of one in parts.
        clients: whose rows; None: all, in order.
        stacked: the names of the tensors with a row a client; needed for a whole checkpoint, a
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
    holder = tensors.pop(HOLDER)
    wanted = torch.arange(len(holder)) if clients is None else clients
    place = torch.full((len(holder),), -1, dtype=torch.int64)
    place[wanted] = torch.arange(len(wanted))
    ranks = int(holder.max()) + 1
    for rank in sorted(set(holder[wanted].tolist())):
        part = dict(_load_part(folder, checkpoint.rounds, rank, ranks, holder).tensors)
        rows = place[part.pop(CLIENTS)]
        here = rows >= 0
        for name, t in part.items():
            if name not in tensors:
                tensors[name] = t.new_empty(len(wanted), *t.shape[1:])
            tensors[name][rows[here]] = t[here]
    return Checkpoint(checkpoint.rounds, tensors)


def _load_part(folder: Path, rounds: int, rank: int, ranks: int, holder: Tensor) -> Checkpoint:
    path = _part(folder, rounds, rank, ranks)
    if not path.is_file():
        raise RunError(
            f"{path} is missing: the checkpoint of round {rounds} has {ranks} parts, and the "
            f"clients of rank {rank} are in this one. Put it back, or delete "
            f"checkpoint-{rounds:06d}.safetensors to go on from an earlier one"
        )
    part = load_checkpoint(path)
    expected = (holder == rank).nonzero()[:, 0]
    found = part.tensors.get(CLIENTS)
    if part.rounds != rounds or found is None or not torch.equal(found.sort().values, expected):
        raise RunError(
            f"{path} belongs to another checkpoint than checkpoint-{rounds:06d}.safetensors: "
            "delete both to go on from an earlier one"
        )
    return part
