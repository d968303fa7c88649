"""The whole state of a run as plain tensors: written atomically, verified when read. No pickle.

Of several ranks each writes a part, the rows of its clients; a common file holds what is equal on
all ranks. The common file is written last: while it is not there, neither is the checkpoint. It
names the rank of every client, so that any number of ranks can take their clients out of the parts.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import torch
from torch import Tensor

from scool.errors import RunError
from scool.graph.edges import Edges
from scool.recording.disk import delete
from scool.recording.seals import COUNT, OBJECT, check_kinds
from scool.recording.tensors import PARTS, TensorFile, from_tensors, to_tensors, write_tensors

S = TypeVar("S")
T = TypeVar("T")
HOLDER = "shards/holder"  # in the common file: (K,) the rank of each client
CLIENTS = "shards/clients"  # in a part: (n,) the clients whose rows it holds
IN_FLIGHT = 2  # copies of the state that may wait for the disk at a time


class Checkpoint(NamedTuple):
    """What a run needs to continue."""

    rounds: int  # rounds completed
    tensors: dict[str, Tensor]
    parts: Mapping[str, str] = {}  # seals of the files with the rows of clients, by name


def flatten(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """Tensors of nested NamedTuples and dicts by path, e.g. `graph/w`. Edges are a matrix of few
    clients, else `graph/w/i`, `j`, `values` and `fill`."""
    if isinstance(state, Tensor):
        return {prefix: state}
    if isinstance(state, Edges):
        return {f"{prefix}{name}": t for name, t in to_tensors(state).items()}
    items = state.items() if isinstance(state, Mapping) else state._asdict().items()
    flat: dict[str, Tensor] = {}
    for name, value in items:
        flat |= flatten(value, f"{prefix}/{name}" if prefix else str(name))
    return flat


def unflatten(
    template: S, tensors: Mapping[str, Tensor], prefix: str = "", clients: int | None = None
) -> S:
    """The same structure as `template`, on its devices, with the tensors of a checkpoint.

    Args:
        clients: whose state the tensors are, where these are not as many as in `template`; for
            `Method.grow`.

    Raises:
        RunError: a tensor is missing or has another shape.
    """
    if isinstance(template, Tensor):
        found = tensors.get(prefix)
        if found is None or not _fits(found, template, clients):
            words = "nothing" if found is None else tuple(found.shape)
            raise _misfit(prefix, words, tuple(template.shape))
        return found.to(template.device)  # type: ignore[return-value]
    if isinstance(template, Edges):
        return _edges_like(template, tensors, prefix, clients)  # type: ignore[return-value]
    join = f"{prefix}/" if prefix else ""
    if isinstance(template, Mapping):
        items = template.items()
        return {n: unflatten(v, tensors, join + n, clients) for n, v in items}  # type: ignore
    fields = template._asdict().items()  # type: ignore[attr-defined]
    return type(template)(**{n: unflatten(v, tensors, join + n, clients) for n, v in fields})


def _fits(found: Tensor, template: Tensor, clients: int | None) -> bool:
    """Whether the shapes agree, but for the number of clients."""
    sizes = zip(found.shape, template.shape, strict=False)
    return found.dim() == template.dim() and all(a in (b, clients) for a, b in sizes)


def _edges_like(
    template: Edges, tensors: Mapping[str, Tensor], prefix: str, clients: int | None
) -> Edges:
    count = clients or len(template)
    there = {name: tensors[prefix + name] for name in PARTS if prefix + name in tensors}
    try:
        found = from_tensors(there, count, template.fill)
        if found.values.shape[1:] != template.values.shape[1:]:
            raise ValueError(f"{tuple(found.values.shape)} numbers")
    except ValueError as error:
        raise _misfit(prefix, error, f"the pairs of {count} clients") from error
    return found


def _misfit(name: str, found: object, needed: object) -> RunError:
    return RunError(
        f"the checkpoint holds {found} for {name!r} where the run needs {needed}: it belongs to "
        "another configuration or version"
    )


def save_checkpoint(
    path: Path,
    rounds: int,
    tensors: Mapping[str, Tensor],
    run: str | None = None,
    parts: Mapping[str, str] | None = None,
) -> str:
    """Write a checkpoint; the file appears whole or not at all. Its seal.

    Args:
        parts: the seals of the files that hold the rest of it, by name.
    """
    about = {"rounds": rounds, "parts": dict(parts)} if parts else {"rounds": rounds}
    return write_tensors(path, "checkpoint", tensors, run, about)


def as_checkpoint(found: TensorFile, rounds: int) -> Checkpoint:
    """The content of a file, as the state after this many rounds.

    Raises:
        ValueError: it is the state after other rounds, or damaged.
    """
    about = found.about
    check_kinds(about, {"rounds": COUNT, "parts": OBJECT}, optional=["parts"])
    if found.seal is None and _digest(found.tensors, about["rounds"]) != about.get("sha256"):
        raise ValueError("its bytes do not match their checksum")
    if about["rounds"] != rounds:
        raise ValueError(f"it is the state after round {about['rounds']}")
    return Checkpoint(rounds, found.tensors, about.get("parts") or {})


def _digest(tensors: Mapping[str, Tensor], rounds: int) -> str:
    """The checksum of files of the first format."""
    sha = hashlib.sha256(f"scool-checkpoint-1/{rounds}".encode())
    for name in sorted(tensors):
        t = tensors[name].contiguous()
        sha.update(f"{name}/{t.dtype}/{tuple(t.shape)}".encode())
        sha.update(t.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


# ---------------------------------------------------------------------- in parts


def part_name(rounds: int, rank: int, ranks: int) -> str:
    return f"shard-{rounds:06d}-{rank}-of-{ranks}.safetensors"


def part_names(folder: Path, rounds: int) -> list[str]:
    """The parts of a checkpoint that exist."""
    return sorted(file.name for file in folder.glob(f"shard-{rounds:06d}-*.safetensors"))


def forget_parts(folder: Path, before: int | None = None) -> None:
    """Delete the parts of checkpoints that are no longer there; with `before`, only of those before
    that round, because a later one may be under way."""
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
        load_part: loads the part of a rank, given the number of ranks.
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


# ---------------------------------------------------------------------- beside the training


@final
class Background:
    """One thread that writes to the disk, job after job, while training continues. What fails there
    is raised with the next job, or by `flush`."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="scool-disk")
        self._jobs: deque[Future[object]] = deque()

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Add a job; waits while two are under way."""
        while self._jobs and (len(self._jobs) >= IN_FLIGHT or self._jobs[0].done()):
            self._jobs.popleft().result()
        future = self._pool.submit(job)
        self._jobs.append(future)  # type: ignore[arg-type]
        return future

    def flush(self) -> None:
        """Wait until all is done."""
        while self._jobs:
            self._jobs.popleft().result()

    def close(self) -> None:
        """Wait, and end the thread. Failures were raised before, or no longer matter."""
        self._jobs.clear()
        self._pool.shutdown(wait=True)


@final
class HostCopies:
    """Copies of the state in host memory, for a thread that writes them. The memory is reused:
    fresh memory costs thirty times the copy itself, as the system provides it page by page."""

    def __init__(self) -> None:
        self._free: list[dict[str, Tensor]] = []

    def take(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of these tensors. Nothing changes it before it is given back."""
        fits = (n for n, free in enumerate(self._free) if free.keys() == state.keys())
        number = next(fits, None)  # another thread only appends
        place: dict[str, Tensor] = {} if number is None else self._free.pop(number)
        for name, t in state.items():
            room = place.get(name)
            if room is None or room.shape != t.shape or room.dtype != t.dtype:
                place[name] = _room_for(t)
            place[name].copy_(t.detach(), non_blocking=True)
        for device in {t.device for t in state.values() if t.is_cuda}:
            torch.cuda.synchronize(device)
        return place

    def give_back(self, copy: dict[str, Tensor]) -> None:
        """The copy is written; its memory may hold the next."""
        self._free.append(copy)


def _room_for(t: Tensor) -> Tensor:
    """Memory for a tensor, page-locked if the tensor is on a GPU and the system allows it."""
    if t.is_cuda:
        try:
            return torch.empty(t.shape, dtype=t.dtype, pin_memory=True)
        except RuntimeError:  # the system has none left
            pass
    return torch.empty(t.shape, dtype=t.dtype)
