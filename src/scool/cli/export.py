"""`scool export RUN --out DIR`: the graph and the models of a run for other programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.display.records import check_run
from scool.run.export import of_run, write_export


@dataclass(frozen=True)
class ExportCommand:
    """Write each client's model as of the newest checkpoint, the graph of that round as GraphML and
    CSV, and a README.txt that says how to use them."""

    run: tyro.conf.Positional[Path]
    """The folder of a run."""
    out: Path | None = None
    """Folder for the files; default: `export` inside the run."""
    client: str | None = None
    """The name or number of one client: export only what belongs to it."""
    onnx: bool = False
    """Also write each model as an ONNX program; needs scool[onnx]."""


def export(arguments: Sequence[str]) -> int:
    command = tyro.cli(ExportCommand, args=list(arguments), prog="scool export")
    check_run("run", command.run)
    out = command.out or command.run / "export"
    what, client = of_run(command.run), command.client
    is_number = client is not None and client.isdecimal() and client not in (what.names or ())
    which = int(client) if client is not None and is_number else client
    files = write_export(what, out, which, onnx=command.onnx)
    print(f"{out}: {len(files)} files; README.txt says how to use them")
    return 0
