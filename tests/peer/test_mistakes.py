"""What careless owners do: every mistake is told in a sentence with a remedy, and loses nothing."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scool.cli.main import run_command

pytest.importorskip("cryptography", reason="pip install scool[peer]")

NAMES = ("ann", "bob")
DATA = "[data]\ninputs = [3]\noutputs = 2\n"
TABLE = '[table]\nlabel = "a"\n'
TERMS = "rounds = 2\n[options]\nepochs = 1\n" + DATA
rng = np.random.default_rng(0)
X = rng.normal(size=(20, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


def said(capsys: pytest.CaptureFixture[str], *words: object, code: int = 2) -> str:
    """The one sentence with which a command is refused."""
    capsys.readouterr()
    assert run_command(["peer", *map(str, words)]) == code
    errors = capsys.readouterr().err.strip()
    assert code == 0 or (errors.startswith("scool: ") and "\n" not in errors), errors
    return errors


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    for place, name in enumerate(NAMES):
        folder = home / name
        words = ["init", name, "--listen", f"127.0.0.1:{7400 + place}", "--folder", str(folder)]
        assert run_command(["peer", *words]) == 0
        np.savez(folder / "data.npz", x=X, y=Y)
    (home / "run.toml").write_text(TERMS)
    requests = [str(home / name / f"{name}.request") for name in NAMES]
    invite = ["invite", str(home / "run.toml"), *requests, "--out", str(home / "run.invite")]
    assert run_command(["peer", *invite]) == 0
    assert run_command(["peer", "join", str(home / "bob"), str(home / "run.invite"), "--yes"]) == 0
    return home


@pytest.fixture
def home(asked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(asked, tmp_path / "my home ü"))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("a.example.org", "give HOST:PORT"),
        ("a.example.org:99999", "give HOST:PORT"),
        ("a b:7447", "give HOST:PORT"),
        ("größe.example.org:7447", "give HOST:PORT"),
        ("http://a.example.org:7447", "give HOST:PORT"),
        ("::1:7447", "give HOST:PORT"),
        ("[::1]:7447", "give a name that leads to it"),
        ("0.0.0.0:7447", "give the address that others dial"),
    ],
)
def test_an_address_that_nobody_can_dial_is_refused(
    tmp_path: Path, address: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ann"
    assert words in said(capsys, "init", "ann", "--listen", address, "--folder", folder)
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        words = said(capsys, "init", "ann", "--listen", "a:1", "--folder", folder)
        assert "choose another one" in words


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ("rounds = 0\n" + DATA, "rounds = 0 is not possible: give 1 or more"),
        ("seed = -1\n" + DATA, "seed = -1 is not possible: give 0 or more"),
        ("[data]\ninputs = [-4]\noutputs = 2", "give the shape of a sample"),
        ("[data]\ninputs = [4]\noutputs = 1", "give the number of classes (2 or more)"),
        ("table = 3", "write [table]"),
        (TABLE + 'numbers = ["x"]\n' + DATA, "has [table] and [data]: keep one"),
        (TABLE + 'numbers = ["x", "x"]', "name each once"),
        (TABLE + 'numbers = ["a"]', "column 'a' stands twice"),
        (TABLE + 'numbers = ["x"]\nclasses = ["u"]', "give two or more"),
        ("[model]\nfunction = 7\n" + DATA, "give module:function"),
        ('[model]\nfunction = "os:getcwd"\n' + DATA, "name a function of one"),
        ('[model]\nfunction = "bad_net:build"\n' + DATA, "ZeroDivisionError('division by zero')"),
        ('[model]\nfunction = "odd_net:build"\n' + DATA, "correct odd_net.py"),
    ],
)
def test_terms_that_no_run_can_keep_are_refused(
    home: Path, terms: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "bad_net.py").write_text("def build():\n    return 1 / 0\n")
    (home / "odd_net.py").write_text("def build(:\n")
    (home / "bad.toml").write_text(terms)
    requests = [home / name / f"{name}.request" for name in NAMES]
    assert words in said(capsys, "invite", home / "bad.toml", *requests, "--out", home / "new")
    assert not (home / "new").exists()


def test_two_members_at_one_address_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = home / "eve", home / "new"
    said(capsys, "init", "eve", "--listen", "127.0.0.1:7400", "--folder", folder, code=0)
    requests = [home / "ann" / "ann.request", folder / "eve.request"]
    words = said(capsys, "invite", home / "run.toml", *requests, "--out", out)
    assert "ann and eve have the same address, 127.0.0.1:7400" in words


SAMPLES: dict[str, Mapping[str, Any]] = {
    "1 of 16 train samples hold numbers that are not finite": {
        "x": np.where(np.arange(60).reshape(20, 3) == 7, np.nan, X),
        "y": Y,
    },
    "alone on these data gives numbers that are not finite": {"x": X * 1e38, "y": Y},
    "ann has train label 2: labels are 0 to 1": {"x": X, "y": Y + 1},
    "ann has no training sample": {"x": X[:0], "y": Y[:0]},
    "agreed is classification, inputs .3,., 2 outputs": {"x": X[:, :2], "y": Y},
}


@pytest.mark.parametrize("words", SAMPLES)
def test_samples_that_will_not_do_are_refused_by_a_dry_run(
    home: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(home / "ann" / "data.npz", allow_pickle=False, **SAMPLES[words])
    found = said(capsys, "join", home / "ann", home / "run.invite", "--dry-run")
    assert words.replace(".", "") in found.replace("(", "").replace(")", "")


@pytest.mark.parametrize(
    ("count", "label", "words"),
    [(1, Y, "no test samples, so nobody can tell"), (20, Y * 0, "are of one class")],
)
def test_samples_that_will_hardly_do_are_told(
    home: Path, count: int, label: np.ndarray, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(home / "ann" / "data.npz", x=X[:count], y=label[:count])
    assert run_command(["peer", "join", str(home / "ann"), str(home / "run.invite"), "--yes"]) == 0
    assert words in capsys.readouterr().out


CODE = {
    "fails (ZeroDivisionError": "def load():\n    return 1 / 0\n",
    "fails (TypeError": "def load(a):\n    return a\n",
    "correct own_data_": "def load(:\n",
}


@pytest.mark.parametrize("words", CODE)
def test_a_function_of_ones_own_that_fails_is_told(
    home: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"own_data_{[*CODE].index(words)}"
    (home / "ann" / f"{module}.py").write_text(CODE[words])
    (home / "ann" / "peer.toml").write_text(f'name = "ann"\ndata = "{module}:load"\n')
    assert words in said(capsys, "join", home / "ann", home / "run.invite", "--dry-run")


def write(name: str, content: str = "") -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(content)


def as_folder(name: str) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return work


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "agreement.json is damaged": as_folder("agreement.json"),
    "signatures.json is damaged": write("signatures.json", "[]"),
    "authority.pem does not hold the authority": write("authority.pem"),
    "authority.pem cannot be read": lambda folder: (folder / "authority.pem").unlink(),
    "ann.pem is not the certificate that was agreed on": write("members/ann.pem"),
    "it is no file of numpy arrays": write("data.npz"),
    "data.npz' cannot be read (Is a directory)": as_folder("data.npz"),
    "says name = 'eve', and the members": write("peer.toml", 'name = "eve"'),
    "address = '7447' is not possible": write("peer.toml", 'name = "bob"\nlisten = "7447"'),
    "give a number in": write("peer.toml", 'name = "bob"\ntest_fraction = "x"'),
    "has left this run for good": write("left.json"),
}


@pytest.mark.parametrize("words", DAMAGED)
def test_a_damaged_folder_is_refused_in_words(
    home: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    DAMAGED[words](home / "bob")
    assert words in said(capsys, "run", home / "bob")


def test_files_and_folders_in_the_place_of_others_are_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "run.toml"
    assert "nobody has joined a run there" in said(capsys, "run", file)
    assert "start the peer with" in said(capsys, "status", file)
    assert "has no model yet" in said(capsys, "export", home / "bob")
    assert "audit.jsonl is missing" in said(capsys, "audit", home / "bob")
    for content in ("{}", "[]", "rubbish"):
        (home / "bob" / "status.json").write_text(content)
        assert "a peer that runs writes it anew" in said(capsys, "status", home / "bob")
    (home / "ann" / "left.json").touch()
    assert "has left this run" in said(capsys, "join", home / "ann", home / "run.invite", "--yes")


def test_what_the_system_refuses_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "ann" / "members").touch()
    words = said(capsys, "join", home / "ann", home / "run.invite", "--yes")
    assert "File exists. Put that right, and give the command again" in words
