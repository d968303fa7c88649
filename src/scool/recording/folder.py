"""A run on disk: `run.json`, `metrics.jsonl`, `timing.jsonl`, `graphs/` and checkpoints.

`metrics.jsonl` holds nothing that depends on the clock, so two runs of one configuration have the
same file to the byte; times are kept apart in `timing.jsonl`.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from scool.errors import RunError
from scool.recording.atomic import write_bytes, write_json
from scool.recording.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from scool.recording.lines import (
    NUMBER,
    OBJECT,
    TEXT,
    WHOLE,
    Kind,
    check_kinds,
    or_null,
    read_rounds,
)
from scool.recording.lock import LOCK
from scool.recording.shards import forget_parts, take_rows

KEPT = 2  # checkpoints that stay: the newest, and the one before in case it gets damaged


def is_taken(path: Path) -> bool:
    """Whether something is there; an empty folder, or what a kill left of a start, is not."""
    return path.exists() and (
        not path.is_dir()
        or any(file.name != LOCK and not file.name.endswith(".tmp") for file in path.iterdir())
    )


def check_free(path: Path) -> None:
    """Nothing is ever overwritten.

    Raises:
        RunError: something is there.
    """
    if is_taken(path):
        is_run = any((path / name).is_file() for name in ("run.json", "compare.json"))
        go_on = f"continue it with `scool resume {path}`, or " if is_run else ""
        raise RunError(f"out = {str(path)!r} exists already: {go_on}choose another --out")


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make {path}: {error.strerror}; choose another --out") from error


_HEADER: dict[str, Kind] = {
    **dict.fromkeys(("rounds", "rounds_done", "seed"), or_null(WHOLE)),
    **dict.fromkeys(("config", "identity", "result"), or_null(OBJECT)),
}
_RESULT: dict[str, Kind] = {
    "method": TEXT,
    **dict.fromkeys(("rounds", "seconds", "bytes_sent", "messages"), or_null(NUMBER)),
}
_NEEDS = {"metrics.jsonl": ("messages", "bytes"), "timing.jsonl": ("seconds",)}


def parse_header(text: str) -> dict[str, Any]:
    """What a `run.json` says.

    Raises:
        ValueError: it is damaged; says how.
    """
    header = json.loads(text)
    check_kinds(header, _HEADER, optional=_HEADER)
    check_kinds(header.get("identity") or {}, {"algorithm": OBJECT}, optional=["algorithm"])
    if header.get("result"):
        check_kinds(header["result"], _RESULT)
    return header


@final
class RunFolder:
    """Reads and writes one run folder. Everything written survives a kill at any moment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> "RunFolder":
        """A new folder; an existing run is never overwritten."""
        check_free(path)
        make_folder(path)
        folder = cls(path)
        write_json(path / "run.json", header)
        make_folder(path / "graphs")
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run."""
        if not (path / "run.json").is_file():
            raise RunError(f"{path} is not a run folder: it has no run.json")
        make_folder(path / "graphs")  # a kill right after the start may have come before it
        return cls(path)

    # ------------------------------------------------------------------ header

    @property
    def header(self) -> dict[str, Any]:
        """What `run.json` says."""
        try:
            return parse_header((self.path / "run.json").read_text())
        except OSError as error:
            raise RunError(f"{self.path / 'run.json'} cannot be read: {error}") from error
        except ValueError as error:
            raise RunError(
                f"{self.path / 'run.json'} is damaged: {error}. Put a whole one in its place, or "
                "start anew in another folder"
            ) from error

    def update_header(self, **changes: Any) -> None:
        write_json(self.path / "run.json", self.header | changes)

    # ------------------------------------------------------------------ one line a round

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Add a line to a `.jsonl` file."""
        try:
            with (self.path / name).open("a") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise RunError(
                f"cannot write {self.path / name}: {error.strerror}. Free some space, then "
                f"`scool resume {self.path}`"
            ) from error

    def rows(self, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        """The lines of a `.jsonl` file up to one that a kill cut off, or that is damaged."""
        return read_rounds(self.path / name, _NEEDS.get(name, ())).rows

    def rewind(self, rounds: int) -> None:
        """Forget lines and graphs of rounds that the checkpoint does not cover."""
        for name in ("metrics.jsonl", "timing.jsonl"):
            kept = [row for row in self.rows(name) if row["round"] < rounds]
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in kept)
            write_bytes(self.path / name, text.encode())
        for file in (self.path / "graphs").glob("*.safetensors"):
            if int(file.stem) >= rounds:
                file.unlink()
        for file in self._checkpoints():
            if int(file.stem.split("-")[1]) > rounds:
                file.unlink()

    # ------------------------------------------------------------------ tensors

    def write_graph(self, round: int, w: Tensor) -> None:
        """The weights that mixed in this round, float32."""
        content = save({"w": w.detach().to("cpu", torch.float32).contiguous()})
        write_bytes(self.path / "graphs" / f"{round:06d}.safetensors", content)

    def graphs(self) -> dict[int, Tensor]:
        """The mixing weights of every round."""
        graphs: dict[int, Tensor] = {}
        for file in sorted((self.path / "graphs").glob("*.safetensors")):
            try:
                graphs[int(file.stem)] = load_file(file)["w"]
            except (SafetensorError, OSError, KeyError) as error:
                raise RunError(
                    f"{file} cannot be read ({error}): delete it (the run goes on without the "
                    "record of that round), or start anew with `scool rerun`"
                ) from error
        return graphs

    def _checkpoints(self) -> list[Path]:
        return sorted(self.path.glob("checkpoint-*.safetensors"))

    def write_checkpoint(self, rounds: int, tensors: Mapping[str, Tensor]) -> None:
        save_checkpoint(self.path / f"checkpoint-{rounds:06d}.safetensors", rounds, tensors)
        for old in self._checkpoints()[:-KEPT]:
            old.unlink()
        forget_parts(self.path)

    def last_checkpoint(
        self, clients: Tensor | None = None, stacked: Collection[str] | None = None
    ) -> Checkpoint | None:
        """The newest checkpoint whose rounds all have their line in `metrics.jsonl`, verified;
        None where there is none. With the rows of all clients, or of some (see `take_rows`).

        Raises:
            RunError: the lines of all of them are lost.
        """
        rows = self.rows()
        recorded = next((n for n, row in enumerate(rows) if row["round"] != n), len(rows))
        files = [f for f in self._checkpoints() if int(f.stem.split("-")[1]) <= recorded]
        if self._checkpoints() and not files:
            raise RunError(
                f"{self.path / 'metrics.jsonl'} is damaged: {recorded} rounds can be read of it, "
                "fewer than any checkpoint has. Bring back a whole copy of it, or repeat the run "
                f"with `scool rerun {self.path}`"
            )
        return take_rows(load_checkpoint(files[-1]), self.path, clients, stacked) if files else None
