"""How far a run has come: its state, its records, and taking them up again."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scool.data.federation import Federation
from scool.engines.local import LocalEngine
from scool.errors import RunError
from scool.experiment.options import as_dict
from scool.recording.checkpoint import flatten, unflatten
from scool.recording.folder import RunFolder
from scool.types import Info, Params


@dataclass
class Progress:
    """How far a run has come. What is here was computed to the end of round `done`, always."""

    state: Any
    active: Tensor  # (K,) who was not in quarantine after that round
    folder: RunFolder | None
    done: int = 0
    saved: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    graphs: dict[int, Tensor] = field(default_factory=dict)
    seconds: float = 0.0

    def finish_round(
        self, state: Any, row: dict[str, Any], info: Info, engine: LocalEngine, seconds: float
    ) -> None:
        graph = info["graph"]
        assert isinstance(graph, Tensor)
        if self.folder:
            self.folder.write_graph(self.done, graph)
            self.folder.append("timing.jsonl", {"round": self.done, "seconds": seconds})
            self.folder.append("metrics.jsonl", row)
        self.history.append(row)
        self.graphs[self.done] = graph.cpu().float()
        self.seconds += seconds
        self.state, self.active, self.done = state, engine.active, self.done + 1

    def save(self) -> None:
        """A checkpoint of the last finished round, once."""
        if self.folder and self.done > self.saved:
            self.folder.write_checkpoint(
                self.done, flatten(self.state) | {"engine/active": self.active}
            )
            self.saved = self.done


def open_run(
    out: str | Path | None,
    resume: bool,
    header: Mapping[str, Any],
    engine: LocalEngine,
    algorithm: Any,
    theta0: Params,
) -> tuple[RunFolder | None, Progress]:
    """The folder, and how far the run in it has come."""
    state = algorithm.init(engine, theta0)
    if out is None or not resume:
        folder = None if out is None else RunFolder.create(Path(out), header)
        return folder, Progress(state, engine.active, folder)
    folder = RunFolder.open(Path(out))
    _check_same(folder, header)
    checkpoint = folder.last_checkpoint()
    done = checkpoint.rounds if checkpoint else 0
    if checkpoint:
        saved = dict(checkpoint.tensors)
        engine.restore_quarantine(_reasons(folder, done, saved.pop("engine/active")))
        state = unflatten(state, saved)
    folder.rewind(done)
    folder.update_header(status="running", rounds=header["rounds"])
    seconds = sum(row["seconds"] for row in folder.rows("timing.jsonl"))
    return folder, Progress(
        state, engine.active, folder, done, done, folder.rows(), folder.graphs(), seconds
    )


def _reasons(folder: RunFolder, done: int, active: Tensor) -> dict[int, str]:
    """Why each client in quarantine is there, as the row of the last saved round tells."""
    row = next((row for row in folder.rows() if row["round"] == done - 1), {"quarantined": {}})
    out = (~active).nonzero()[:, 0].tolist()
    return {client: row["quarantined"].get(str(client), "before") for client in out}


def _check_same(folder: RunFolder, header: Mapping[str, Any]) -> None:
    """Refuse to continue a run with another method, other data or another seed.

    Raises:
        RunError: names what differs.
    """
    before, now = folder.header, header["identity"]
    for name, value in before.get("identity", {}).items():
        if now[name] != value:
            raise RunError(
                f"{folder.path} was made with another {name.replace('digest', 'data or model')}: "
                "continue it with what it was started with, or choose another out"
            )
    if before.get("rounds_done", 0) > header["rounds"]:
        raise RunError(
            f"rounds = {header['rounds']} is not possible: {folder.path} has done "
            f"{before['rounds_done']} already. Give as many or more"
        )


def identity_of(
    algorithm: Any, federation: Federation, seed: int, theta0: Params
) -> dict[str, Any]:
    """What must be the same for a run to be continued: method, data, seed and kind of model."""
    digest = hashlib.sha256(str([(name, tuple(p.shape)) for name, p in theta0.items()]).encode())
    tensors = [federation.classes]
    for split in (federation.train, federation.test):
        some = split.x.flatten()[:: 1 + split.x.numel() // 4096]
        tensors += [split.index, split.mask, split.y, some]
    for t in tensors:
        digest.update(f"{t.dtype}{tuple(t.shape)}".encode())
        digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return {
        "algorithm": {"name": type(algorithm).__name__, **_options(algorithm)},
        "federation": federation.name,
        "clients": federation.num_clients,
        "seed": seed,
        "digest": digest.hexdigest()[:32],
    }


def _options(algorithm: Any) -> dict[str, Any]:
    """The options of a method as JSON holds them; one's own class may have others, by type."""
    options = as_dict(algorithm) if is_dataclass(algorithm) else {}
    return json.loads(json.dumps(options, default=lambda value: type(value).__name__))
