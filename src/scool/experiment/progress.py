"""How far a run has come: its state, its records, and taking them up again."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scool.algorithms.between_rounds import unwrapped
from scool.data.federation import Federation
from scool.engines.placement import better_placement
from scool.engines.sharded import AnyEngine, ShardedEngine
from scool.engines.sharded_ranks import Ranks
from scool.errors import RunError
from scool.experiment.older import modern
from scool.experiment.options import as_dict, neutral
from scool.recording.checkpoint import Checkpoint, flatten, unflatten
from scool.recording.folder import RunFolder, check_free, make_folder
from scool.recording.lock import writing
from scool.recording.shards import HOLDER, save_part
from scool.recording.source import source_commit
from scool.types import Info, Params, Tree

LONG = 1000  # rounds above which not every graph is kept, and not every row of a light record
EARLY = 20  # first rounds, whose graphs are always kept and compared with the true one
SETTLED = 10  # rounds between two moves of clients from rank to rank


@dataclass
class Progress:
    """How far a run has come. What is here was computed to the end of round `done`, always. With
    several ranks only the first keeps records; all keep their part of a checkpoint."""

    state: Any
    active: Tensor  # (K,) who was not in quarantine after that round
    folder: RunFolder | None
    rounds: int = 0  # of the whole run
    ranks: Ranks = field(default_factory=Ranks)
    stacked: frozenset[str] = frozenset()  # tensors of the state with a row a client held here
    done: int = 0
    saved: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    graphs: dict[int, Tensor] = field(default_factory=dict)
    seconds: float = 0.0
    moved: int = -SETTLED  # the round after which clients changed ranks

    def finish_round(
        self, state: Any, row: dict[str, Any], info: Info, engine: AnyEngine, seconds: float
    ) -> None:
        graph = info["graph"]
        assert isinstance(graph, Tensor)
        is_kept = self.rounds <= LONG or self.done < EARLY or "scores" in row
        if self.folder and self.ranks.is_first:
            timing = {"round": self.done, "seconds": seconds, **self._rank_traffic()}
            if is_kept:
                self.folder.write_graph(self.done, graph)
            self.folder.append("timing.jsonl", timing)
            self.folder.append("metrics.jsonl", row)
        self.history.append(row)
        if is_kept and self.ranks.is_first:
            self.graphs[self.done] = graph.cpu().float()
        self.seconds += seconds
        self.state, self.active, self.done = state, engine.active, self.done + 1

    def settle(self, engine: AnyEngine, graph: Tensor) -> None:
        """Several ranks: put clients that learn from each other on the same rank, where it pays
        and they did not move a short while ago. No influence on results but rounding."""
        if not isinstance(engine, ShardedEngine) or self.done - self.moved < SETTLED:
            return
        placement = better_placement(engine.placement, graph)
        if placement is not None:
            flat = flatten(self.state)
            rows = engine.move(placement, {name: flat[name] for name in self.stacked})
            self.state, self.moved = unflatten(self.state, flat | rows), self.done

    def _rank_traffic(self) -> dict[str, Any]:
        """What really travelled between ranks: like times, no part of the result."""
        traffic = self.ranks.ledger.close_round()
        if self.ranks.size == 1:
            return {}
        by_purpose = {name: traffic.bytes[name] for name in sorted(traffic.bytes)}
        return {"rank_bytes": traffic.total_bytes, "rank_traffic": by_purpose}

    def save(self, engine: AnyEngine) -> None:
        """A checkpoint of the last finished round, once."""
        if self.folder is None or self.done <= self.saved:
            return
        folder, tensors = self.folder, flatten(self.state) | {"engine/active": self.active}
        if isinstance(engine, ShardedEngine):
            rows = {name: tensors.pop(name) for name in self.stacked}
            tensors[HOLDER] = engine.placement.holder
            about = (folder.path, self.done, self.ranks.rank, self.ranks.size, engine.owned.cpu())
            self.ranks.each(lambda: save_part(*about, rows))

        def write() -> None:
            folder.write_checkpoint(self.done, tensors)
            self.saved = self.done  # even if another rank is gone before all know of it

        self.ranks.first(write)
        self.saved = self.done


def open_run(
    out: str | Path | None,
    resume: bool,
    header: Mapping[str, Any],
    engine: AnyEngine,
    algorithm: Any,
    theta0: Params,
    held: ExitStack,
) -> tuple[RunFolder | None, Progress]:
    """The folder, locked until `held` is closed, and how far the run in it has come."""
    state = algorithm.init(engine, theta0)
    ranks, stacked, mine = Ranks(), frozenset[str](), None
    if isinstance(engine, ShardedEngine):
        ranks, mine = engine.ranks, engine.owned.cpu()
        stacked = _stacked_names(state, engine, algorithm, theta0)
    if out is None or not resume:
        folder = None if out is None else RunFolder(Path(out))
        if folder is not None:
            ranks.first(lambda: _begin(folder.path, header, held))
        return folder, Progress(state, engine.active, folder, header["rounds"], ranks, stacked)
    folder = RunFolder(Path(out))
    ranks.first(lambda: _check_same(RunFolder.open(folder.path), header, algorithm))
    ranks.first(lambda: held.enter_context(writing(folder.path)))
    checkpoint = ranks.each(lambda: _last_checkpoint(folder, mine, stacked))
    done = checkpoint.rounds if checkpoint else 0
    if checkpoint:
        saved = dict(checkpoint.tensors)
        engine.restore_quarantine(_reasons(folder, done, saved.pop("engine/active")))
        state = ranks.each(lambda: unflatten(state, saved))
    ranks.first(lambda: _take_up(folder, done, header))
    seconds = sum(row["seconds"] for row in folder.rows("timing.jsonl"))
    graphs = folder.graphs() if ranks.is_first else {}
    return folder, Progress(
        state,
        engine.active,
        folder,
        header["rounds"],
        ranks,
        stacked,
        done=done,
        saved=done,
        history=folder.rows(),
        graphs=graphs,
        seconds=seconds,
    )


def _begin(path: Path, header: Mapping[str, Any], held: ExitStack) -> None:
    check_free(path)
    make_folder(path)
    held.enter_context(writing(path))
    versions = _versions(header)
    RunFolder.create(path, {**header, "versions": versions})  # looks again: somebody may have come


def _versions(header: Mapping[str, Any]) -> dict[str, Any]:
    return {**header["versions"], "commit": source_commit()}


def _last_checkpoint(
    folder: RunFolder, mine: Tensor | None, stacked: frozenset[str]
) -> Checkpoint | None:
    """Where to go on. A record without models, as is kept of a finished run, is not begun anew."""
    checkpoint = folder.last_checkpoint(mine, stacked)
    if checkpoint is None and RunFolder.open(folder.path).header.get("status") == "finished":
        raise RunError(
            f"{folder.path} is a finished run whose models were not kept (no checkpoint): there is "
            f"nothing to go on from. `scool rerun {folder.path}` repeats it in a new folder"
        )
    return checkpoint


def _take_up(folder: RunFolder, done: int, header: Mapping[str, Any]) -> None:
    """Go on after round `done`; `resumed` tells of rounds that other versions make."""
    folder.rewind(done)
    before = folder.header
    changes: dict[str, Any] = {"reason": None} if before.get("reason") else {}  # of a failure
    resumed: list[Any] = before.get("resumed") or []
    last = resumed[-1]["versions"] if resumed else before.get("versions")
    if (now := _versions(header)) != last:
        changes["resumed"] = [*resumed, {"after_round": done, "versions": now}]
    folder.update_header(status="running", rounds=header["rounds"], **changes)


class _Fewer:
    """An engine that holds other clients than it does, for as long as a method begins."""

    def __init__(self, engine: ShardedEngine, count: int) -> None:
        self._engine, self._count = engine, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def replicate(self, theta0: Params) -> Tree:
        return {n: p.expand(self._count, *p.shape).clone() for n, p in theta0.items()}


def _stacked_names(
    state: Any, engine: ShardedEngine, algorithm: Any, theta0: Params
) -> frozenset[str]:
    """Which tensors of a method's state have a row for each client held here: those that grow
    with their number. All others are equal on all ranks."""
    count = 1 if len(engine.owned) > 1 else 2
    other = flatten(algorithm.init(_Fewer(engine, count), theta0))
    return frozenset(n for n, t in flatten(state).items() if t.shape != other[n].shape)


def _reasons(folder: RunFolder, done: int, active: Tensor) -> dict[int, str]:
    """Why each client in quarantine is there, as the row of the last saved round tells."""
    row = next((row for row in folder.rows() if row["round"] == done - 1), {"quarantined": {}})
    out = (~active).nonzero()[:, 0].tolist()
    return {client: row["quarantined"].get(str(client), "before") for client in out}


def _check_same(folder: RunFolder, header: Mapping[str, Any], algorithm: Any) -> None:
    """Refuse to continue a run with another method, other data or another seed.

    Raises:
        RunError: names what differs.
    """
    before, now = folder.header, header["identity"]
    nothing = dict.fromkeys(now["between_rounds"], 0.0)
    plain = {"algorithm": _as_json(neutral(unwrapped(algorithm))), "between_rounds": nothing}
    for name, value in modern(before.get("identity") or {}).items():
        if not _agree(value, now[name], plain.get(name, {})):
            raise RunError(
                f"{folder.path} was made with another {_WORDS.get(name, name)}: "
                "continue it with what it was started with, or choose another out"
            )
    if (before.get("rounds_done") or 0) > header["rounds"]:
        raise RunError(
            f"rounds = {header['rounds']} is not possible: {folder.path} has done "
            f"{before['rounds_done']} already. Give as many or more"
        )


_WORDS = {"digest": "data or model", "fixed": "model (its frozen parameters or buffers differ)"}


def _agree(before: Any, now: Any, plain: Any) -> bool:
    """Equal in all options: one that is newer than the run had its default then."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return before == now
    if not before.keys() <= now.keys():
        return False
    then = {name: before.get(name, plain.get(name, value)) for name, value in now.items()}
    return all(_agree(then[name], value, plain.get(name, {})) for name, value in now.items())


def identity_of(
    algorithm: Any, federation: Federation, seed: int, theta0: Params, fixed: Params
) -> dict[str, Any]:
    """What must be the same for a run to be continued: method, data, seed and kind of model."""
    digest = hashlib.sha256(str([(name, tuple(p.shape)) for name, p in theta0.items()]).encode())
    tensors = [federation.classes]
    for split in (federation.train, federation.test):
        some = split.x.flatten()[:: 1 + split.x.numel() // 4096]
        tensors += [split.index, split.mask, split.y, some]
    for t in tensors:
        _add_to(digest, t)
    return {
        "algorithm": {"name": type(algorithm).__name__, **_options(algorithm)},
        "federation": federation.name,
        "clients": federation.num_clients,
        "seed": seed,
        "digest": digest.hexdigest()[:32],
        "fixed": _digest_of(fixed),
    }


def _digest_of(tensors: Params) -> str:
    """Of names, shapes and numbers; empty where there are none."""
    digest = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        digest.update(name.encode())
        _add_to(digest, t)
    return digest.hexdigest()[:32] if tensors else ""


def _add_to(digest: Any, t: Tensor) -> None:
    digest.update(f"{t.dtype}{tuple(t.shape)}".encode())
    digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def _options(algorithm: Any) -> dict[str, Any]:
    """The options of a method as JSON holds them; one's own class may have others, by type."""
    options = as_dict(algorithm) if is_dataclass(algorithm) else {}
    return _as_json(options)


def _as_json(options: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(options, default=lambda value: type(value).__name__))
