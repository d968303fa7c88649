"""The runs of `compare`, `tune` and `reproduce`: a list of jobs, each of which is done once.

A finished job is known by its folder of records or by a line of a log. One that was stopped is
continued, one that is over is not repeated, and one that diverges is recorded as such while the
others continue. The list may come from the command line or from Python.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from scool.algorithms import LocalOnly, Truth
from scool.algorithms.shared.sharing import split_names
from scool.columns import COLUMNS
from scool.contracts import Recorder
from scool.data.federation import Federation
from scool.errors import ConfigError, DataError, QuarantineError, RunError
from scool.models.layers import norm_names
from scool.recording.disk import LOCK, holding, read_text
from scool.recording.folder import RunFolder, is_taken, make_folder
from scool.recording.seals import SEAL, TEXT, Kind, check_format, check_kinds, check_seal, damaged
from scool.recording.writer import RunWriter
from scool.run.checks import as_method
from scool.run.config import RunConfig
from scool.run.loop import Interrupted, carry_out
from scool.run.options import RunSettings
from scool.run.prepare import Model, prepare_data, prepare_model
from scool.run.result import Result

State = Literal["missing", "begun", "over", "diverged"]


class Named(Protocol):
    """One item of a list; its name is for people."""

    @property
    def name(self) -> str: ...


J = TypeVar("J", bound=Named)


def run_list(
    jobs: Sequence[J],
    state_of: Callable[[J], State],
    run: Callable[[J, State], None],
    go_on: str,
    *,
    claim: Callable[[J], AbstractContextManager[bool]] = lambda job: nullcontext(True),
    say: Callable[[int, State | None], None] = lambda number, state: None,
) -> int:
    """Run in order the jobs that are neither over nor in the hands of another process.

    Args:
        state_of: how far a job has come; RunError where something else is in its way.
        run: does a job and keeps its result, where `state_of` finds it from then on.
        go_on: how to continue after a stop, in words.
        claim: whether a job is ours; a context manager that holds it.
        say: is told the number of the job in the list and its state; None if another process has
            it.

    Returns:
        how many were run.
    """
    made = over = 0
    for number, job in enumerate(jobs):
        with claim(job) as is_ours:
            if not is_ours:
                say(number, None)
                continue
            state = state_of(job)
            if state in ("over", "diverged"):
                over += 1
                continue
            say(number, state)
            try:
                run(job, state)
            except (KeyboardInterrupt, Interrupted):
                raise Interrupted(
                    f"stopped at {job.name}: {over + made} of {len(jobs)} runs are finished; "
                    f"{go_on}"
                ) from None
            made += 1
    return made


# ---------------------------------------------------------------------- one run


@dataclass(frozen=True)
class Job:
    """One run: a method with its options, the network, and how the run is made."""

    method: str  # its name in records and tables
    algorithm: Any
    model: Model
    settings: RunSettings
    folder: Path | None = None  # of its records; None: there are none
    config: Mapping[str, Any] | None = None  # for the command line, which can repeat the run by it

    @classmethod
    def of(cls, config: RunConfig, folder: Path | None = None) -> "Job":
        """A run that the command line can describe."""
        config = config.complete()
        settings = config.settings
        return cls(
            config.method, config.algorithm, settings.model, settings, folder, config.to_dict()
        )

    @property
    def name(self) -> str:
        return self.folder.name if self.folder else f"{self.method} seed={self.settings.seed}"

    def run(
        self, federation: Federation, *, resume: bool = False, recorders: Sequence[Recorder] = ()
    ) -> Result:
        return carry_out(
            federation,
            self.model,
            self.algorithm,
            self.settings,
            out=self.folder,
            resume=resume,
            recorders=recorders,
            method=self.method,
            config=self.config,
        )


def alone_of(jobs: Iterable[Job]) -> str | None:
    """The method whose clients train alone: the baseline of the others."""
    kinds = {job.method: type(as_method(job.algorithm)) for job in jobs}
    return next((name for name, kind in kinds.items() if kind is LocalOnly), None)


def why_not(algorithm: Any, model: Model, federation: Federation, seed: int) -> str | None:
    """Why a method cannot run on a federation with this network; None where it can."""
    method = as_method(algorithm)
    if isinstance(method.plain, Truth) and federation.truth is None:
        return "it needs data whose true graph is known"
    try:
        prepare_data(federation, method, seed)
        for personal in _personal_layers(method.plain):
            module, theta0 = prepare_model(model, federation, seed)
            split_names(theta0, personal, norm_names(module))
    except (ConfigError, DataError) as error:
        return str(error)
    return None


def _personal_layers(method: Any) -> list[str]:
    """The layers that a method, or a method inside it, keeps with their client."""
    inside = getattr(method, "methods", {})
    every = [method, *(inside.values() if isinstance(inside, Mapping) else ())]
    found = [getattr(each, "personal", "") for each in every]
    return [layers for layers in found if layers and isinstance(layers, str)]


def check_possible(jobs: Iterable[Job], federation: Federation) -> None:
    """
    Raises:
        ConfigError: a method cannot run on a federation.
    """
    for job in jobs:
        if reason := why_not(job.algorithm, job.model, federation, job.settings.seed):
            raise ConfigError(
                f"method {job.method!r} is not possible here: {reason}. Leave it out, or "
                "name `all` for those that are possible"
            )


@dataclass(frozen=True)
class Diverged:
    """A run that ended because no client with finite numbers was left."""

    method: str
    seed: int
    reason: str
    federation: Federation
    run_dir: Path | None

    def summary(self) -> dict[str, Any]:
        """The keys of a result's summary, without its scores."""
        numbers = ("accuracy_mean", "accuracy_std", *(column.name for column in COLUMNS))
        return {
            "method": self.method,
            "dataset": self.federation.name,
            "clients": self.federation.num_clients,
            "seed": self.seed,
            **dict.fromkeys(numbers),
            "metrics": [],
            "quarantined": {},
            "run_dir": None if self.run_dir is None else str(self.run_dir),
            "diverged": self.reason,
        }


def folder_state(folder: Path) -> State:
    """How far the run in a folder has come, by its header.

    Raises:
        RunError: the folder holds something else.
    """
    file = folder / "run.json"
    if not file.is_file():
        if is_taken(folder) and not file.is_file():  # no other process has begun it meanwhile
            raise RunError(f"{folder} is in the way: it is not a run of this command")
        return "missing"
    known: dict[str, State] = {"finished": "over", "diverged": "diverged"}
    return known.get(str(RunFolder(folder).header.get("status")), "begun")


def run_job(
    job: Job, state: State, federation: Federation, recorders: Sequence[Recorder]
) -> Result | Diverged:
    """Start a run or continue it; of one that is over, what its records say."""
    method, seed, folder = job.method, job.settings.seed, job.folder
    if state == "diverged" and folder is not None:
        return Diverged(method, seed, RunFolder(folder).header["reason"], federation, folder)
    try:
        return job.run(federation, resume=state != "missing", recorders=recorders)
    except QuarantineError as error:
        if job.settings.strict:
            raise
        if folder is not None:
            RunWriter.open(folder).update_header(status="diverged", reason=str(error))
        return Diverged(method, seed, str(error), federation, folder)


@contextmanager
def claim_run(folder: Path) -> Iterator[bool]:
    """Whether a run is ours for the time being, so that several processes can share one list.

    A lock beside its folder, which need not exist yet, is held while the run lasts.
    """
    make_folder(folder.parent)
    with holding(folder.with_name(f"{folder.name}.lock")) as is_ours:
        yield is_ours


# ---------------------------------------------------------------------- a folder for all jobs


@contextmanager
def claim_all(out: Path, about: str) -> Iterator[bool]:
    """Hold the folder for the runs of one command, so that no other process writes to it.

    Args:
        about: the file that says what the folder was made for.

    Yields:
        whether it is there already.

    Raises:
        RunError: something else is there, or another process is at it.
    """
    if not (out / about).exists() and is_taken(out):
        raise RunError(f"out = {str(out)!r} exists already: choose another --out")
    make_folder(out)
    with holding(out / LOCK) as is_ours:
        if not is_ours:
            raise RunError(f"another process is at the runs in {out}: choose another --out")
        yield (out / about).exists()


def read_about(
    path: Path,
    formats: tuple[str, str],
    kinds: Mapping[str, Kind],
    optional: Sequence[str],
    remedy: str,
) -> dict[str, Any]:
    """What a folder of runs was made for: `compare.json` or `tune.json`.

    Args:
        formats: an old one, which has no checksum, and that of today.
    """
    try:
        values = json.loads(read_text(path))
        check_kinds(values, {"format": TEXT})
        check_format(values["format"], *formats)
        check_kinds(values, kinds, optional)
        if values["format"] == formats[-1] or SEAL in values:
            check_seal(values)
    except FileNotFoundError:
        command = formats[-1].split("-")[1]
        raise RunError(f"{path} is missing: give a folder of `scool {command}`") from None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error, remedy) from error
    return values
