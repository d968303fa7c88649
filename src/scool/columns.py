"""The numbers that are shown of a run. A metric is one entry here: every table, page and summary
has it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

EVERYWHERE = ("compare", "ls", "diff", "page", "csv", "paper")
"""Tables of runs; `csv` and `paper` are those of a reproduction."""


class Column(NamedTuple):
    """One number of a run."""

    name: str
    """In the summary of a run, and in what `--json` prints."""
    words: str
    """The head of its column."""
    form: str = "3"
    """Digits behind the point, or `count`, `bytes`."""
    of: str = "last round"
    """`last round`, a sum over `all rounds`, or the whole `run`."""
    row: str = ""
    """Its field in the records of a round, if that differs from its name."""
    tables: tuple[str, ...] = EVERYWHERE
    axis: str = ""
    """Its name in figures of the graph error; empty: they do not show it."""
    most: float | None = None
    """Where the axis of such a figure ends."""

    @property
    def field(self) -> str:
        return self.row or self.name

    def text(self, value: float | None, missing: str = "-") -> str:
        """A value as a table shows it.

        >>> Column("messages", "messages", "count").text(1650.0), Column("l1", "L1").text(None)
        ('1,650', '-')
        """
        if value is None:
            return missing
        if self.form == "bytes":
            return human_bytes(value)
        if self.form == "count":
            return f"{value:,.1f}".removesuffix(".0")
        return f"{value:.{self.form}f}"


_MOST = ("compare", "diff", "page")
COLUMNS = (
    Column("train_loss", "training loss", tables=()),
    Column("test_loss", "test loss", tables=()),
    Column("graph_l1", "graph L1", axis="L1 to the true graph"),
    Column("graph_ari", "ARI", "2", tables=_MOST, axis="adjusted Rand index", most=1.05),
    Column("elbo", "bound", tables=()),
    Column("rounds", "rounds", "0", "run", tables=_MOST),
    Column("epochs", "epochs", "count", "all rounds", tables=(*_MOST, "csv", "paper")),
    Column("bytes_sent", "sent", "bytes", "all rounds", row="bytes"),
    Column("messages", "messages", "count", "all rounds", tables=(*_MOST, "csv")),
    Column("seconds", "seconds", "1", "run", tables=(*_MOST, "ls", "csv")),
)
LAST = {column.name: column.field for column in COLUMNS if column.of == "last round"}
"""The numbers of the last round, and their fields in the records of a round."""


def shown(table: str) -> list[Column]:
    """The columns of one of the tables."""
    return [column for column in COLUMNS if table in column.tables]


def human_bytes(count: float) -> str:
    """Bytes with a unit.

    >>> human_bytes(46_176_000)
    '46.2 MB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def flatten_options(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted name.

    >>> flatten_options({"prior": {"num_blocks": 5}, "fraction": 0.1})
    {'prior.num_blocks': 5, 'fraction': 0.1}
    """
    if not isinstance(values, Mapping):
        return {prefix: values}
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flatten_options(value, f"{prefix}.{name}" if prefix else str(name))
    return found
