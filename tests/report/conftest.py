"""Small runs that the tests of the report share."""

import shutil
from pathlib import Path

import pytest

from scool.cli.main import dispatch

SMALL = ["--clients", "6", "--groups", "2", "--epochs", "1", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three methods and two seeds; nobody writes into it."""
    out = tmp_path_factory.mktemp("made") / "comparison"
    words = ["compare", "--methods", "local,scool-sbm,scool-attention", "--rounds", "4"]
    words += ["--seeds", "2", "--set", "scool-sbm.sparsify_round=1", "--no-figures"]
    assert dispatch([*words, "--out", str(out), *SMALL]) == 0
    return out


@pytest.fixture
def comparison(made: Path, tmp_path: Path) -> Path:
    """A copy of the comparison, free to be broken."""
    return Path(shutil.copytree(made, tmp_path / "comparison"))
