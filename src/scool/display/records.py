"""Run folders as a report sees them: what exists is read, what is missing is named."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scool.errors import RunError
from scool.graph.edges import as_matrix
from scool.recording.clients import Clients, read_clients
from scool.recording.disk import is_written, read_text
from scool.recording.folder import METRICS, TIMING, RunFolder, checkpoint_name, graph_name
from scool.recording.grown import widened_table
from scool.recording.seals import damaged, warn_damage


@dataclass(frozen=True)
class RunRecord:
    """One run folder. Empty if a file is missing; `problems` names it."""

    path: Path
    header: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    seconds: Mapping[int, float]  # by round
    graph_files: Mapping[int, Path]  # by round
    clients: Clients | None
    folder: RunFolder
    problems: list[str] = field(default_factory=list)
    lost_graphs: set[int] = field(default_factory=set)  # rounds whose files cannot be trusted

    @property
    def method(self) -> str:
        return str(self.header.get("method") or self.path.name)

    @property
    def seed(self) -> int | None:
        return self.header.get("seed")

    @property
    def status(self) -> str:
        """finished, interrupted, diverged, failed (by an error), running, killed (no process is at
        it), or unknown."""
        return str(self.header.get("status", "unknown"))

    @property
    def rounds(self) -> int:
        """Rounds that are recorded."""
        return 1 + max((row["round"] for row in self.rows), default=-1)

    @property
    def algorithm(self) -> Mapping[str, Any]:
        """The options of the method, from the command line or from Python."""
        config = self.header.get("config") or {}
        return config.get("algorithm") or (self.header.get("identity") or {}).get("algorithm") or {}

    @property
    def is_local_only(self) -> bool:
        name = ((self.header.get("identity") or {}).get("algorithm") or {}).get("name")
        return name == "LocalOnly" or self.method == "local"

    @property
    def is_regression(self) -> bool:
        if self.clients is not None:
            return self.clients.task == "regression"
        return any(row.get("r2_mean") is not None for row in self.rows)

    @property
    def score_name(self) -> str:
        return "r2" if self.is_regression else "accuracy"

    @property
    def evaluated(self) -> list[Mapping[str, Any]]:
        """The rows of rounds that were evaluated."""
        return [row for row in self.rows if row.get("scores") is not None]

    @property
    def num_clients(self) -> int | None:
        if self.clients is not None:
            return self.clients.num_clients
        return len(self.evaluated[-1]["scores"]) if self.evaluated else None

    @property
    def federation_key(self) -> str:
        """Equal for runs on the same clients."""
        identity = self.header.get("identity") or {}
        return f"{identity.get('federation')}/{identity.get('digest')}/{self.num_clients}"

    def same_clients(self, other: "RunRecord") -> bool:
        """Whether both learned the same tasks, judged by the test data: a method may set aside
        some training samples for itself."""
        mine = (self.federation_name, self.seed, self.num_clients)
        if mine != (other.federation_name, other.seed, other.num_clients):
            return False
        if self.clients is None or other.clients is None:
            return True
        return torch.equal(self.clients.counts["test"], other.clients.counts["test"])

    @property
    def federation_name(self) -> str:
        identity, result = self.header.get("identity") or {}, self.header.get("result") or {}
        known = self.clients.name if self.clients else None
        return str(known or identity.get("federation") or result.get("dataset") or "unknown data")

    def graph(self, round: int) -> Tensor | None:
        """The mixing weights of a round; None, and a warning, where they are not what was
        written."""
        if round in self.lost_graphs:
            return None
        try:
            w = as_matrix(self.folder.read_graph(round))
            if self.num_clients is not None and len(w) != self.num_clients:
                path = self.graph_files[round]
                raise RunError(f"{path} is damaged: it has {len(w)} of {self.num_clients} clients")
            return w
        except RunError as error:
            if self.graph_files[round].exists() or graph_name(round) in self.folder.listed.files:
                self.damage(str(error))  # else it was deleted, which is allowed
            self.lost_graphs.add(round)
            return None

    def damage(self, words: str) -> None:
        """Report on the page, and warn, that a record is not what was written."""
        self.problems.append(words)
        warn_damage(words)

    def last_graph(self, rounds: int | None = None) -> tuple[int, Tensor] | None:
        """The last round, of all or of the first `rounds`, whose weights can be read."""
        found = [t for t in self.graph_files if rounds is None or t < rounds]
        for round in sorted(found, reverse=True):
            w = self.graph(round)
            if w is not None:
                return round, w
        return None

    def memberships(self) -> Tensor | None:
        """(K, M) how much each client belongs to each block, of the newest checkpoint."""
        # SBM keeps Omega, one block per client; MMSBM keeps gamma, a mixture. Below `method` for
        # every method around SCooL.
        tops = ("", "method/", "method/method/")
        names = [f"{top}graph/{n}" for top in tops for n in ("omega", "gamma")]
        for rounds in self.folder.checkpoints():
            name = checkpoint_name(rounds)
            try:
                found = self.folder.read(name, "checkpoint", names).tensors
                of_all = [widened_table(found[n], self.folder.clients) for n in names if n in found]
                return _shares(of_all[0], self.num_clients) if of_all else None
            except FileNotFoundError:
                if name not in self.folder.listed.files:
                    continue  # deleted, which is allowed
                self.damage(f"{self.path / name} is missing")
            except (OSError, ValueError) as error:
                self.damage(str(damaged(self.path / name, error, "An older one is shown")))
        return None


def _shares(weights: Tensor, clients: int | None) -> Tensor:
    if weights.dim() != 2 or (clients is not None and len(weights) != clients):
        raise ValueError(f"its blocks have shape {tuple(weights.shape)}")
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-12)


def read_run(path: Path) -> RunRecord:
    """Read a run folder, broken or whole. Warns about what is not what was written.

    Raises:
        RunError: there is no folder, or it has no record of a run.
    """
    if not is_run(path):
        raise RunError(f"{path} is not a run folder: neither run.json nor metrics.jsonl is there")
    folder, damage = RunFolder(path), list[str]()
    header = _header_of(folder, damage)
    if header.get("status") == "running" and not is_written(path):
        folder = RunFolder(path)
        header = _header_of(folder, [])  # it may have just ended
        if header.get("status") == "running":
            header = {**header, "status": "killed"}
    rows = _rows_of(folder, METRICS, header, damage)
    if not header and not rows:
        why = damage[0] if damage else "run.json says nothing and metrics.jsonl is empty"
        raise RunError(f"{path} cannot be shown: {why}")
    seconds = _rows_of(folder, TIMING, header, damage)
    graphs, problems = folder.graph_files(), list[str]()
    if not graphs:
        problems.append("no graph is recorded (graphs/ is empty): the cooperation graph is missing")
    clients = None
    try:
        clients = read_clients(folder)
        if clients is None:
            problems.append(
                "clients.safetensors is missing (written by an older version): partition, true "
                "graph and names are not shown; `scool resume` adds it"
            )
    except RunError as error:
        damage.append(str(error))
    record = RunRecord(
        path,
        header,
        rows,
        {r["round"]: r["seconds"] for r in seconds},
        graphs,
        clients,
        folder,
        [*damage, *problems],
    )
    for words in damage:
        warn_damage(words)
    return _with_progress(record)


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """Read the run folders that can be read; warn about each other one.

    Raises:
        RunError: there is none.
    """
    records: list[RunRecord] = []
    problems: list[str] = []
    for path in paths:
        try:
            records.append(read_run(path))
        except RunError as error:
            problems.append(str(error))
        except Exception as error:  # crafted: nothing in one folder may keep others from being read
            problems.append(f"{path} cannot be read: {type(error).__name__}: {error}")
    if not records and problems:
        raise RunError(" ".join(problems))
    for words in problems:
        warn_damage(words)
    return records


def are_regression(records: Sequence[RunRecord]) -> bool:
    """Whether runs predict numbers, which decides what their scores are.

    Raises:
        RunError: some do, and others classify.
    """
    known = [record for record in records if record.clients is not None or record.evaluated]
    kinds = {record.is_regression for record in known}
    if len(kinds) > 1:
        raise RunError(
            "runs of classification and of regression cannot be shown together: their scores are "
            "not of one kind. Give them apart"
        )
    return kinds == {True}


def _with_progress(record: RunRecord) -> RunRecord:
    """Note how far an unfinished run has come, and whether it was never evaluated."""
    wanted = record.header.get("rounds")
    if record.status != "finished" and record.header:
        of = f" of {wanted}" if wanted else ""
        words = "in progress" if record.status == "running" else record.status
        reason = record.header.get("reason")
        why = f" ({reason})" if reason and record.status == "failed" else ""
        record.problems.append(f"{words}: {record.rounds}{of} rounds are recorded{why}")
    if record.rows and not record.evaluated:
        record.problems.append("no round was evaluated yet: there are no scores")
    return record


def _header_of(folder: RunFolder, damage: list[str]) -> Mapping[str, Any]:
    try:
        return folder.header
    except RunError as error:
        damage.append(f"{error}. Configuration and result are not shown")
    return {}


def _rows_of(
    folder: RunFolder, name: str, header: Mapping[str, Any], damage: list[str]
) -> list[dict[str, Any]]:
    """The lines of a log that can be trusted. A last line that was cut off while the run was
    going on is not damage."""
    path = folder.path / name
    try:
        found = folder.lines(name)
    except RunError as error:
        damage.append(str(error))
        return []
    done, last = header.get("rounds_done"), 1 + (found.rows[-1]["round"] if found.rows else -1)
    is_over = name == METRICS and header.get("status") == "finished"
    is_short = is_over and isinstance(done, int) and last < done
    if (found.flaw or is_short) and not path.exists():
        damage.append(f"{path} is missing")
    elif found.flaw and (is_short or not found.is_cut):
        damage.append(f"{path} is damaged: {found.flaw}. {len(found.rows)} lines are shown")
    elif is_short:
        damage.append(f"{path} is damaged: it has {last} of {done} rounds")
    return folder.rows(name)


def is_run(path: Path) -> bool:
    return (path / "run.json").is_file() or (path / "metrics.jsonl").is_file()


def check_run(name: str, path: Path) -> None:
    """
    Raises:
        RunError: the folder given for `name` is not a run.
    """
    if is_run(path):
        return
    if (path / "compare.json").is_file():
        raise RunError(f"{name} = {str(path)!r} is a comparison: give one of the run folders in it")
    raise RunError(f"{name} = {str(path)!r} is not the folder of a run: it has no run.json")


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders among and inside some folders, a comparison in its own order.

    Raises:
        RunError: names a folder that is not there or holds no run.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise RunError(f"run = {str(path)!r} is not a folder: give a run or a comparison")
        inside = [path] if is_run(path) else _inside(path)
        if not inside:
            raise RunError(
                f"run = {str(path)!r} holds no run (no run.json): give the folder of a run or of "
                "a comparison; `scool ls DIR` lists what there is"
            )
        found += [run for run in inside if run not in found]
    return found


def _inside(path: Path, depth: int = 2) -> list[Path]:
    """Run folders below, those of a comparison as it lists its methods."""
    try:
        folders = sorted(f for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))
    except OSError as error:
        raise RunError(f"run = {str(path)!r} cannot be read: {error.strerror}") from error
    order = _methods_of(path)
    found: list[Path] = []
    for folder in folders:
        if is_run(folder):
            found.append(folder)
        elif depth:
            found += _inside(folder, depth - 1)

    def place(folder: Path) -> tuple[int, str]:
        name = folder.name if folder.name in order else folder.name.rpartition("-")[0]
        return (order.index(name) if name in order else len(order), str(folder))

    return sorted(found, key=place) if order else found


def _methods_of(path: Path) -> list[str]:
    """The methods of a comparison in its order; empty for another folder."""
    try:
        return list(map(str, json.loads(read_text(path / "compare.json"))["methods"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def missing_methods(path: Path) -> list[str]:
    """Methods that a comparison names and that have not started."""
    there = {folder.name for folder in path.iterdir() if is_run(folder)}
    return [
        method
        for method in _methods_of(path)
        if method not in there and not any(name.rpartition("-")[0] == method for name in there)
    ]
