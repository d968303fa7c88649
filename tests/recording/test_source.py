"""Which state of the source made a record."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from scool.recording import source

NOBODY = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]


def commit_of(package: Path) -> str | None:
    """What the module says, as if it lay in this folder."""
    spec = importlib.util.spec_from_file_location("somewhere", package / "source.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.source_commit()


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *NOBODY, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "source.py").write_bytes(Path(source.__file__).read_bytes())
    return package


def test_a_clone_has_a_commit_and_says_if_it_was_changed(package: Path) -> None:
    git(package, "init")
    git(package, "add", ".")
    git(package, "commit", "-m", "first")
    git(package, "tag", "v1")  # the name of a tag would not last
    first = git(package, "rev-parse", "HEAD")
    assert commit_of(package) == first
    (package / "__init__.py").write_text("changed")
    assert commit_of(package) == first + "+"


def test_an_installed_package_has_none(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit_of(package) is None  # no repository
    git(package.parent, "init")
    git(package.parent, "commit", "--allow-empty", "-m", "somebody else's")
    assert commit_of(package) is None
    git(package.parent, "add", ".")
    assert commit_of(package) is not None
    monkeypatch.setenv("PATH", "")
    assert commit_of(package) is None  # no git
