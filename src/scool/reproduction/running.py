"""Run a plan in one process: finished runs are skipped, stopped ones go on, data are read once."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from scool.contracts import Recorder
from scool.data import catalogue
from scool.data.catalogue import DataConfig
from scool.data.federation import Federation
from scool.data.labelled import Labelled
from scool.engine.device import resolve_device
from scool.errors import QuarantineError, RunError
from scool.recording.folder import RunFolder, is_taken
from scool.recording.writer import RunWriter
from scool.reproduction.claims import claim
from scool.reproduction.light_records import LightRecords, tidy
from scool.reproduction.matching import conflicts
from scool.reproduction.plan import Job
from scool.run.config import RunConfig, execute
from scool.run.loop import Interrupted

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
    """How long the rest takes, by the runs that are done: those of the same row where there are
    any, else all."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, job: Job, seconds: float) -> None:
        self.seconds.setdefault(job.row.name, []).append(seconds)

    def of(self, jobs: Sequence[Job]) -> float | None:
        """None where nothing is known yet."""
        known = [s for runs in self.seconds.values() for s in runs]
        if not known:
            return None
        means = [self.seconds.get(job.row.name) or known for job in jobs]
        return sum(sum(m) / len(m) for m in means)


State = Literal["new", "started", "over"]


def state_of(job: Job) -> State:
    """How far a run has come.

    Raises:
        RunError: its folder holds something else.
    """
    file = job.folder / "run.json"
    if not file.is_file():
        if is_taken(job.folder) and not file.is_file():  # nobody has begun it meanwhile
            raise RunError(f"{job.folder} is in the way: it is not a run of this command")
        return "new"
    header = RunFolder(job.folder).header
    config = header.get("config") or {}
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
    return "over" if header.get("status") in ("finished", "diverged") else "started"


def check_whole(job: Job) -> None:
    """Look whether a run that is over still has all its lines.

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
    """Run what is not over yet and nobody else is at; how many that were.

    `say` hears before each run which one it is, and how many seconds all that are left may take.
    A run that diverges is recorded as such, and the others go on. Who calls this several times
    keeps the `shelf`, and with it the data.
    """
    shelf = shelf or Shelf()
    todo: list[Job] = []
    left = TimeLeft()
    for job in jobs:
        if state_of(job) == "over":
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
    made = 0
    for number, job in enumerate(todo):
        with claim(job.folder) as is_ours:
            name = f"run {number + 1} of {len(todo)}"
            if not is_ours:
                say(f"{name} is left to the process that is at it: {job.name}", None)
                continue
            state = state_of(job)
            if state == "over":  # another process was faster
                continue
            words = "goes on" if state == "started" else "starts"
            rest = [job, *(j for j in todo[number + 1 :] if state_of(j) != "over")]
            say(f"{name} {words}: {job.name}", left.of(rest))
            began = time.monotonic()
            try:
                _run(job, state == "started", shelf, watch)
            except Interrupted as stop:
                text = str(stop).partition("`scool resume")[0]
                raise Interrupted(f"{text}the same command goes on") from None
        left.add(job, time.monotonic() - began)
        made += 1
    return made


def _run(job: Job, resume: bool, shelf: Shelf, watch: Watch) -> None:
    config: RunConfig = job.config
    seed = config.settings.seed
    federation = shelf.federation(config.settings.data, seed)
    light = LightRecords(federation, config.settings.rounds, pictures=job.has_pictures)
    try:
        with watch(job) as console:
            execute(
                config,
                out=job.folder,
                resume=resume,
                recorders=[console, light],
                federation=federation,
            )
    except QuarantineError as error:
        RunWriter.open(job.folder).update_header(status="diverged", reason=str(error))
    tidy(job.folder)
