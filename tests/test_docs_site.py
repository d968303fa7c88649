"""The steps of `mkdocs build` in docs/hooks: MathML for formulas, and nothing from a network."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
HOOK = runpy.run_path(str(ROOT / "docs" / "hooks" / "offline.py"))
PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="paper.md"))


def test_the_build_runs_the_steps() -> None:
    assert "hooks:\n  - docs/hooks/offline.py\n" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize(
    "loads",
    [
        '<script src="https://a.example/x.js"></script>',
        "<script async src=//a.example/x.js></script>",
        '<link rel="stylesheet" href="http://a.example/x.css">',
        '<link rel="preconnect" href="https://a.example">',
        '<img srcset="here.png 1x, https://a.example/x.png 2x">',
        "<style>@import 'https://a.example/x.css';</style>",
        '<p style="background: url(//a.example/x.png)">',
    ],
)
def test_what_comes_from_a_network_is_found(loads: str, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text(f"<html>{loads}</html>")
    ((path, address),) = HOOK["from_elsewhere"](tmp_path)
    assert path.parent.name == "page" and "a.example" in address


def test_a_page_that_needs_a_network_stops_the_build(tmp_path: Path) -> None:
    exceptions = pytest.importorskip("mkdocs.exceptions")
    (tmp_path / "index.html").write_text('<script src="https://a.example/x.js"></script>')
    with pytest.raises(exceptions.PluginError, match=r"index\.html loads https://a\.example/x\.js"):
        HOOK["on_post_build"](SimpleNamespace(site_dir=str(tmp_path)))


def test_style_sheets_are_searched() -> None:
    sheet = 'a { src: url(x.woff2) } b { src: url("https://a.example/x.woff2") }'
    assert HOOK["IN_STYLES"].findall(sheet) == ["https://a.example/x.woff2"]


def test_links_and_files_of_the_site_are_free(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="https://a.example">there</a> <link rel="canonical" href="https://a.example/">'
        '<script src="../x.js"></script> <img src="data:image/png;base64,AA//BB==">'
        "<code>&lt;script src='https://a.example/x.js'&gt;</code>"
    )
    assert HOOK["from_elsewhere"](tmp_path) == []


def test_formulas_become_mathml() -> None:
    pytest.importorskip("math_core")
    pytest.importorskip("mkdocs")
    html = r'<p>a <span class="arithmatex">\(w_{ij} &lt; 1\)</span> b</p>'
    block = '<div class="arithmatex">\\[\n\\sum_j w_{ij}\n\\]</div>'
    made = HOOK["on_page_content"](html + block, page=PAGE)
    assert made.startswith("<p>a <math><msub>") and made.count("<math") == 2
    assert 'display="block"' in made and "arithmatex" not in made and "\\" not in made


def test_a_formula_that_cannot_be_read_stops_the_build() -> None:
    pytest.importorskip("math_core")
    exceptions = pytest.importorskip("mkdocs.exceptions")
    html = r'<span class="arithmatex">\(\thetta_i\)</span>'
    with pytest.raises(exceptions.PluginError, match=r"paper\.md, formula .*thetta_i.*: "):
        HOOK["on_page_content"](html, page=PAGE)
