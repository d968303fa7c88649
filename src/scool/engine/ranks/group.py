"""Processes that share one run: what they send each other, and how much."""

import datetime
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # see join_group
from torch import Tensor
from torch.distributed import Store  # pyright: ignore

from scool.engine.ledger import Ledger
from scool.engine.machine import Processes
from scool.errors import RankLost, RunError, ScoolError
from scool.types import Tree

T = TypeVar("T")


def join_group(store: Store, rank: int, size: int, patience: datetime.timedelta) -> None:
    """Become one of `size` ranks that meet in the store; NCCL for what lies on GPUs, else gloo.

    `torch.distributed.nn.functional` must be imported before: its functions have the group that
    is there at that moment as a default. Imported later (the first training step does), they keep
    the group past `leave_group`, and gloo's threads abort the process when it ends.
    """
    has_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if has_gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)


def _takes_part() -> bool:
    """Whether there is a group that scool can work in: one for tensors on the CPU, too.

    Raises:
        RunError: there are other ranks, and no way to send them what lies on the CPU.
    """
    assert dist.group.WORLD is not None
    try:
        dist.group.WORLD._get_backend(torch.device("cpu"))
    except RuntimeError as error:
        if dist.get_world_size() == 1:
            return False  # a group made by the caller, with all that is needed
        raise RunError(
            "the process group has no backend for tensors on the CPU: make it with "
            "init_process_group('cpu:gloo,cuda:nccl')"
        ) from error
    return True


def leave_group() -> None:
    """Leave the group after a successful run; after an error the others may be gone."""
    dist.destroy_process_group()


@final
class Ranks(Processes):
    """This process among those of the run: torch's process group.

    Every rank calls the same verbs in the same order. `ledger` counts what really travels between
    the processes, all of them together; it is equal everywhere.
    """

    def __init__(self) -> None:
        self.is_group = dist.is_available() and dist.is_initialized() and _takes_part()
        self.rank = dist.get_rank() if self.is_group else 0
        self.size = dist.get_world_size() if self.is_group else 1
        self.ledger = Ledger()

    # ------------------------------------------------------------------ models, along edges

    def trade(self, outgoing: Tree, receiver: int, incoming: int, like: Tree, sender: int) -> Tree:
        """Send the rows of `outgoing` to one rank, and receive `incoming` rows from another.

        Both sides know how many rows travel, so nothing is sent where there is nothing to send.
        Tensors go in the order of their names: that of a dict may differ from rank to rank.
        """
        received = {n: t.new_empty(incoming, *t.shape[1:]) for n, t in like.items()}
        operations: list[dist.P2POp] = []
        if incoming:
            operations += [dist.P2POp(dist.irecv, received[n], sender) for n in sorted(received)]
        if outgoing and len(next(iter(outgoing.values()))):
            rows = [outgoing[n].contiguous() for n in sorted(outgoing)]
            operations += [dist.P2POp(dist.isend, t, receiver) for t in rows]
        if operations:
            with self._watched():
                for request in dist.batch_isend_irecv(operations):
                    request.wait()
        return received

    # ------------------------------------------------------------------ rows of scalars, to all

    def gather(self, mine: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all ranks one after the other; rank r has `counts[r]` of them."""
        if not self.is_group:
            return mine
        row = math.prod(mine.shape[1:]) * mine.element_size()
        self.ledger.add("gather", (self.size - 1) * sum(counts), row)
        plain = mine.to(torch.uint8) if mine.dtype == torch.bool else mine
        padded = plain.new_zeros(max(counts), *mine.shape[1:])
        padded[: len(mine)] = plain
        parts = [torch.empty_like(padded) for _ in counts]
        with self._watched():
            dist.all_gather(parts, padded)
        whole = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        return whole.to(mine.dtype)

    def total(self, x: Tensor) -> Tensor:
        """The sum over all ranks, added in their order: the same bits everywhere."""
        if not self.is_group:
            return x
        self.ledger.add("sum", self.size * (self.size - 1), x.numel() * x.element_size())
        parts = [
            torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)
        ]
        with self._watched():
            dist.all_gather(parts, x.contiguous())
        return torch.stack(parts).sum(dim=0)

    def share(self, words: Any) -> list[Any]:
        if not self.is_group:
            return [words]
        text = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
        counts = self.gather(torch.tensor([len(text)]), [1] * self.size).tolist()
        texts = self.gather(text, counts).split(counts)
        return [json.loads(bytes(part.tolist())) for part in texts]

    # ------------------------------------------------------------------ together or not at all

    def first(self, work: Callable[[], T]) -> T | None:
        return self._together(work if self.is_first else lambda: None)

    def each(self, work: Callable[[], T]) -> T:
        return self._together(work)

    def _together(self, work: Callable[[], T]) -> T:
        result, mine = None, None
        try:
            result = work()
        except ScoolError as error:
            mine = error
        problems = self.share(None if mine is None else str(mine))
        if mine is not None:
            raise mine
        for words in problems:
            if words is not None:
                raise RunError(words)
        return result  # type: ignore[return-value]

    def agree(self, what: str, value: object) -> None:
        values = self.share(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise RunError(
                    f"rank {rank} has another {what} than rank 0: give all ranks the same files, "
                    "the same version of scool and the same kind of machine"
                )

    def close_round(self) -> dict[str, Any]:
        traffic = self.ledger.close_round()
        if self.size == 1:
            return {}
        by_purpose = {name: traffic.bytes[name] for name in sorted(traffic.bytes)}
        return {"rank_bytes": traffic.total_bytes, "rank_traffic": by_purpose}

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Turn torch's errors about a broken connection into a RankLost."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            line = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0])  # without torch's file
            reason = line.split(". ")[0]  # and without its advice
            is_late = "timed out" in reason.lower() or "timeout" in reason.lower()
            what = "did not answer in time" if is_late else "is gone"
            raise RankLost(
                f"rank {self.rank} of {self.size} ends: another rank {what} ({reason})"
            ) from error
