"""One visual language: readable in grey, for colour-blind readers, and in a column of a paper."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import matplotlib.style
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by colour-blind readers; line styles serve readers in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
COLUMN = 3.35
"""Inches: one column of a two-column paper."""
WIDE = 2 * COLUMN + 0.25
"""Inches: both columns."""

# From white to dark blue, as on the page: one hue whose lightness falls steadily.
WEIGHTS = LinearSegmentedColormap.from_list(
    "weights", ["#f4f7fa", "#bcd3ea", "#6aa0d0", "#2465a4", "#0a2a52"]
)

_RC: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,  # letters stay letters; journals refuse type 3
    "svg.hashsalt": "scool",  # the same figure gives the same file
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of the library, whatever the program around it has set.

    Nothing is taken from a `matplotlibrc` either: matplotlib also reads one from the working
    directory, which could call LaTeX with a preamble of its own.
    """
    with matplotlib.style.context(["default", _RC]):
        yield


@final
class Picture(Figure):
    """A matplotlib figure without a window; a notebook shows it by itself."""

    def _repr_png_(self) -> bytes:
        return self.render("png")

    def render(self, kind: str, dpi: int = 200) -> bytes:
        """The picture as a file: png, pdf or svg, equal for equal figures."""
        content = io.BytesIO()
        dates: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
        with styled():
            self.savefig(content, format=kind, dpi=dpi, metadata=dates.get(kind))
        return content.getvalue()


def picture(
    rows: int = 1, columns: int = 1, width: float = COLUMN, height: float = 2.4
) -> tuple[Picture, Any]:
    """A picture and a grid of its axes, (rows, columns)."""
    figure = Picture(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def line_style(number: int) -> dict[str, Any]:
    """The n-th line: colour and dashes differ from its neighbours, and do not repeat before 32."""
    return {"color": COLOURS[number % 8], "linestyle": STYLES[(number + number // 8) % 4]}


def marker_of(number: int) -> str:
    return MARKERS[(number + 3 * (number // 8)) % 8]
