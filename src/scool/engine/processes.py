"""The processes that work on a run together. Most runs have one, which is what this file is about;
`ranks/` has those that torch's process group joins."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")

_leading: list[Callable[[dict[str, Any]], None]] = []  # who tells followers which run comes next


class Processes:
    """This process alone: whatever is agreed on is agreed at once."""

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this process keeps the records and speaks to the person."""
        return self.rank == 0

    def share(self, words: Any) -> list[Any]:
        """Something small that JSON can hold, from every process to every process."""
        return [words]

    def first(self, work: Callable[[], T]) -> T | None:
        """The result of `work` on the first process; if it fails, all end with its message."""
        return work()

    def each(self, work: Callable[[], T]) -> T:
        """The result of `work` on every process; if one fails, all end with its message."""
        return work()

    def agree(self, what: str, value: object) -> None:
        """Refuse to go on where the processes hold different values of what should be equal."""

    def close_round(self) -> dict[str, Any]:
        """What really travelled between the processes since the last call; empty for one."""
        return {}


def processes() -> Processes:
    """The ranks of torch's process group if there is one, else this process alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return Processes()
    from scool.engine.ranks.group import Ranks

    ranks = Ranks()
    return ranks if ranks.is_group else Processes()


def lead(tell: Callable[[dict[str, Any]], None] | None) -> None:
    """From now on the runs of this process are told to followers in this way; None: to nobody."""
    _leading[:] = [] if tell is None else [tell]


def announce(job: dict[str, Any]) -> None:
    """Tell the followers, if there are any, which run comes next."""
    for tell in _leading:
        tell(job)
