"""A figure for a paper: the picture, and its numbers as CSV beside it."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from scool.display.curves import Plot, Row, plot_accuracy, plot_budget, plot_gains, plot_graph_error
from scool.display.graphs import plot_blocks, plot_graph, plot_partition
from scool.display.records import RunRecord, find_runs, read_runs
from scool.display.style import COLUMN
from scool.errors import require, unknown
from scool.recording.disk import write_bytes
from scool.recording.folder import make_folder

KINDS: dict[str, tuple[Callable[[Sequence[RunRecord], float], Plot], str]] = {
    "accuracy": (plot_accuracy, "score over rounds, a line per method"),
    "graph": (plot_graph, "who learns from whom in the last round, beside the true graph"),
    "graph-error": (
        plot_graph_error,
        "L1 distance to the true graph and adjusted Rand index over rounds",
    ),
    "budget": (plot_budget, "score over the bytes sent"),
    "partition": (plot_partition, "how many samples of which class each client has"),
    "gains": (plot_gains, "what each client gained over learning alone"),
    "blocks": (plot_blocks, "the block of each client over rounds"),
}
FORMATS = (".pdf", ".png", ".svg")


def write_plot(kind: str, paths: Sequence[Path], out: Path, columns: int = 1) -> tuple[Path, Path]:
    """Draw one kind of figure of some runs.

    Args:
        kind: a key of `KINDS`.
        paths: run folders or comparisons.
        out: the picture, by its ending pdf, png or svg; the CSV gets the same name.
        columns: 1 or 2 columns of a paper wide.

    Returns:
        the picture and its table.
    """
    if kind not in KINDS:
        unknown("plot", kind, KINDS)
    is_known = out.suffix.lower() in FORMATS
    require(is_known, "out", str(out), "end the name in .pdf, .png or .svg")
    require(columns in (1, 2), "columns", columns, "give 1 or 2")
    records = read_runs(find_runs(paths))
    width = COLUMN if columns == 1 else 2 * COLUMN + 0.25
    plot = KINDS[kind][0](records, width)
    make_folder(out.parent)
    write_bytes(out, plot.figure.render(out.suffix[1:].lower(), dpi=300))
    table = out.with_suffix(".csv")
    write_bytes(table, as_csv(plot.rows).encode())
    return out, table


def as_csv(rows: Sequence[Row]) -> str:
    """A table with a head; empty where a value is not known.

    >>> as_csv([{"method": "a, b", "mean": 0.5}, {"method": "c", "mean": None}])
    'method,mean\\n"a, b",0.5\\nc,\\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
