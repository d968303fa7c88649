"""Small pieces of HTML for notebooks. Text is always escaped."""

import base64
from collections.abc import Sequence
from html import escape
from typing import Any

from scool.display.style import Picture


def html_table(rows: Sequence[tuple[Any, Any]], title: str = "") -> str:
    """Names and values side by side.

    >>> html_table([("data", "<b>")])
    '<table><tr><th style="text-align:left">data</th><td style="text-align:left">&lt;b&gt;</td></tr></table>'
    """  # noqa: E501
    left = 'style="text-align:left"'
    lines = [f"<tr><th {left}>{escape(str(n))}</th><td {left}>{escape(str(v))}</td></tr>"
             for n, v in rows]  # fmt: skip
    head = f"<caption {left}>{escape(title)}</caption>" if title else ""
    return f"<table>{head}{''.join(lines)}</table>"


def inline(picture: Picture, alt: str) -> str:
    """A picture inside the page."""
    data = base64.b64encode(picture.render("png", dpi=150)).decode("ascii")
    style = "max-width:100%;background:white"
    return f'<img style="{style}" alt="{escape(alt)}" src="data:image/png;base64,{data}">'
