"""Light records: what tables and figures need of a run, without models and most graphs.

A finished run keeps `run.json`, `metrics.jsonl`, `timing.jsonl`, `graph_error.jsonl`,
`clients.safetensors` and the graphs of a few rounds: some hundred kilobytes, fit to be committed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from scool.data.federation import Federation
from scool.evaluation.scores import describe_graph
from scool.graph.edges import Edges, as_matrix
from scool.recording.checkpoint import part_names
from scool.recording.folder import METRICS, TIMING, RunFolder, checkpoint_name, graph_name
from scool.recording.writer import RunWriter
from scool.run.progress import EARLY, LONG
from scool.types import Info

SHOWN_ROUNDS = (1, 2, 5, 10, 20, 50)
"""Rounds (from 1) whose graphs are kept for pictures, besides the last."""
GRAPH_ERROR = "graph_error.jsonl"


@final
class LightRecords:
    """A recorder: measures the early graphs against the truth, and forgets most of them."""

    def __init__(self, federation: Federation, rounds: int, *, pictures: bool) -> None:
        self.federation = federation
        self.kept = {rounds - 1} | ({t - 1 for t in SHOWN_ROUNDS} if pictures else set[int]())

    def attach(self, writer: RunWriter) -> None:
        """Called with the writer of the run's records."""
        self.writer = writer

    def start(self, header: Mapping[str, Any], first_round: int) -> None:
        """Drop what the checkpoint does not cover, and measure the rounds that it covers but a stop
        left unmeasured: their graphs still exist."""
        del header
        folder = RunFolder(self.writer.path)
        rows = [row for row in folder.rows(GRAPH_ERROR) if row["round"] < first_round]
        done = {row["round"] for row in rows}
        for t, graph in folder.graphs().items():
            if t not in done:
                rows += self._measure(t, as_matrix(graph))
            self._forget(t)
        self.writer.rewrite(GRAPH_ERROR, sorted(rows, key=lambda row: row["round"]))

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        t, graph = int(row["round"]), info["graph"]
        assert isinstance(graph, Tensor | Edges)
        for found in self._measure(t, as_matrix(graph).cpu().float()):  # as the file has it
            self.writer.append(GRAPH_ERROR, found)
        self._forget(t)

    def _measure(self, t: int, graph: Tensor) -> list[dict[str, Any]]:
        """The row of an early round, where the true graph is known."""
        if t >= EARLY or self.federation.truth is None:
            return []
        everyone = torch.ones(len(graph), dtype=torch.bool)
        return [{"round": t, **describe_graph(graph, everyone, self.federation)}]

    def _forget(self, t: int) -> None:
        if t not in self.kept:
            self.writer.forget(graph_name(t))

    def end(self, result: Any) -> None:
        """`tidy` does the rest, once the header says that the run is over."""


def tidy(path: Path) -> None:
    """Drop the models of a run that is over, and the rows between the evaluations of a long one.
    Doing it again changes nothing."""
    folder = RunFolder(path)
    states = [
        name
        for rounds in folder.checkpoints()
        for name in (checkpoint_name(rounds), *part_names(path, rounds))
    ]
    rows = folder.rows()
    evaluated = {row["round"] for row in rows if row.get("scores") is not None}
    evaluated |= {row["round"] for row in rows[-1:]}
    is_thin = len(rows) <= LONG or len(rows) == len(evaluated)
    if not states and is_thin:
        return
    writer = RunWriter.open(path)
    writer.forget(*states)
    if not is_thin:
        # The times first: the rows say which rounds they belong to as long as they are all there.
        writer.rewrite(TIMING, thin(folder.rows(TIMING), evaluated))
        writer.rewrite(METRICS, thin(rows, evaluated))


def thin(rows: Sequence[Mapping[str, Any]], kept: set[int]) -> list[dict[str, Any]]:
    """The rows of some rounds, each with what was spent since the one before, and the mean training
    loss since then.

    >>> thin([{"round": 0, "bytes": 1, "loss": 5.0}, {"round": 1, "bytes": 2, "loss": 4.0}], {1})
    [{'round': 1, 'bytes': 3, 'loss': 4.0}]
    """
    found: list[dict[str, Any]] = []
    since: list[Mapping[str, Any]] = []
    for row in rows:
        since.append(row)
        if row["round"] in kept:
            spent = {name: _total([r[name] for r in since if name in r]) for name in _SPENT}
            losses = [r["train_loss"] for r in since if r.get("train_loss") is not None]
            spent["train_loss"] = sum(losses) / len(losses) if losses else None
            found.append({**row, **{name: spent[name] for name in spent if name in row}})
            since = []
    return found


_SPENT = ("messages", "bytes", "epochs", "traffic", "seconds", "rank_bytes", "rank_traffic")


def _total(values: Sequence[Any]) -> Any:
    """The sum of numbers, or of tables of numbers name by name."""
    if values and isinstance(values[0], Mapping):
        names = sorted({name for value in values for name in value})
        return {name: sum(value.get(name, 0) for value in values) for name in names}
    return sum(values)
