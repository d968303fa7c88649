"""Small runs that the tests of the report share."""

import shutil
from pathlib import Path

import pytest

import scool
from scool.cli.main import dispatch
from toys import classification, poisoned

SMALL = ["--clients", "6", "--groups", "2", "--epochs", "1", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three methods and two seeds; nobody writes into it."""
    out = tmp_path_factory.mktemp("made") / "comparison"
    words = ["compare", "--methods", "local,scool-sbm,scool-attention", "--rounds", "4"]
    words += ["--seeds", "2", "--set", "scool-sbm.sparsify_round=1", "--no-figures"]
    assert dispatch([*words, "--out", str(out), *SMALL]) == 0
    return out


@pytest.fixture(scope="session")
def with_quarantine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with blocks and without, of five clients of which client 1 is in quarantine; nobody
    writes into it."""
    out = tmp_path_factory.mktemp("quarantine")
    federation = poisoned(classification((5, 3, 8, 6, 7)), 1)
    for name, prior in (("sbm", scool.SBM(num_blocks=2)), ("attention", scool.Attention())):
        method = scool.SCooL(prior=prior)
        with pytest.warns(UserWarning, match="client 1 is left out"):
            scool.fit(federation, "mlp", method, rounds=2, out=out / name, device="cpu")
    return out


@pytest.fixture
def comparison(made: Path, tmp_path: Path) -> Path:
    """A copy of the comparison, free to be broken."""
    return Path(shutil.copytree(made, tmp_path / "comparison"))
