"""Exports of a run: models that strangers can use, the graph, and a description of both."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scool.data.client import find_client
from scool.display.records import read_run
from scool.errors import RunError
from scool.evaluation.metrics import SCORE
from scool.models import fixed_tensors
from scool.recording.clients import Clients, describe_clients
from scool.recording.disk import write_bytes
from scool.recording.folder import RunFolder, is_taken, make_folder
from scool.recording.models import model_name, read_fixed, write_model
from scool.recording.seals import Manifest, whole_file
from scool.run.client_model import ClientModel
from scool.run.graph import Graph
from scool.run.load import about_model, assemble, held_by, one_of, theta_of
from scool.run.readme import Read, readme
from scool.types import Params, Tree
from scool.version import __version__

if TYPE_CHECKING:
    from scool.run.result import Result

FORMAT = "scool-export-1"


@dataclass(frozen=True)
class Exported:
    """The parts of an export, from a run folder or from a result."""

    header: Mapping[str, Any]  # of the run
    clients: Clients | None  # None: records of an old version
    theta: Tree
    fixed: Params  # what the models have in common
    graph: Graph | None
    rounds: int
    row: Mapping[str, Any]  # of the round after which these are the models; empty: not evaluated
    ready: Callable[[int], ClientModel]  # the model of a client

    @property
    def held(self) -> list[int]:
        """The clients whose models there are."""
        return held_by(self.header, self.theta)

    @property
    def count(self) -> int:
        return self.clients.num_clients if self.clients else len(self.held)

    @property
    def names(self) -> Sequence[str] | None:
        return self.clients.client_names if self.clients else None

    def number(self, client: int | str) -> int:
        return find_client(client, self.count, self.names)

    def name(self, client: int) -> str:
        return self.names[client] if self.names else str(client)

    @property
    def task(self) -> Any:
        return self.clients.task if self.clients else None

    def scores(self, client: int) -> dict[str, float | None]:
        """What was measured on the client's own test samples."""
        if self.row.get("scores") is None or self.task is None:
            return {}
        found = {SCORE[self.task]: self.row["scores"][client]}
        return found | {n: values[client] for n, values in (self.row.get("metrics") or {}).items()}

    def sources(self, client: int) -> dict[str, float]:
        """Whom a client learned from in the last round, with weights, the largest first."""
        if self.graph is None:
            return {}
        row = self.graph[client]
        order = sorted(row.nonzero().flatten().tolist(), key=lambda j: -float(row[j]))
        return {self.name(j): float(row[j]) for j in order}


def of_result(result: "Result") -> Exported:
    """The export of a result."""
    header = {"run": result.run, "method": result.method, "model": result.network}
    last = result.history[-1] if result.history else {}
    return Exported(
        header | {"complete": True},
        describe_clients(result.federation),
        result.theta,
        fixed_tensors(result.module, result.theta),
        result.graph,
        result.rounds,
        last,
        result.ready,
    )


def of_run(path: Path) -> Exported:
    """The export of a run's newest checkpoint.

    Raises:
        RunError: it has none, or it cannot be read.
    """
    record, folder = read_run(path), RunFolder(path)
    rounds, theta = theta_of(folder)
    clients, found, graph = record.clients, record.last_graph(rounds), None
    if found is not None:
        names = clients.client_names if clients else None
        title = f"{record.method}, round {found[0] + 1}"
        groups = clients.groups if clients else None
        graph = Graph.of(found[1], title, tuple(names) if names else None, groups)
    fixed = read_fixed(folder)
    row = next((r for r in record.rows if r["round"] == rounds - 1), {})

    def ready(client: int) -> ClientModel:
        about = about_model(record.header, clients, client)
        return assemble({**fixed, **one_of(theta, record.header, client)}, about, None, path)

    return Exported(record.header, clients, theta, fixed, graph, rounds, row, ready)


def write_export(
    what: Exported, folder: Path, client: int | str | None = None, *, onnx: bool = False
) -> list[Path]:
    """The files for all clients, or for one of them alone.

    `models/` has a file per client, with `onnx` also one that needs neither scool nor torch;
    `about.json` and `README.txt` say what they are and how to use them; for all clients there are
    `clients.csv`, `graph.graphml` and `graph.csv`, too. `manifest.json` has the checksums.

    Raises:
        RunError: the folder holds something, which models of two runs would be mixed with.
        ConfigError: there is no such client.
        ScoolError: a package for ONNX is missing.
    """
    chosen = what.held if client is None else [what.number(client)]
    if is_taken(folder):
        raise RunError(f"{folder} exists already: choose another folder (--out)")
    if client is not None:
        one_of(what.theta, what.header, chosen[0], what.names)  # before anything is written
    programs = _programs(what, chosen) if onnx else {}
    make_folder(folder / "models")
    try:
        paths: list[Path] = []
        if what.graph is not None and client is None:
            paths.append(what.graph.write_graphml(folder / "graph.graphml"))
            paths.append(what.graph.write_csv(folder / "graph.csv"))
        seals: dict[Path, str] = {}
        for number in chosen:
            path = folder / "models" / model_name(number)
            tensors = {**what.fixed, **one_of(what.theta, what.header, number)}
            about = about_model(what.header, what.clients, number)
            seals[path] = write_model(path, tensors, about, what.header.get("run"))
        texts = {f"models/{Path(model_name(n)).stem}.onnx": text for n, text in programs.items()}
        texts |= {"about.json": _as_json(_about(what, chosen, onnx))}
        texts |= {"README.txt": _readme(what, chosen, onnx).encode()}
        if client is None:
            texts["clients.csv"] = _table(what, chosen).encode()
        for name, content in texts.items():
            write_bytes(folder / name, content)
        others = [*paths, *(folder / name for name in texts)]
        files = {path.relative_to(folder).as_posix(): whole_file(path) for path in others}
        files |= {path.relative_to(folder).as_posix(): seal for path, seal in seals.items()}
        Manifest(what.header.get("run") or "", files).write(folder)
    except RunError as error:
        raise RunError(f"{error}. {folder} is not whole: delete it before the next try") from error
    return [*paths, *seals, *(folder / name for name in texts)]


def _programs(what: Exported, chosen: Sequence[int]) -> dict[int, bytes]:
    from scool.run.onnx import onnx_programs

    return dict(zip(chosen, onnx_programs([what.ready(n) for n in chosen]), strict=True))


def _readme(what: Exported, chosen: Sequence[int], onnx: bool) -> str:
    first = chosen[0]
    tensors = {**what.fixed, **one_of(what.theta, what.header, first)}
    lines = [
        (what.name(client), what.scores(client), what.sources(client)) for client in chosen[:20]
    ]
    about = about_model(what.header, what.clients, first)
    return readme(Read(about, what.rounds, len(chosen), tensors, lines, model_name(first), onnx))


def _as_json(values: Any) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _about(what: Exported, chosen: Sequence[int], onnx: bool) -> dict[str, Any]:
    """What a program may want to know: of the run, and of each client."""
    clients = what.clients
    return {
        "format": FORMAT,
        "scool": __version__,
        "run": what.header.get("run"),
        "method": what.header.get("method"),
        "rounds": what.rounds,
        "data": clients.name if clients else None,
        "task": what.task,
        "clients": [_of_client(what, client, onnx) for client in chosen],
    }


def _of_client(what: Exported, client: int, onnx: bool) -> dict[str, Any]:
    """Network, inputs, classes and scaling as in the header of its file; scores; sources."""
    file = f"models/{model_name(client)}"
    about = about_model(what.header, what.clients, client)
    files = {"file": file} | ({"onnx": f"models/{Path(file).stem}.onnx"} if onnx else {})
    about = {name: value for name, value in about.items() if name not in ("method", "complete")}
    return about | files | {"test": what.scores(client), "learned_from": what.sources(client)}


def _table(what: Exported, chosen: Sequence[int]) -> str:
    """A line per client: number, name, and what was measured."""
    text = io.StringIO()
    rows = [{"client": n, "name": what.name(n), **what.scores(n)} for n in chosen]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
