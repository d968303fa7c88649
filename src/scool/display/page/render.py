"""One self-contained HTML page of one or many runs, to be opened from a file, offline."""

import html
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

from scool.display.page.content import Content, page_content
from scool.display.page.pack import compress, compress_json
from scool.display.records import find_runs, missing_methods, read_runs
from scool.errors import ScoolError
from scool.recording.disk import write_bytes
from scool.recording.folder import make_folder
from scool.version import __version__

SCRIPTS = (
    "core.js",
    "tables.js",
    "overview.js",
    "graph.js",
    "client.js",
    "cost.js",
    "main.js",
)


def write_report(paths: Sequence[Path], out: Path | None = None, title: str | None = None) -> Path:
    """Write `report.html` about some runs; a comparison counts as its runs.

    Args:
        paths: run folders, or folders that hold some.
        out: a folder for `report.html`, or a name that ends in .html; default: the only folder
            given, else the current one.

    Returns:
        the path of the page.
    """
    runs = find_runs(paths)
    problems = [
        f"{path.name}: {method} has not started"
        for path in paths
        if (path / "compare.json").is_file()
        for method in missing_methods(path)
    ]
    records = read_runs(runs)
    words = title or f"scool: {', '.join(path.resolve().name for path in paths)}"
    text = render(page_content(records, words, problems))
    place = out or (paths[0] if len(paths) == 1 else Path("."))
    page = place if place.suffix == ".html" else place / "report.html"
    make_folder(page.parent)
    write_bytes(page, text.encode())
    return page


def render(content: Content) -> str:
    """The page as text. Everything that comes from data travels packed and is shown as text."""
    assets = files("scool.display.page") / "assets"
    blobs = {"values": compress_json(content.values), "plotly": _plotly(), **content.blobs}
    return Template((assets / "page.html").read_text()).substitute(
        title=html.escape(content.values["title"]),
        version=__version__,
        style=(assets / "page.css").read_text(),
        script="\n".join((assets / name).read_text() for name in SCRIPTS),
        blobs="\n".join(
            f'<script type="text/plain" id="blob-{name}">{text}</script>'
            for name, text in blobs.items()
        ),
    )


@cache
def _plotly() -> str:
    """Plotly's own bundle, packed: a third of its size."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ScoolError(
            "the report needs plotly, which is not installed: pip install plotly"
        ) from error
    return compress(get_plotlyjs().encode())
