"""Writes a run folder, in an order that keeps it consistent through kills and power cuts.

    each round       graph, timing.jsonl, metrics.jsonl        in the system's memory
    each checkpoint  all of these flushed to the disk, then the checkpoint, then manifest.json

What is newer than the last checkpoint may be lost or incomplete; `take_up` deletes it, and the run
makes it again. Files are named in the manifest after they are on the disk, and removed from it
before they are replaced or deleted.
"""

import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from scool.errors import RunError
from scool.graph.edges import Edges, Matrix
from scool.recording.checkpoint import (
    CLIENTS,
    Background,
    HostCopies,
    forget_parts,
    part_name,
    part_names,
    save_checkpoint,
)
from scool.recording.disk import clean, delete, sync, write_json
from scool.recording.folder import CLIENTS as CLIENTS_FILE
from scool.recording.folder import (
    METRICS,
    TIMING,
    RunFolder,
    check_free,
    checkpoint_name,
    graph_name,
    make_folder,
    state_round,
)
from scool.recording.lines import Log
from scool.recording.seals import FORMAT, Manifest, damaged, identity_seal, with_seal
from scool.recording.tensors import to_tensors, write_tensors

KEPT = 2  # checkpoints that are kept: the newest, and the one before in case it gets damaged
END = 10**9  # after any round
FOR_REPORTS = {CLIENTS_FILE: "clients", "fixed.safetensors": "fixed"}


@runtime_checkable
class RecordKeeper(Protocol):
    """A recorder that adds to the records of a run, or leaves some out."""

    def attach(self, writer: "RunWriter") -> None:
        """Called before `start`."""
        ...


@final
class RunWriter:
    """The process that writes to a run folder; it should hold its lock.

    It remembers what it wrote, so that a file deleted meanwhile is noticed.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.header = dict(header)
        self.run: str = header["run"]
        self.older = False  # whether a version that sealed nothing began it
        self.saved = 0  # rounds of the last checkpoint that is on the disk
        self._files: dict[str, str] = {}  # seals by name, without checkpoints
        self._states: dict[int, dict[str, str]] = {}  # those of each checkpoint and its parts
        self._logs: dict[str, Log] = {}
        self._unsynced: set[Path] = set()
        self._published: set[str] = set()  # files that the manifest on the disk names
        self.copies = HostCopies()
        self._background = Background()

    # ------------------------------------------------------------------ begin

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> "RunWriter":
        """A new folder; an existing run is never overwritten."""
        check_free(path)
        make_folder(path)
        clean(path)
        writer = cls(path, _modern(header))
        writer.update_header()
        make_folder(path / "graphs")
        return writer

    @classmethod
    def open(cls, path: Path) -> "RunWriter":
        """A run that is over, to change its records.

        Raises:
            RunError: a log is damaged, which the next manifest would hide.
        """
        folder = RunFolder.open(path)
        if folder.run is None:
            return cls.take_up(folder, END)
        for name in folder.listed.logs:
            if flaw := folder.lines(name).flaw:
                raise damaged(path / name, ValueError(flaw), "Bring back a whole copy of it")
        writer, listed = cls(path, folder.header), folder.listed
        writer.older = listed.older
        writer._list(listed.files)
        writer._published = set(listed.files)
        writer._logs = {n: Log(path / n, writer.run, folder.lines(n).rows) for n in listed.logs}
        return writer

    @classmethod
    def take_up(cls, folder: RunFolder, done: int, **changes: Any) -> "RunWriter":
        """Continue after this many rounds: delete what is newer. A folder of an older version gets
        identity, seals and manifest.

        Args:
            changes: what `run.json` says from now on.

        Raises:
            RunError: `run.json` is damaged, or the folder of the graphs is a link.
        """
        writer = cls(folder.path, _modern(folder.header))
        writer.older = folder.run is None or folder.listed.older
        folder.graph_files()  # refuses a link before anything is written or deleted behind it
        make_folder(writer.path / "graphs")  # missing if the start was killed
        clean(writer.path, writer.path / "graphs")
        writer._list(_whole_files(folder, done))
        writer._states = {n: files for n, files in writer._states.items() if n <= done}
        for name in (METRICS, TIMING):
            rows = [row for row in _said_if_cut(folder, name, done) if row["round"] < done]
            writer._logs[name] = Log(writer.path / name, writer.run, rows)
        writer._publish()
        for log in writer._logs.values():
            log.rewrite()
        for file in [file for t, file in folder.graph_files().items() if t >= done]:
            delete(file)
        for other in [n for n in folder.checkpoints() if n not in writer._states]:
            delete(writer.path / checkpoint_name(other))
        forget_parts(writer.path)
        writer.saved = max(writer._states, default=0)
        writer.update_header(**changes)
        return writer

    # ------------------------------------------------------------------ header

    def update_header(self, **changes: Any) -> None:
        """Change some of what `run.json` says."""
        self.header |= changes
        write_json(self.path / "run.json", with_seal(self.header))

    # ------------------------------------------------------------------ each round

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`."""
        return self.log(METRICS).rows

    def log(self, name: str) -> Log:
        """A log to append to."""
        if name not in self._logs:
            self._logs[name] = Log(self.path / name, self.run)
        return self._logs[name]

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Add a line to a `.jsonl` file."""
        self.log(name).append(row)

    def write_graph(self, round: int, w: Matrix) -> None:
        """The weights that mixed in this round, float32: a matrix, or the lists of many clients.
        The next checkpoint makes them durable."""
        about: dict[str, Any] = {"round": round}
        if isinstance(w, Edges):
            listed = to_tensors(w.on(w.values.float()))
            tensors = {f"w{name}": t for name, t in listed.items()}
            about |= {"clients": len(w)}
        else:
            tensors = {"w": w.detach().to("cpu", torch.float32)}
        self.write(graph_name(round), "graph", tensors, about, durable=False)

    def write(
        self,
        name: str,
        kind: str,
        tensors: Mapping[str, Tensor],
        about: Mapping[str, Any] | None = None,
        durable: bool = True,
    ) -> None:
        """Write a sealed file of tensors, after the manifest has stopped naming one that it
        replaces; the next manifest lists it."""
        path = self.path / name
        if name in self._published:
            self._files.pop(name, None)
            self._publish()
        self._files[name] = write_tensors(path, kind, tensors, self.run, about, durable)
        if not durable:
            self._unsynced.add(path)

    def has(self, name: str) -> bool:
        """Whether a file is there, verified or written here."""
        return name in self._files

    # ------------------------------------------------------------------ checkpoints

    def save(
        self, rounds: int, tensors: dict[str, Tensor], parts: Mapping[str, str] | None = None
    ) -> "Future[None]":
        """Write a checkpoint in the background.

        Args:
            tensors: a copy that nobody changes any more; one of `copies` is given back.
            parts: the seals of the files with the rows of the clients, where ranks have written
                them.

        Raises:
            RunError: an earlier one could not be written.
        """
        listed, unsynced = self._listed(), self._take_unsynced()

        def work() -> None:
            sync(unsynced)
            path = self.path / checkpoint_name(rounds)
            seal = save_checkpoint(path, rounds, tensors, self.run, parts)
            self.copies.give_back(tensors)
            self._states[rounds] = {path.name: seal, **(parts or {})}
            kept = sorted(self._states)[-KEPT:]
            self._states = {n: self._states[n] for n in kept}
            self._publish(listed)
            self.saved = rounds
            for file in list(self.path.glob("checkpoint-*")):
                if (state_round(file.name) or END) < kept[0]:
                    delete(file)
            forget_parts(self.path, before=kept[0])

        return self._background.submit(work)

    def save_part(
        self, rounds: int, rank: int, ranks: int, clients: Tensor, rows: dict[str, Tensor]
    ) -> "Future[str]":
        """Write the rows of the clients (n,) that one rank holds in the background; its seal."""
        path = self.path / part_name(rounds, rank, ranks)

        def work() -> str:
            seal = save_checkpoint(path, rounds, {**rows, CLIENTS: clients}, self.run)
            self.copies.give_back(rows)
            return seal

        return self._background.submit(work)

    def flush(self) -> None:
        """Wait for the checkpoints that are under way.

        Raises:
            RunError: one could not be written.
        """
        self._background.flush()

    def close(self) -> None:
        """Wait, and end the thread."""
        self._background.close()

    # ------------------------------------------------------------------ manifest

    def seal(self) -> None:
        """Flush all records, and list them in the manifest.

        Warns if a file that was written here was deleted.
        """
        self.flush()
        for log in self._logs.values():
            log.rewrite()
        sync(self._take_unsynced())
        for name in sorted(self._publish().files):
            if not (self.path / name).is_file():
                warnings.warn(
                    f"{self.path / name} was deleted while the run was writing: that record is "
                    "lost",
                    stacklevel=3,
                )

    def forget(self, *names: str) -> None:
        """Delete files, after the manifest has stopped naming them."""
        for name in names:
            self._files.pop(name, None)
            for state in self._states.values():
                state.pop(name, None)
        if not self._published.isdisjoint(names):
            self._publish()
        for name in names:
            delete(self.path / name)

    def rewrite(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace the lines of a log, after the manifest has stopped naming it."""
        self._logs.pop(name, None)
        self._publish()
        self._logs[name] = Log(self.path / name, self.run, rows)
        self._logs[name].rewrite()
        self._publish()

    def _list(self, files: Mapping[str, str]) -> None:
        """Adopt the entries of a manifest."""
        for name, seal in files.items():
            if name.startswith(("checkpoint-", "shard-")):
                if (rounds := state_round(name)) is not None:
                    self._states.setdefault(rounds, {})[name] = seal
            else:
                self._files[name] = seal

    def _listed(self) -> Manifest:
        """All records except checkpoints, which the background writes."""
        logs = {name: log.state for name, log in self._logs.items()}
        return Manifest(self.run, dict(self._files), logs, self.older)

    def _publish(self, listed: Manifest | None = None) -> Manifest:
        """Write the manifest: these records, or all that are known now, and the checkpoints."""
        listed = listed or self._listed()
        for state in self._states.values():
            listed.files |= state
        listed.write(self.path)
        self._published = set(listed.files)
        return listed

    def _take_unsynced(self) -> set[Path]:
        taken = self._unsynced | {log.path for log in self._logs.values()}
        self._unsynced = set()
        return taken


def _modern(header: Mapping[str, Any]) -> dict[str, Any]:
    """What `run.json` says in the format of this version."""
    run = header.get("run") or identity_seal(header.get("identity") or {})
    return {**header, "format": FORMAT, "run": run}


def _whole_files(folder: RunFolder, rounds: int) -> dict[str, str]:
    """The files that are kept when a run continues after this many rounds, verified, with their
    seals."""
    for t in [t for t in folder.graph_files() if t < rounds]:
        try:
            folder.read_graph(t)
        except RunError as error:
            words = f"{error}. The run continues without the record of that round"
            warnings.warn(words, stacklevel=4)
    for name, kind in FOR_REPORTS.items():
        with suppress(OSError, ValueError):  # written again
            folder.read(name, kind)
    for kept in [n for n in folder.checkpoints() if n <= rounds][:KEPT]:
        if not {checkpoint_name(kept), *part_names(folder.path, kept)} <= folder.verified.keys():
            try:
                folder.load_checkpoint(kept)
            except RunError as error:
                warnings.warn(f"{error}. A newer checkpoint is whole", stacklevel=4)
    return dict(folder.verified)


def _said_if_cut(folder: RunFolder, name: str, rounds: int) -> list[dict[str, Any]]:
    """The rows of a log that can be trusted; warns if a round that is kept has none."""
    found = folder.lines(name)
    if found.flaw and not found.is_cut and (not found.rows or found.rows[-1]["round"] + 1 < rounds):
        warnings.warn(
            f"{folder.path / name} is damaged: {found.flaw}. The lines before it are kept",
            stacklevel=4,
        )
    return found.rows
