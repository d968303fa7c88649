"""Work for the disk that the training does not wait for."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, final

T = TypeVar("T")
IN_FLIGHT = 2  # copies of the state that wait for the disk; a third waits for the first


@final
class Background:
    """One thread that does jobs in their order. What fails there is raised here, with the next job
    or when all must be done."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._jobs: deque[Future[object]] = deque()

    def submit(self, job: Callable[[], T]) -> "Future[T]":
        """Take a job; waits as long as two are under way."""
        while self._jobs and (len(self._jobs) >= IN_FLIGHT or self._jobs[0].done()):
            self._jobs.popleft().result()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="scool-disk")
        future = self._pool.submit(job)
        self._jobs.append(future)  # type: ignore[arg-type]
        return future

    def flush(self) -> None:
        """Wait until all is done."""
        while self._jobs:
            self._jobs.popleft().result()

    def close(self) -> None:
        """Wait, and end the thread. What failed was raised before, or does not matter any more."""
        self._jobs.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
