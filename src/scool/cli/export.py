"""`scool export RUN --out DIR`: the graph and the models of a run for other programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.display.records import check_run, read_run
from scool.recording.folder import RunFolder
from scool.recording.models import read_fixed
from scool.run.graph import Graph
from scool.run.load import theta_of
from scool.run.views import write_export


@dataclass(frozen=True)
class ExportCommand:
    """Write each client's model as of the newest checkpoint, and the graph of that round as GraphML
    and CSV."""

    run: tyro.conf.Positional[Path]
    """The folder of a run."""
    out: Path | None = None
    """Folder for the files; default: `export` inside the run."""


def export(arguments: Sequence[str]) -> int:
    command = tyro.cli(ExportCommand, args=list(arguments), prog="scool export")
    check_run("run", command.run)
    out = command.out or command.run / "export"
    record, folder = read_run(command.run), RunFolder(command.run)
    rounds, theta = theta_of(folder)
    clients, found, graph = record.clients, record.last_graph(rounds), None
    if found is not None:
        names = clients.client_names if clients else None
        graph = Graph.of(
            found[1],
            f"{record.method}, round {found[0] + 1}",
            tuple(names) if names else None,
            clients.groups if clients else None,
        )
    files = write_export(graph, theta, read_fixed(folder), record.header, clients, out)
    print(f"{out}: {len(files)} files")
    return 0
