"""`scool plot KIND RUN ... --out FILE`: a figure for a paper, with its numbers as CSV."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from scool.display.figure import KINDS, write_plot
from scool.errors import ConfigError, nearest

ABOUT = {
    "accuracy": "score over rounds, a line a method",
    "graph": "who learns from whom in the last round, beside the true graph",
    "graph-error": "L1 distance to the true graph and adjusted Rand index over rounds",
    "budget": "score over the bytes sent",
    "partition": "who has how many samples of which class",
    "gains": "what each client gained over learning alone",
    "blocks": "the block of each client over rounds",
}


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
    lines = [f"  {name:<12} {about}" for name, about in ABOUT.items()]
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
    command = tyro.cli(PlotCommand, args=rest, prog=f"scool plot {kind}", description=ABOUT[kind])
    if not command.runs:
        raise ConfigError(f"scool plot {kind} needs a run: scool plot {kind} RUN [RUN ...]")
    out = command.out or Path(f"{kind}.pdf")
    for path in write_plot(kind, command.runs, out, command.columns):
        print(path)
    return 0
