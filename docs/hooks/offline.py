"""Two steps of `mkdocs build`: formulas become MathML, and no page may load from a network.

Browsers draw MathML by themselves, so that the site needs neither a script nor a font for its
formulas. A formula that cannot be converted, and a page that loads something from elsewhere, stop
the build. Links that a reader follows are free to lead anywhere.
"""

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
ELSEWHERE = re.compile(r"\s*(?:https?:|wss?:)?//", re.IGNORECASE)
IN_STYLES = re.compile(r"""(?:url\(\s*|@import\s*)["']?(?=(?:https?:)?//)([^"')\s;]+)""")
LOADING = ("src", "srcset", "poster", "data")  # attributes that fetch, whatever their element


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """mkdocs calls this with the body of each page, docstrings included."""
    from math_core import LatexError, LatexToMathML
    from mkdocs.exceptions import PluginError

    converter = LatexToMathML()

    def convert(match: re.Match[str]) -> str:
        latex = unescape(match.group(2)).strip()
        try:
            display = latex.startswith(r"\[")
            return converter.convert_with_local_state(latex[2:-2].strip(), displaystyle=display)
        except LatexError as error:
            raise PluginError(f"{page.file.src_uri}, formula {latex}: {error}") from error

    return FORMULA.sub(convert, html)


def on_post_build(config: Any, **_: Any) -> None:
    """mkdocs calls this when the site is on disk."""
    from mkdocs.exceptions import PluginError

    site = Path(config.site_dir)
    found = [f"{path.relative_to(site)} loads {name}" for path, name in from_elsewhere(site)]
    if found:
        raise PluginError("the site needs a network:\n" + "\n".join(found))


def from_elsewhere(site: Path) -> list[tuple[Path, str]]:
    """What pages and style sheets would load from a network."""
    found: list[tuple[Path, str]] = []
    for path in sorted(site.rglob("*.html")):
        reader = _Loads()
        reader.feed(path.read_text())
        found += [(path, address) for address in reader.addresses]
    for path in sorted(site.rglob("*.css")):
        found += [(path, address) for address in IN_STYLES.findall(path.read_text())]
    return found


class _Loads(HTMLParser):
    """Collects the addresses of a network that a page loads without being asked."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style = tag == "style"
        rel = (dict(attrs).get("rel") or "").split()
        fetched = tag == "link" and not {"canonical", "prev", "next", "alternate"} & set(rel)
        for name, value in attrs:
            if name in LOADING or (name == "href" and fetched):
                places = (value or "").split(",") if name == "srcset" else [value or ""]
                self.addresses += [place.strip() for place in places if ELSEWHERE.match(place)]
            if name == "style":
                self.addresses += IN_STYLES.findall(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.addresses += IN_STYLES.findall(data)
