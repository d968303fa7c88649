"""Single runs of `scool reproduce` from a list, for a machine that is lent for a while.

    python benchmarks/reproduction/jobs.py LIST OUT --seconds 1500 --data-dir data

A line of LIST is `dataset setting row seed seconds`, the last a guess how long the run takes. The
next run is taken that nobody is at and that fits into what is left; start the command several times
(on one GPU under the multi-process service) and they share the list. It may be changed meanwhile.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

from scool.contracts import Recorder
from scool.display.live import Console
from scool.errors import RunError, unknown
from scool.reproduction.paper import Setting
from scool.reproduction.plan import TARGETS, Job, Study, jobs_of
from scool.reproduction.running import Shelf, run_jobs, state_of


class Line(NamedTuple):
    dataset: str
    setting: Setting
    row: str
    seed: int
    seconds: float


def read(path: Path) -> list[Line]:
    words = [line.split() for line in path.read_text().splitlines()]
    found = [w for w in words if w and not w[0].startswith("#")]
    return [Line(d, cast("Setting", kind), row, int(n), float(s)) for d, kind, row, n, s in found]


@cache
def job_of(line: Line, out: Path, data_dir: str | None, rounds: int) -> Job:
    study = Study(line.dataset, line.setting, seed=line.seed, data_dir=data_dir, rounds=rounds)
    rows = {row.name: row for target in TARGETS.values() for row in target}
    if line.row not in rows:
        unknown("row", line.row, rows)
    return jobs_of(study, [rows[line.row]], out)[0]


def is_over(job: Job, passed: set[Path]) -> bool:
    """Whether nothing is left to do; a folder with something else in it is passed over, too."""
    if job.folder in passed:
        return True
    try:
        return state_of(job) == "over"
    except RunError as error:
        print(f"passed over: {error}", flush=True)
        passed.add(job.folder)
        return True


@contextmanager
def watch(job: Job) -> Iterator[Recorder]:
    began = time.monotonic()
    print(f"starts {job.folder}", flush=True)
    with Console(job.config.settings.rounds, quiet=True) as console:
        yield console
    print(f"{time.monotonic() - began:5.0f} s  {job.folder}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Single runs of `scool reproduce` from a list.")
    parser.add_argument("list", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=0, help="most rounds of a run, to shorten")
    options = parser.parse_args()
    end, passed, shelf = time.monotonic() + options.seconds, set[Path](), Shelf()
    while True:
        left = end - time.monotonic()
        jobs = [
            job_of(line, options.out, options.data_dir, options.rounds)
            for line in read(options.list)
            if line.seconds <= left
        ]
        job = next((j for j in jobs if not is_over(j, passed)), None)
        if job is None:
            return
        passed.add(job.folder)
        run_jobs([job], watch, shelf=shelf)  # passes over what another process is at


if __name__ == "__main__":
    main()
