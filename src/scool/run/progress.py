"""How far a run has come: its state and its records, written and read again."""

import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from scool.contracts import Engine, Method
from scool.engine.machine import Processes
from scool.errors import RunError
from scool.graph.edges import Edges, Matrix
from scool.health import Reason
from scool.recording.checkpoint import HOLDER, Checkpoint, flatten, part_name, unflatten
from scool.recording.disk import writing
from scool.recording.folder import METRICS, TIMING, RunFolder, check_free, graph_name, make_folder
from scool.recording.grown import widened, widened_row
from scool.recording.writer import RunWriter
from scool.run.identity import check_same, modern_state, older_names
from scool.types import Info, Params

LONG = 1000  # rounds above which not every graph is kept, and not every row of a light record
EARLY = 20  # first rounds, whose graphs are always kept and compared with the true one
S = TypeVar("S")
PLACES = HOLDER.removesuffix("holder")  # in a common file: the rank of each client


@dataclass
class Progress:
    """How far a run has come. What is here was computed to the end of round `done`, always. With
    several ranks only the first keeps records; all keep their part of a checkpoint."""

    state: Any
    active: Tensor  # (K,) who was not in quarantine after that round
    writer: RunWriter | None
    rounds: int = 0  # of the whole run
    ranks: Processes = field(default_factory=Processes)
    stacked: frozenset[str] = frozenset()  # tensors of the state that ranks have their own rows of
    done: int = 0
    asked: int = 0  # rounds of the last checkpoint that is written or under way
    history: list[dict[str, Any]] = field(default_factory=list)
    graphs: dict[int, Matrix] = field(default_factory=dict)
    seconds: float = 0.0
    parts: "Future[str] | None" = None  # of this rank, of a checkpoint that others have parts of
    common: dict[str, Tensor] = field(default_factory=dict)  # the rest of it, on the first rank

    def finish_round(
        self, state: Any, row: dict[str, Any], info: Info, engine: Engine, seconds: float
    ) -> None:
        graph = info["graph"]
        assert isinstance(graph, Tensor | Edges)
        is_kept = self.rounds <= LONG or self.done < EARLY or "scores" in row
        if self.writer and self.ranks.is_first:
            timing = {"round": self.done, "seconds": seconds, **self.ranks.close_round()}
            if is_kept:
                self.writer.write_graph(self.done, graph)
            self.writer.append(TIMING, timing)
            self.writer.append(METRICS, row)
        self.history.append(row)
        if is_kept and self.ranks.is_first:
            is_list = isinstance(graph, Edges)
            self.graphs[self.done] = (
                graph.on(graph.values.float()) if is_list else graph.cpu().float()
            )
        self.seconds += seconds
        self.state, self.active, self.done = state, engine.health.healthy, self.done + 1

    def settle(self, engine: Engine, graph: Matrix) -> None:
        """Let the engine of several ranks move clients from one to another."""
        if not self.stacked:
            return
        flat = flatten(self.state)
        before = {name: flat[name] for name in self.stacked}
        if (rows := engine.settle(graph, before)) is not before:
            self.state = unflatten(self.state, flat | rows)

    # ------------------------------------------------------------------ checkpoints

    @property
    def saved(self) -> int:
        """Rounds of the last checkpoint that is on the disk, as the first rank knows."""
        return self.writer.saved if self.writer else 0

    def save(self, engine: Engine) -> None:
        """A checkpoint of the last finished round, once, from a copy and in the background.

        Of several ranks each writes its part; the common file follows when all parts are there.
        """
        writer = self.writer
        if writer is None or self.done <= self.asked:
            return
        state = flatten(self.state) | {"engine/active": self.active}
        if not (places := engine.layout()):
            writer.save(self.done, writer.copies.take(state))
        else:
            self.commit(wait=True)  # the parts before, if they are still on their way
            rows = writer.copies.take({name: state.pop(name) for name in self.stacked})
            state |= {PLACES + name: t for name, t in places.items()}
            self.common = writer.copies.take(state) if self.ranks.is_first else {}
            about = (self.done, self.ranks.rank, self.ranks.size, engine.owned.cpu())
            self.parts = self.ranks.each(lambda: writer.save_part(*about, rows))
        self.asked = self.done

    def commit(self, wait: bool = False) -> None:
        """Several ranks: write the common file of a checkpoint when all have written their parts.

        Raises:
            RunError: on every rank, where one could not write.
        """
        if self.parts is None or self.writer is None:
            return
        writer, parts = self.writer, self.parts
        if not wait and not all(self.ranks.share(parts.done())):
            return
        seal = self.ranks.each(parts.result)
        names = (part_name(self.asked, rank, self.ranks.size) for rank in range(self.ranks.size))
        seals = dict(zip(names, self.ranks.share(seal), strict=True))
        self.ranks.first(lambda: writer.save(self.asked, self.common, seals))
        self.parts, self.common = None, {}

    def seal(self, **header: Any) -> None:
        """All checkpoints and records are on the disk; then `run.json` says so."""
        writer = self.writer
        if writer is None:
            return
        self.commit(wait=True)

        def work() -> None:
            writer.seal()
            writer.update_header(**header)

        self.ranks.first(work)


def open_run(
    out: str | Path | None,
    resume: bool,
    header: Mapping[str, Any],
    engine: Engine,
    ranks: Processes,
    algorithm: Method[Any],
    theta0: Params,
    held: ExitStack,
) -> Progress:
    """The folder, locked until `held` is closed, and how far the run in it has come."""
    state, count = algorithm.init(engine, theta0), engine.num_clients
    stacked = frozenset[str]()
    if engine.layout():
        nobody = flatten(algorithm.init(engine.empty(), theta0))
        stacked = frozenset(n for n, t in flatten(state).items() if t.shape != nobody[n].shape)
    if out is None or not resume:
        writer = None if out is None else _begin(Path(out), header, ranks, held)
        return Progress(state, engine.health.healthy, writer, header["rounds"], ranks, stacked)
    folder = RunFolder(Path(out))
    ranks.first(lambda: check_same(RunFolder.open(folder.path), header, algorithm))
    ranks.first(lambda: held.enter_context(writing(folder.path)))
    checkpoint = _last_whole(folder, engine, ranks, stacked)
    done = checkpoint.rounds if checkpoint else 0
    if checkpoint:
        saved = modern_state(checkpoint.tensors)
        active = _active(saved, count, may_grow="held" in folder.header)
        engine.quarantine(_reasons(folder, done, active))
        state = ranks.each(lambda: _restored(algorithm, state, saved, len(active), count))
    writer = _take_up(folder, done, header, ranks, held)
    rows = writer.history if ranks.is_first else RunFolder(folder.path).rows()
    times = RunFolder(folder.path).rows(TIMING) if ranks.is_first else []
    return Progress(
        state,
        engine.health.healthy,
        writer,
        header["rounds"],
        ranks,
        stacked,
        done=done,
        asked=done,
        history=[widened_row(row, count) for row in rows],
        graphs=_kept_graphs(folder, writer, count) if ranks.is_first else {},
        seconds=sum(row["seconds"] for row in times),
    )


def _kept_graphs(folder: RunFolder, writer: RunWriter, clients: int) -> dict[int, Matrix]:
    """The recorded graphs that are whole, of all clients that there are now."""
    rounds = [t for t in folder.graph_files() if writer.has(graph_name(t))]
    return {t: widened(folder.read_graph(t), clients) for t in rounds}


def _begin(path: Path, header: Mapping[str, Any], ranks: Processes, held: ExitStack) -> RunWriter:
    def work() -> RunWriter:
        check_free(path)
        make_folder(path)
        held.enter_context(writing(path))
        # looks again: somebody may have come
        return RunWriter.create(path, header)

    writer = ranks.first(work) or RunWriter(path, header)
    held.callback(writer.close)
    return writer


def _last_whole(
    folder: RunFolder, engine: Engine, ranks: Processes, stacked: frozenset[str]
) -> Checkpoint | None:
    """Where to go on: the newest checkpoint that is whole for all ranks, and whose rounds all have
    their line in `metrics.jsonl`. Warns about what is skipped. None: from the start.

    Raises:
        RunError: there are checkpoints, and none is usable; or a finished run has none.
    """
    lines = folder.lines(METRICS)
    rows = [row["round"] for row in lines.rows]
    recorded = next((n for n, t in enumerate(rows) if t != n), len(rows))
    [[recorded, candidates], *_] = ranks.share([recorded, folder.checkpoints()])
    problems: list[str] = []
    if any(rounds > recorded for rounds in candidates):
        why = lines.flaw or f"it has {recorded} rounds"
        problems.append(f"{folder.path / METRICS} is damaged: {why}")
    for rounds in [rounds for rounds in candidates if rounds <= recorded]:
        checkpoint, words = None, None
        try:
            checkpoint = _load(folder, rounds, engine, stacked)
        except RunError as error:
            words = str(error)
        found = [words for words in ranks.share(words) if words]
        if not found:
            if problems and ranks.is_first:
                sentence = f"{'; '.join(problems)}. The run continues from round {rounds}"
                warnings.warn(sentence, stacklevel=5)
            return checkpoint
        problems.append(found[0])
    return _from_the_start(folder, problems)


def _load(folder: RunFolder, rounds: int, engine: Engine, stacked: frozenset[str]) -> Checkpoint:
    """A checkpoint with the rows of the clients that this rank held then, and holds from now on."""
    if not engine.layout():
        return folder.load_checkpoint(rounds)
    common = folder.load_checkpoint(rounds, torch.arange(0)).tensors
    places = {n.removeprefix(PLACES): t for n, t in common.items() if n.startswith(PLACES)}
    engine.restore(places)
    return folder.load_checkpoint(rounds, engine.owned.cpu(), older_names(stacked))


def _from_the_start(folder: RunFolder, problems: list[str]) -> None:
    """No checkpoint is usable. A run that lost its checkpoints is not silently begun again."""
    if problems:
        raise RunError(
            f"{'; '.join(problems)}. No checkpoint is left to continue: bring back whole copies, "
            f"or repeat the run with `scool rerun {folder.path}`; `scool verify {folder.path}` "
            "says what is whole"
        )
    if RunFolder.open(folder.path).header.get("status") == "finished":
        raise RunError(
            f"{folder.path} is a finished run whose models were not kept (no checkpoint): there is "
            f"nothing to continue from. `scool rerun {folder.path}` repeats it in a new folder"
        )


def _take_up(
    folder: RunFolder, done: int, header: Mapping[str, Any], ranks: Processes, held: ExitStack
) -> RunWriter:
    """Go on after round `done`; `resumed` tells of rounds that other versions make."""

    def work() -> RunWriter:
        before = folder.header
        changes: dict[str, Any] = {"reason": None} if before.get("reason") else {}  # of a failure
        resumed: list[Any] = before.get("resumed") or []
        last = resumed[-1]["versions"] if resumed else before.get("versions")
        if (now := header["versions"]) != last:
            changes["resumed"] = [*resumed, {"after_round": done, "versions": now}]
        changes |= {"status": "running", "rounds": header["rounds"]}
        return RunWriter.take_up(folder, done, **changes)

    writer = ranks.first(work) or RunWriter(folder.path, RunFolder(folder.path).header)
    held.callback(writer.close)
    return writer


def _restored(method: Method[S], fresh: S, saved: Mapping[str, Tensor], before: int, now: int) -> S:
    """The state of a checkpoint; grown, where more clients have come since."""
    if now == before:
        return unflatten(fresh, saved)
    return method.grow(unflatten(fresh, saved, clients=before), fresh)


def _active(saved: dict[str, Tensor], clients: int, may_grow: bool) -> Tensor:
    """Takes (K,) bool, who takes part, out of a checkpoint; that of a peer may be of fewer clients
    than there are now.

    Raises:
        RunError: it is not there, or of others.
    """
    active = saved.pop("engine/active", None)
    if active is None or active.dtype != torch.bool or active.dim() != 1:
        raise RunError("the checkpoint does not say who takes part: it is of another version")
    if len(active) > clients or (len(active) < clients and not may_grow):
        raise RunError(
            f"the checkpoint is of {len(active)} clients, and there are {clients}: bring back what "
            "it was made with (of a peer the newest edition of the agreement)"
        )
    return active


def _reasons(folder: RunFolder, done: int, active: Tensor) -> dict[int, Reason]:
    """Why each client in quarantine is there, as the row of the last saved round tells."""
    row = next((row for row in folder.rows() if row["round"] == done - 1), {"quarantined": {}})
    out = (~active).nonzero()[:, 0].tolist()
    return {client: Reason.read(row["quarantined"].get(str(client), "before")) for client in out}
