"""What the documents say is true: snippets run, names exist, equations and their keys agree."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import scool
from scool.algorithms import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
KEY = re.compile(r"\[[A-Z]+(?:-[A-Za-z]+)?\]")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _snippets(path: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, with the line each begins in."""
    text = path.read_text()
    return [(text.count("\n", 0, m.start(1)), m.group(1)) for m in BLOCK.finditer(text)]


WITH_CODE = [path for path in PAGES if _snippets(path)]


def test_pages_with_code_are_found() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/index.md"} <= {_name(path) for path in WITH_CODE}


@pytest.mark.parametrize("path", WITH_CODE, ids=_name)
def test_snippets_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, as one program, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("snippets")
    monkeypatch.setitem(sys.modules, "snippets", module)  # dataclasses look their module up
    for line, code in _snippets(path):
        exec(compile("\n" * line + code, str(path), "exec"), module.__dict__)
    assert not list(tmp_path.iterdir()), "a snippet leaves nothing behind"


def test_the_files_and_functions_of_the_walk_exist() -> None:
    """CONTRIBUTING names no file that has moved."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    source = ROOT / "src" / "scool"
    engine = source / "engine"
    named = set(re.findall(r"`((?:[\w-]+/)*[\w-]+(?:/|\.py|\.md))`", text)) - {"utils.py"}
    assert {"run/loop.py", "engine/", "docs/paper.md"} <= named
    places = (ROOT, source, engine, source / "algorithms")
    assert [name for name in named if not any((at / name).exists() for at in places)] == []
    walked = re.findall(r"`(\w+)` in `([\w/]+\.py)`", text.replace("\n", " "))
    assert {"carry_out", "describe_round"} <= {function for function, _ in walked}
    for function, file in walked:
        assert f"def {function}(" in (source / file).read_text()


def _docstrings() -> Iterator[str]:
    for path in sorted((ROOT / "src" / "scool").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""


def _first_cells(text: str) -> list[str]:
    """The first column of every table row."""
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]


def test_every_key_is_listed_and_every_listed_key_is_used() -> None:
    used = {key for text in _docstrings() for key in KEY.findall(text)}
    cells = _first_cells((ROOT / "docs" / "paper.md").read_text())
    listed = [cell.strip("`") for cell in cells if KEY.fullmatch(cell.strip("`"))]
    assert len(listed) == len(set(listed))
    assert set(listed) == used


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_keys_named_on_a_page_exist(path: Path) -> None:
    used = {key for text in _docstrings() for key in KEY.findall(text)}
    named = {
        key for code in re.findall(r"`([^`\n]+)`", path.read_text()) for key in KEY.findall(code)
    }
    assert named <= used


def test_paper_page_points_to_code_that_exists() -> None:
    text = (ROOT / "docs" / "paper.md").read_text()
    for file in set(re.findall(r"`([a-z_/]+\.py)`", text)):
        assert (ROOT / "src" / "scool" / file).is_file(), file
    for row in (line for line in text.splitlines() if line.startswith("| `[")):
        cell = row.split("|")[4]
        files = re.findall(r"`([a-z_/]+\.py)`", cell)
        source = "".join((ROOT / "src" / "scool" / file).read_text() for file in files)
        for name in re.findall(r"`([A-Za-z_.]+)`", re.sub(r"`[a-z_/]+\.py`", "", cell)):
            assert re.search(rf"(?:def|class) {name.split('.')[-1]}\b", source), name


def test_the_page_of_methods_lists_all() -> None:
    cells = _first_cells((ROOT / "docs" / "methods.md").read_text())
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert set(METHODS) <= named


def test_readme_is_a_front_door() -> None:
    """Short; the methods it advises exist, and ours that no paper has is not the first."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    table = text.split("## Which method to take")[1].split("\n## ")[0]
    advised = re.findall(r"^\| [^`\n]* \| `([a-z0-9-]+)`", table, re.MULTILINE)
    assert len(advised) >= 4 and set(advised) <= set(METHODS)
    assert advised[0] == "local" and advised[-1] == "scool-drawn"


def test_numbers_of_the_readme_stand_on_the_pages_it_links() -> None:
    """Every percentage and every time under Results, on the page that its item ends with."""
    text = (ROOT / "README.md").read_text().split("\n## Results\n")[1].split("\n## ")[0]
    items = text.strip().split("\n- ")
    assert len(items) == 4
    for item in items:
        (page,) = re.findall(r"\]\((docs/[a-z]+\.md)\)$", item.strip())
        numbers = re.findall(r"\d+\.\d+|\d+(?= s\b)", item)
        there = set(re.findall(r"\d+(?:\.\d+)?", (ROOT / page).read_text()))
        assert numbers and set(numbers) <= there, page


def test_reference_has_all_public_names() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    assert set(re.findall(r"^::: scool\.(\w+)$", text, re.MULTILINE)) - {"contracts"} == set(
        scool.__all__
    )


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_links_inside_the_repository_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_all_pages_are_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert f" {page.relative_to(ROOT / 'docs')}" in nav
