"""A run on disk: `run.json`, `metrics.jsonl`, `timing.jsonl`, `graphs/`, checkpoints, and a list of
them all, `manifest.json`.

`metrics.jsonl` holds nothing that depends on the clock, so two runs of one configuration have the
same file to the byte; times are kept apart in `timing.jsonl`. Every file carries the identity of
the run and a checksum (see `seals`), and readers check both.
"""

import errno
import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from torch import Tensor

from scool.errors import RunError
from scool.graph.edges import Matrix
from scool.recording.checkpoint import Checkpoint, as_checkpoint, part_name, take_rows
from scool.recording.disk import (
    LARGEST_TEXT,
    LOCK,
    NotPlainError,
    open_plain,
    read_text,
    sync_folder,
)
from scool.recording.grown import widened, widened_row
from scool.recording.lines import Lines, first_link, open_line, read_rounds
from scool.recording.seals import (
    Manifest,
    damaged,
    identity_seal,
    parse_header,
    read_manifest,
    whole_file,
)
from scool.recording.tensors import TensorFile, from_tensors, read_tensors

METRICS, TIMING = "metrics.jsonl", "timing.jsonl"
CLIENTS = "clients.safetensors"
_NEEDS = {METRICS: ("messages", "bytes"), TIMING: ("seconds",)}
_CHECKPOINT = re.compile(r"checkpoint-(\d{6,9})\.safetensors")
_STATE = re.compile(r"(?:checkpoint|shard)-(\d{6,9})(?:-\d+-of-\d+)?\.safetensors")
_GRAPH = re.compile(r"graphs/(\d{6,9})\.safetensors")


def graph_name(round: int) -> str:
    return f"graphs/{round:06d}.safetensors"


def checkpoint_name(rounds: int) -> str:
    return f"checkpoint-{rounds:06d}.safetensors"


def state_round(name: str) -> int | None:
    """The rounds done when a checkpoint, or a part of one, was written, by its name."""
    match = _STATE.fullmatch(name)
    return int(match[1]) if match else None


def is_run(path: Path) -> bool:
    """Whether a folder holds records of a run, even damaged ones or links."""
    names = ("run.json", METRICS, "graphs")
    return any(os.path.lexists(path / name) for name in names) or any(path.glob("checkpoint-*"))


def is_taken(path: Path) -> bool:
    """Whether something is there; an empty folder, or the remains of a killed start, does not
    count."""
    return path.exists() and (
        not path.is_dir()
        or any(file.name != LOCK and not file.name.endswith(".tmp") for file in path.iterdir())
    )


def check_free(path: Path) -> None:
    """Refuse to overwrite anything.

    Raises:
        RunError: something is there.
    """
    if is_taken(path):
        is_run = any((path / name).is_file() for name in ("run.json", "compare.json"))
        go_on = f"continue it with `scool resume {path}`, or " if is_run else ""
        raise RunError(f"out = {str(path)!r} exists already: {go_on}choose another --out")


def make_folder(path: Path) -> None:
    """Make a folder and those above it, durable against a power cut."""
    try:
        new = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(new):
            sync_folder(folder.parent)
    except OSError as error:
        raise RunError(f"cannot make {path}: {error.strerror}; choose another --out") from error


@final
class RunFolder:
    """Reads one run folder as it is now, and trusts nothing that it cannot verify. `RunWriter`
    writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.verified: dict[str, str] = {}  # what a manifest says of each file that was read
        self._seen: tuple[str | None, Manifest | None] | None = None
        self._lines: dict[str, Lines] = {}
        self._clients: int | None = None

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run."""
        if not (path / "run.json").is_file():
            raise RunError(f"{path} is not a run folder: it has no run.json")
        return cls(path)

    # ------------------------------------------------------------------ whose folder it is

    @property
    def header(self) -> dict[str, Any]:
        """What `run.json` says.

        Raises:
            RunError: it is missing or damaged.
        """
        path = self.path / "run.json"
        try:
            header = parse_header(read_text(path))
            manifest = self._manifest()
            if manifest is None:
                return header
            if "run" not in header and not manifest.older:
                raise ValueError("it does not say which run it is, and manifest.json does")
            if "run" in header and manifest.run != header["run"] and self._log_is_of(manifest.run):
                raise ValueError("it belongs to another run than manifest.json and metrics.jsonl")
            return header
        except (OSError, ValueError) as error:
            remedy = "Put a whole one in its place, or start again in another folder"
            raise damaged(path, error, remedy) from error

    def _manifest(self) -> Manifest | None:
        """The manifest of the folder, of this run or another; None if there is none that can be
        read: `scool verify` reports it, and the files have seals of their own."""
        try:
            return read_manifest(self.path)
        except (OSError, ValueError):
            return None

    def _log_is_of(self, run: str) -> bool:
        """Whether `metrics.jsonl` belongs to a run: it decides if `run.json` and `manifest.json`
        differ."""
        try:
            with open_plain(self.path / METRICS) as file:
                open_line(file.readline(LARGEST_TEXT).rstrip(b"\n"), first_link(run, METRICS))
        except (OSError, ValueError):
            return False
        return True

    def _identity(self) -> tuple[str | None, Manifest | None]:
        """The run that this folder belongs to, and what it must hold; None if unknown. Read
        once."""
        if self._seen is None:
            manifest = self._manifest()
            try:
                run = self.header.get("run")
            except RunError:
                run = manifest.run if manifest else None
            is_ours = manifest is not None and manifest.run == run
            self._seen = run, manifest if is_ours else None
        return self._seen

    @property
    def run(self) -> str | None:
        """The identity in every file; None in a folder of a version that sealed nothing."""
        return self._identity()[0]

    @property
    def listed(self) -> Manifest:
        """What the folder must hold; empty without a manifest."""
        run, manifest = self._identity()
        return manifest or Manifest(run or "")

    # ------------------------------------------------------------------ one line per round

    def lines(self, name: str) -> Lines:
        """The lines of a `.jsonl` file up to one that is not what was written, and what is wrong
        with that one. Read once."""
        if name not in self._lines:
            self._lines[name] = self._read_lines(name)
        return self._lines[name]

    def _read_lines(self, name: str) -> Lines:
        run, (count, seal) = self.run, self.listed.logs.get(name, (0, ""))
        before = first_link(run, name) if run else None
        found = read_rounds(self.path / name, _NEEDS.get(name, ()), before)
        if len(found.rows) < count and (found.flaw is None or found.is_cut):
            words = f"it ends after line {len(found.rows)}, and {count} were written"
            return found._replace(flaw=words, is_cut=False)
        if count and len(found.rows) >= count and found.seals[count - 1] != seal:
            return found._replace(flaw="its lines are not those that were written", is_cut=False)
        return found

    def rows(self, name: str = METRICS) -> list[dict[str, Any]]:
        """The lines of a `.jsonl` file up to one that a kill cut off, or that is damaged; those of
        all clients that the run has come to have."""
        return [widened_row(row, self.clients) for row in self.lines(name).rows]

    @property
    def clients(self) -> int:
        """How many clients the run of a peer has come to have; 0 for others, which do not grow.
        Read once."""
        if self._clients is None:
            self._clients = 0
            with suppress(RunError, OSError, ValueError, KeyError):
                if self.header.get("held"):
                    found = self.read(CLIENTS, "clients", ["classes"])
                    self._clients = len(found.tensors["classes"])
        return self._clients

    # ------------------------------------------------------------------ tensors

    def read(self, name: str, kind: str, names: Collection[str] | None = None) -> TensorFile:
        """A file of tensors, verified: by its own seal, and by the manifest where it is listed.

        Raises:
            ValueError, OSError: see `read_tensors`.
        """
        if name.startswith("graphs/"):
            self._check_graphs()
        expected = self.listed.files.get(name)
        if expected and expected.startswith("file:"):  # of an older version
            if whole_file(self.path / name) != expected:
                raise ValueError("its bytes are not those that were written")
            found = read_tensors(self.path / name, kind, None, names)
        else:
            found = read_tensors(self.path / name, kind, self.run, names)
            if expected and found.seal != expected:
                raise ValueError("it is not the file that was written here")
            if self.run is None and found.seal and not self._may_own(found.about.get("run")):
                raise ValueError("it belongs to another run")
        self.verified[name] = found.seal or expected or whole_file(self.path / name)
        return found

    def _may_own(self, run: str | None) -> bool:
        """Whether a sealed file can belong to this folder of the first format: one that this
        version continued until it was killed."""
        try:
            return run == identity_seal(self.header.get("identity") or {})
        except RunError:  # no header: unknown
            return True

    def _check_graphs(self) -> None:
        """
        Raises:
            NotPlainError: the folder of the graphs is a link, which may lead anywhere.
        """
        if (self.path / "graphs").is_symlink():
            raise NotPlainError(errno.ELOOP, "graphs is a link, and records are never behind one")

    def graph_files(self) -> dict[int, Path]:
        """The recorded graphs by round: those that exist, and those that the manifest lists.

        Raises:
            RunError: their folder is a link.
        """
        try:
            self._check_graphs()
        except NotPlainError as error:
            remedy = "Put the folder itself in its place"
            raise damaged(self.path / "graphs", error, remedy) from error
        there = {f"graphs/{file.name}" for file in (self.path / "graphs").glob("*.safetensors")}
        found = (_GRAPH.fullmatch(name) for name in there | set(self.listed.files))
        rounds = sorted(int(match[1]) for match in found if match)
        return {t: self.path / graph_name(t) for t in rounds}

    def read_graph(self, round: int) -> Matrix:
        """The mixing weights of a round: a matrix, or edges where many clients wrote lists; those
        of all clients that the run has come to have.

        Raises:
            RunError: they are not there, or not those that were written.
        """
        return widened(self._read_graph(round), self.clients)

    def _read_graph(self, round: int) -> Matrix:
        name = graph_name(round)
        try:
            found = self.read(name, "graph")
            if "w/i" in found.tensors and found.about.get("round", round) == round:
                parts = {name.removeprefix("w"): t for name, t in found.tensors.items()}
                return from_tensors(parts, int(found.about["clients"]), 0.0)
            w = found.tensors.get("w")
            if w is None or w.dim() != 2 or w.shape[0] != w.shape[1] or not w.is_floating_point():
                raise ValueError("it holds no square matrix of weights")
            if found.about.get("round", round) != round:
                raise ValueError("it is the graph of another round")
            return w
        except (OSError, ValueError) as error:
            remedy = (
                "Bring back a whole copy; without the file, `scool resume` continues and leaves "
                "that round out, `scool rerun` repeats all"
            )
            raise damaged(self.path / name, error, remedy) from error

    def graphs(self) -> dict[int, Matrix]:
        """The mixing weights of every round whose file exists."""
        files = self.graph_files().items()
        return {t: self.read_graph(t) for t, file in files if file.exists() or file.is_symlink()}

    # ------------------------------------------------------------------ checkpoints

    def checkpoints(self) -> list[int]:
        """The rounds of all checkpoints that exist or must exist; the newest first."""
        names = {file.name for file in self.path.glob("checkpoint-*")} | set(self.listed.files)
        found = (_CHECKPOINT.fullmatch(name) for name in names)
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def load_checkpoint(
        self,
        rounds: int,
        clients: Tensor | None = None,
        stacked: Collection[str] | None = None,
    ) -> Checkpoint:
        """A checkpoint, verified, with the rows of all clients or of some (see `take_rows`).

        Raises:
            RunError: it is missing or damaged.
        """
        whole = self.read_state(checkpoint_name(rounds), rounds)

        def part(rank: int, ranks: int) -> Checkpoint:
            name = part_name(rounds, rank, ranks)
            return self.read_state(name, rounds, whole.parts.get(name))

        return take_rows(whole, part, clients, stacked)

    def read_state(self, name: str, rounds: int, seal: str | None = None) -> Checkpoint:
        """The file of a checkpoint, or of a part of one, with this seal where it is known.

        Raises:
            RunError: it is missing or damaged.
        """
        try:
            found = self.read(name, "checkpoint")
            if seal is not None and found.seal != seal:
                raise ValueError(f"it belongs to another checkpoint than {checkpoint_name(rounds)}")
            return as_checkpoint(found, rounds)
        except (OSError, ValueError) as error:
            raise damaged(self.path / name, error) from error

    def last_checkpoint(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, with the rows of all clients, and a sentence about
        each newer one. None where there is no checkpoint.

        Raises:
            RunError: there are some, and none is whole.
        """
        problems: list[str] = []
        for rounds in self.checkpoints():
            try:
                return self.load_checkpoint(rounds), problems
            except RunError as error:
                problems.append(str(error))
        if problems:
            raise RunError(
                f"{'; '.join(problems)}. No checkpoint is whole: bring back a copy, or repeat "
                f"the run with `scool rerun {self.path}`"
            )
        return None, []
