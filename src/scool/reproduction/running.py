"""Run a plan in one process: finished runs are skipped, stopped ones continue, data are read
once."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from scool.contracts import Recorder
from scool.data import catalogue
from scool.data.catalogue import DataConfig
from scool.data.federation import Federation
from scool.data.labelled import Labelled
from scool.engine.machine import resolve_device
from scool.errors import RunError
from scool.recording.folder import RunFolder
from scool.reproduction.light_records import LightRecords, tidy
from scool.reproduction.matching import conflicts
from scool.reproduction.plan import Job
from scool.sweep import runner
from scool.sweep.runner import State, claim_run, folder_state, run_job, run_list

Watch = Callable[[Job], AbstractContextManager[Recorder]]


@dataclass
class Shelf:
    """Reads the files of a dataset once and shares them out for each seed."""

    _pools: dict[tuple[str, Path], Labelled] = field(default_factory=dict)
    _last: tuple[DataConfig, int, Federation] | None = None

    def federation(self, data: DataConfig, seed: int) -> Federation:
        """The clients of a seed; those of the last call are still at hand."""
        if self._last is None or self._last[:2] != (data, seed):
            entry = replace(catalogue.find(data.dataset), read=self._read(data))
            self._last = (data, seed, catalogue.load_images(data, entry, seed))
        return self._last[2]

    def _read(self, data: DataConfig) -> Callable[..., Labelled]:
        def read(root: Path, *, verify: bool) -> Labelled:
            key = (data.dataset, root)
            if key not in self._pools:
                reader = catalogue.find(data.dataset).read
                assert reader is not None
                self._pools = {key: reader(root, verify=verify)}
            return self._pools[key]

        return read


@dataclass
class TimeLeft:
    """An estimate of the remaining time from finished runs: those of the same row if any, else
    all."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, job: Job, seconds: float) -> None:
        self.seconds.setdefault(job.row.name, []).append(seconds)

    def of(self, jobs: Sequence[Job]) -> float | None:
        """None if no run is finished yet."""
        known = [s for runs in self.seconds.values() for s in runs]
        if not known:
            return None
        means = [self.seconds.get(job.row.name) or known for job in jobs]
        return sum(sum(m) / len(m) for m in means)


def state_of(job: Job) -> State:
    """How far a run has come.

    Raises:
        RunError: its folder holds something else.
    """
    state = folder_state(job.folder)
    if state == "missing":
        return state
    config = RunFolder(job.folder).header.get("config") or {}
    wrong = conflicts(config, job.config.to_dict())
    settings = config.get("settings") or {}
    for name in ("rounds", "seed"):
        if settings.get(name) != getattr(job.config.settings, name):
            pair = (settings.get(name), getattr(job.config.settings, name))
            wrong[f"settings.{name}"] = pair
    if wrong:
        name, (before, now) = next(iter(wrong.items()))
        raise RunError(
            f"{job.folder} was made with {name} = {before!r}, not {now!r}: choose another --out, "
            "or move that folder away (--results still reads it)"
        )
    return state


def is_over(job: Job) -> bool:
    """Whether nothing is left to do, because the run ended or diverged."""
    return state_of(job) in ("over", "diverged")


def check_whole(job: Job) -> None:
    """Check that a run that is over still has all its lines.

    Raises:
        RunError: some are lost, and no table can show it.
    """
    folder, rounds = RunFolder(job.folder), job.config.settings.rounds
    done = 1 + max((row["round"] for row in folder.rows()), default=-1)
    if folder.header.get("status") == "finished" and done != rounds:
        raise RunError(
            f"{job.folder} is damaged: {done} of {rounds} rounds are recorded. Bring back a whole "
            "metrics.jsonl, or move that folder away, and the run is made again"
        )


def run_jobs(
    jobs: Sequence[Job],
    watch: Watch,
    say: Callable[[str, float | None], None] = lambda words, left: None,
    shelf: Shelf | None = None,
) -> int:
    """Run what is neither over nor in the hands of another process; returns how many were run.

    `say` is called before each run with the run and the seconds that all remaining ones may take.
    A run that diverges is recorded as such, and the others go on. Who calls this several times
    keeps the `shelf`, and with it the data.
    """
    shelf = shelf or Shelf()
    todo: list[Job] = []
    left = TimeLeft()
    for job in jobs:
        if is_over(job):
            check_whole(job)
            tidy(job.folder)  # a kill may have come between the end of the run and this
            rows = RunFolder(job.folder).rows("timing.jsonl")
            left.add(job, sum(row["seconds"] for row in rows))
        else:
            todo.append(job)
    if todo:  # all share device and data: what is wrong with them is said before anything is made
        first = todo[0].config.settings
        resolve_device(first.device)
        shelf.federation(first.data, first.seed)

    def run(job: Job, state: State) -> None:
        began = time.monotonic()
        _run(job, state, shelf, watch)
        left.add(job, time.monotonic() - began)

    def tell(number: int, state: State | None) -> None:
        job, run = todo[number], f"run {number + 1} of {len(todo)}"
        if state is None:
            say(f"{run} is left to the process that is at it: {job.name}", None)
            return
        rest = [job, *(j for j in todo[number + 1 :] if not is_over(j))]
        say(f"{run} {'continues' if state == 'begun' else 'starts'}: {job.name}", left.of(rest))

    go_on = "the state is saved, the same command continues"
    return run_list(todo, state_of, run, go_on, claim=lambda job: claim_run(job.folder), say=tell)


def _run(job: Job, state: State, shelf: Shelf, watch: Watch) -> None:
    federation = shelf.federation(job.config.settings.data, job.config.settings.seed)
    light = LightRecords(federation, job.config.settings.rounds, pictures=job.has_pictures)
    with watch(job) as console:
        run_job(runner.Job.of(job.config, job.folder), state, federation, [console, light])
    tidy(job.folder)
