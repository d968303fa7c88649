"""`scool report RUN ...`: one page about some runs."""

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.display.page.render import write_report
from scool.errors import ConfigError


@dataclass(frozen=True)
class ReportCommand:
    """Write one HTML page about runs or a comparison; it opens offline from a file."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs or of comparisons."""
    out: Path | None = None
    """Folder for report.html, or a name that ends in .html; default: the folder given, or here
    where there are several."""
    title: str | None = None
    """Title of the page; default: the names of the folders."""
    open: bool = False
    """Show the page in a browser."""


def report(arguments: Sequence[str]) -> int:
    command = tyro.cli(ReportCommand, args=list(arguments), prog="scool report")
    if not command.runs:
        raise ConfigError("scool report needs a run: scool report RUN [RUN ...]")
    path = write_report(command.runs, command.out, command.title)
    print(path)
    if command.open and not webbrowser.open(path.resolve().as_uri()):
        raise ConfigError(f"open is not possible here: no browser was found. Open {path} yourself")
    return 0
