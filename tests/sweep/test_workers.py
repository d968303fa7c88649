"""Several processes at one list. Work of other processes is that of an installed module."""

import math
import os
from collections.abc import Iterable

import pytest

from scool.errors import RunError
from scool.sweep.workers import work_through


@pytest.mark.parametrize("jobs", [1, 2])
def test_tasks_that_come_up_are_done_too(jobs: int) -> None:
    found: dict[int, int] = {}

    def done(task: int, result: int) -> Iterable[int]:
        found[task] = result
        return [task + 100] if task < 3 else []

    work_through(range(6), math.factorial, done, jobs)
    assert found == {n: math.factorial(n) for n in (*range(6), 100, 101, 102)}


def test_what_goes_wrong_in_a_process_is_said_here() -> None:
    with pytest.raises(ValueError, match="negative"):
        work_through([-1], math.factorial, lambda task, result: [], 2)
    with pytest.raises(RunError, match="was at 3 has died"):
        work_through([3], os._exit, lambda task, result: [], 2)


def test_nothing_is_begun_when_it_is_late() -> None:
    done: list[int] = []

    def keep(task: int, result: int) -> Iterable[int]:
        done.append(task)
        return []

    work_through(range(5), math.factorial, keep, is_late=lambda: len(done) == 2)
    assert done == [0, 1]
