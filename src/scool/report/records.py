"""Run folders as a report sees them: whatever is there is read, what is missing is named."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from scool.errors import RunError
from scool.recording.clients import Clients, read_clients
from scool.recording.folder import parse_header
from scool.recording.lines import read_rounds
from scool.recording.lock import is_written


@dataclass(frozen=True)
class RunRecord:
    """One run folder. Empty where a file is missing; `problems` says so in words."""

    path: Path
    header: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    seconds: Mapping[int, float]  # by round
    graph_files: Mapping[int, Path]  # by round
    clients: Clients | None
    problems: list[str] = field(default_factory=list)

    @property
    def method(self) -> str:
        return str(self.header.get("method") or self.path.name)

    @property
    def seed(self) -> int | None:
        return self.header.get("seed")

    @property
    def status(self) -> str:
        """finished, interrupted, diverged, failed (by an error), running, killed (nobody is at
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
        """The mixing weights of a round; None where the file cannot be read."""
        try:
            return load_file(self.graph_files[round])["w"]
        except (SafetensorError, OSError, KeyError):
            return None

    def last_graph(self) -> tuple[int, Tensor] | None:
        """The last round whose weights can be read."""
        for round in sorted(self.graph_files, reverse=True):
            w = self.graph(round)
            if w is not None:
                return round, w
        return None

    def memberships(self) -> Tensor | None:
        """(K, M) how much each client belongs to each block, of the newest checkpoint."""
        for path in sorted(self.path.glob("checkpoint-*.safetensors"), reverse=True):
            try:
                with safe_open(path, framework="pt") as file:
                    names = set(file.keys())
                    # SBM keeps Omega, one block a client; MMSBM keeps gamma, a mixture.
                    # Below `method` where something is done between rounds.
                    kept = ("graph/omega", "graph/gamma")
                    for name in (*kept, *(f"method/{name}" for name in kept)):
                        if name in names:
                            share = file.get_tensor(name)
                            return share / share.sum(dim=1, keepdim=True).clamp(min=1e-12)
            except (SafetensorError, OSError):
                continue
        return None


def read_run(path: Path) -> RunRecord:
    """Read a run folder, broken or whole.

    Raises:
        RunError: there is no folder, or nothing of a run in it.
    """
    problems: list[str] = []
    header = _read_header(path, problems)
    if header.get("status") == "running" and not is_written(path):
        header = _read_header(path, [])  # it may have ended a moment ago
        if header.get("status") == "running":
            header = {**header, "status": "killed"}
    rows = _read_rows(path / "metrics.jsonl", problems)
    if not header and not rows:
        if (path / "run.json").is_file():
            why = problems[0] if problems else "run.json says nothing and metrics.jsonl is empty"
            raise RunError(f"{path} cannot be shown: {why}")
        raise RunError(f"{path} is not a run folder: neither run.json nor metrics.jsonl is there")
    seconds = _read_rows(path / "timing.jsonl", problems, needs=("seconds",))
    graphs = {
        int(file.stem): file
        for file in sorted((path / "graphs").glob("*.safetensors"))
        if file.stem.isdigit()
    }
    if not graphs:
        problems.append("no graph is recorded (graphs/ is empty): the cooperation graph is missing")
    clients = None
    try:
        clients = read_clients(path)
        if clients is None:
            problems.append(
                "clients.safetensors is missing (written by an older version): partition, true "
                "graph and names are not shown; `scool resume` adds it"
            )
    except RunError as error:
        problems.append(str(error))
    record = RunRecord(
        path, header, rows, {r["round"]: r["seconds"] for r in seconds}, graphs, clients, problems
    )
    return _with_progress(record)


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
    """Say where a run stands that is not finished, and what was never evaluated."""
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


def _read_header(path: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        return parse_header((path / "run.json").read_text())
    except OSError:
        problems.append("run.json is missing: configuration and result are not shown")
    except ValueError as error:
        problems.append(f"run.json is damaged ({error}): configuration and result are not shown")
    return {}


def _read_rows(path: Path, problems: list[str], needs: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The lines of a file that can be read; the first bad line ends it."""
    if not path.is_file():
        problems.append(f"{path.name} is missing")
        return []
    rows, flaw, _ = read_rounds(path, needs)
    if flaw:
        number = len(rows) + 1
        problems.append(
            f"{path.name} is damaged from line {number} on: {len(rows)} rounds are shown"
        )
    return rows


def is_run(path: Path) -> bool:
    return (path / "run.json").is_file() or (path / "metrics.jsonl").is_file()


def check_run(name: str, path: Path) -> None:
    """
    Raises:
        RunError: the folder given for `name` is no run.
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
            raise RunError(f"run = {str(path)!r} is no folder: give a run or a comparison")
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
        return list(map(str, json.loads((path / "compare.json").read_text())["methods"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []


def missing_methods(path: Path) -> list[str]:
    """Methods that a comparison names and that have not started."""
    there = {folder.name for folder in path.iterdir() if is_run(folder)}
    return [
        method
        for method in _methods_of(path)
        if method not in there and not any(name.rpartition("-")[0] == method for name in there)
    ]
