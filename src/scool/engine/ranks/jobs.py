"""One rank leads: it reads what a person typed, and tells the others which run comes next.

So every command works the same with one rank and with many: the followers wait here, take part in
each run, keep no records and say nothing.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

from torch.distributed import Store  # pyright: ignore

_PAUSE = 0.02  # seconds between two looks; waiting in the store would print warnings
_leading: list["Jobs"] = []  # the jobs that this process hands out, where it leads others


class Jobs:
    """A numbered list of runs in the store that all ranks see."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._count = 0

    def announce(self, job: dict[str, Any] | None) -> None:
        """The next run; None: there are no more."""
        self.store.set(f"job/{self._count}", json.dumps(job))
        self._count += 1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The runs, as they are announced. Waits as long as the first rank lives."""
        while True:
            key = f"job/{self._count}"
            while not self.store.check([key]):  # raises where the first rank is gone
                time.sleep(_PAUSE)
            self._count += 1
            job = json.loads(self.store.get(key))
            if job is None:
                self.store.add("heard", 1)
                return
            yield job

    def wait_for(self, followers: int, seconds: float) -> None:
        """After the last run: until all followers have heard that there are no more. The store
        ends with the first rank, and who still looks into it would take that for a failure."""
        until = time.monotonic() + seconds
        while self.store.add("heard", 0) < followers and time.monotonic() < until:
            time.sleep(_PAUSE)

    def is_over(self) -> bool:
        """Whether the first rank has ended the list, or ends it within a second."""
        key, until = f"job/{self._count}", time.monotonic() + 1
        try:
            while not self.store.check([key]) and time.monotonic() < until:
                time.sleep(_PAUSE)
            return self.store.check([key]) and json.loads(self.store.get(key)) is None
        except RuntimeError:
            return False


def lead(jobs: Jobs | None) -> None:
    """From now on runs of this process are announced there; None: to nobody."""
    _leading[:] = [] if jobs is None else [jobs]


def announce(job: dict[str, Any]) -> None:
    """Tell the followers, where there are any."""
    for jobs in _leading:
        jobs.announce(job)
