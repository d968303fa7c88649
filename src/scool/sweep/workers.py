"""Several processes that work through a list which may grow: one task each at a time."""

import signal
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import torch

from scool.errors import RunError

T = TypeVar("T")
Work = Callable[[T], Any]


def work_through(
    tasks: Iterable[T],
    work: Work[T],
    done: Callable[[T, Any], Iterable[T]],
    jobs: int = 1,
    is_late: Callable[[], bool] = lambda: False,
) -> None:
    """Carry out all tasks, and those that follow from their results.

    Args:
        work: the function of a task; with several jobs it is pickled, and each process has one
            thread.
        done: is called with each result, in this process; the tasks that it returns come next.
        jobs: how many processes; 1: this one.
        is_late: once it returns True, no further task is begun.

    Raises:
        RunError: a process has died. Unfinished tasks are lost, results are not.
    """
    waiting = deque(tasks)
    if jobs <= 1:
        while waiting and not is_late():
            task = waiting.popleft()
            waiting.extendleft(reversed([*done(task, work(task))]))
        return
    workers = [_Worker[T](work) for _ in range(min(jobs, max(1, len(waiting))))]
    try:
        while True:
            for worker in workers:
                if worker.task is None and waiting and not is_late():
                    worker.begin(waiting.popleft())
            busy = [worker for worker in workers if worker.task is not None]
            if not busy:
                return
            ready = wait([worker.line for worker in busy])
            for worker in busy:
                if worker.line in ready:
                    waiting.extendleft(reversed([*done(*worker.end())]))
    finally:
        for worker in workers:
            worker.stop()


class _Worker(Generic[T]):
    """One process and its present task."""

    def __init__(self, work: Work[T]) -> None:
        context = get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self.process.start()
        theirs.close()
        self.task: T | None = None

    def begin(self, task: T) -> None:
        self.task = task
        with suppress(OSError):  # it has died, which `end` reports
            self.line.send(task)

    def end(self) -> tuple[T, Any]:
        """The task and what came out of it."""
        assert self.task is not None
        try:
            found, error = self.line.recv()
        except (EOFError, OSError):
            name = getattr(self.task, "name", self.task)
            raise RunError(
                f"the process that was at {name} has died, maybe out of memory: the same "
                "command continues; fewer --jobs need less"
            ) from None
        if error is not None:
            raise error
        task, self.task = self.task, None
        return task, found

    def stop(self) -> None:
        self.line.close()
        self.process.terminate()
        self.process.join()


def _serve(line: Connection, work: Work[Any]) -> None:
    """The life of a worker: it ends when the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process, which ends us
    torch.set_num_threads(1)
    while True:
        try:
            task = line.recv()
        except EOFError:
            return
        try:
            line.send((work(task), None))
        except Exception as error:  # said by the first process
            line.send((None, error))
