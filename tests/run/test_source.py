"""Which state of the source made a record."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scool.run import identity

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not here")


@pytest.fixture(autouse=True)
def only_repositories_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may reach the repository that the tests are run from, as in a hook of it."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package in it."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "README.md").touch()
    git(tmp_path, "init")
    monkeypatch.setattr(identity, "PACKAGE", package)
    return tmp_path


def commit_now() -> str | None:
    """What is said now, not what is remembered."""
    return identity.source_commit.__wrapped__()


def git(folder: Path, *words: str) -> str:
    nobody = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    command = ["git", "-C", str(folder), *nobody, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_clone_has_a_commit_and_says_if_the_package_was_changed(clone: Path) -> None:
    (clone / ".gitignore").write_text("__pycache__\n")
    git(clone, "add", ".")
    git(clone, "commit", "-m", "first")
    git(clone, "tag", "-a", "v1", "-m", "the name of a tag would not last")
    first = git(clone, "rev-parse", "HEAD")
    assert commit_now() == first and len(first) == 40
    (clone / "README.md").write_text("changed: no part of the package")
    assert commit_now() == first
    (clone / "package" / "method.py").write_text("new")
    assert commit_now() == first + "+"
    git(clone, "add", ".")
    git(clone, "commit", "-m", "second")
    second = git(clone, "rev-parse", "HEAD")
    assert commit_now() == second != first
    (clone / "package" / "method.py").write_text("changed")
    assert commit_now() == second + "+"


def test_a_hook_of_another_repository_does_not_confuse_it(
    clone: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(clone, "add", ".")
    git(clone, "commit", "-m", "first")
    other = tmp_path_factory.mktemp("other")
    git(other, "init")
    first = git(clone, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    commit = commit_now()
    assert commit is not None and commit.startswith(first)


def test_what_is_no_clone_has_none(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(clone, "commit", "--allow-empty", "-m", "somebody else's")
    assert commit_now() is None  # a package that is not of this repository
    git(clone, "add", ".")
    assert commit_now() is not None
    shutil.rmtree(clone / ".git")
    assert commit_now() is None
    monkeypatch.setenv("PATH", "")
    assert commit_now() is None  # no git
