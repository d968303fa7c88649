"""`scool plot KIND RUN ... --out FILE`: a figure for a paper, with its numbers as CSV."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.display.figure import KINDS, write_plot
from scool.errors import ConfigError, nearest


@dataclass(frozen=True)
class PlotCommand:
    """Draw a figure, and write its numbers as CSV beside it."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs or of comparisons."""
    out: Path | None = None
    """The picture; its ending (pdf, png, svg) decides the format. Default: KIND.pdf."""
    columns: int = 1
    """1 or 2 columns of a paper wide."""


def usage() -> str:
    lines = [f"  {name:<12} {about}" for name, (_, about) in KINDS.items()]
    return "usage: scool plot KIND RUN [RUN ...] --out FILE.pdf|png|svg\n\nkinds:\n" + "\n".join(
        lines
    )


def plot(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    kind, *rest = arguments
    if kind not in KINDS:
        raise ConfigError(f"unknown plot {kind!r}: {nearest(kind, KINDS)}")
    command = tyro.cli(
        PlotCommand, args=rest, prog=f"scool plot {kind}", description=KINDS[kind][1]
    )
    if not command.runs:
        raise ConfigError(f"scool plot {kind} needs a run: scool plot {kind} RUN [RUN ...]")
    out = command.out or Path(f"{kind}.pdf")
    for path in write_plot(kind, command.runs, out, command.columns):
        print(path)
    return 0
