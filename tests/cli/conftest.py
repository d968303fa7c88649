"""A fixture of several tests of the command line."""

from pathlib import Path

import pytest


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCOOL_DATA", raising=False)
