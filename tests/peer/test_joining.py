"""How owners that do not share a machine come to a run: the commands of the tutorial."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scool
from scool.cli.main import run_command
from scool.data.owners import BUILT_IN
from scool.errors import ScoolError

pytest.importorskip("zenoh", reason="pip install scool[peer]")
pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.test_zenoh import free_addresses
from scool.peer.invite import Invite
from scool.peer.join import consider
from scool.peer.owner import open_owner
from scool.recording.folder import RunFolder

NAMES = ("ann", "bob", "cat")
HOSPITALS = ("Budapest", "Cleveland", "Long Beach")
TERMS = """
method = "scool-sbm"
rounds = 3
[options]
epochs = 1
[table]
label = "disease"
classes = ["absent", "present"]
numbers = ["age", "resting_pressure", "cholesterol", "max_heart_rate", "st_depression"]
[table.categories]
sex = ["female", "male"]
chest_pain = ["typical", "atypical", "nonanginal", "asymptomatic"]
"""


def say(*words: object) -> None:
    """A command as a person gives it, which has to work."""
    assert run_command(["peer", *map(str, words)]) == 0


def fill(folder: Path, hospital: str) -> None:
    """The table of one hospital."""
    head, *lines = BUILT_IN.read_text().splitlines()
    (folder / "rows.csv").write_text(
        "\n".join([head, *(line for line in lines if line.startswith(hospital))])
    )


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three owners with keys and data, and an invite for them."""
    home = tmp_path_factory.mktemp("home")
    for name, address, hospital in zip(NAMES, free_addresses(3), HOSPITALS, strict=True):
        folder = home / name
        say("init", name, "--listen", address, "--data", "rows.csv", "--folder", folder)
        fill(folder, hospital)
    (home / "run.toml").write_text(TERMS)
    requests = [home / name / f"{name}.request" for name in NAMES]
    say("invite", home / "run.toml", *requests, "--out", home / "run.invite")
    return home


@pytest.fixture
def home(asked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(asked, tmp_path / "home"))


def test_three_owners_come_to_a_run_and_take_their_models_home(
    home: Path, start: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(file.name for file in (home / "ann").iterdir())
    say("join", home / "ann", home / "run.invite", "--dry-run")
    assert sorted(file.name for file in (home / "ann").iterdir()) == before
    for name in NAMES:
        say("join", home / name, home / "run.invite", "--yes")
    assert "what leaves this machine" in capsys.readouterr().out
    peers = [start(home / name) for name in NAMES]
    for peer, name in zip(peers, NAMES, strict=True):
        peer.join(60)
        assert peer.exitcode == 0, (home / f"{name}.err").read_text()
        assert set(open_owner(home / name).signatures) == set(NAMES)
    say("export", home / "bob")
    assert list((home / "bob" / "export" / "models").iterdir())
    assert RunFolder.open(home / "bob" / "run").header["rounds_done"] == 3
    found = scool.load_model(home / "bob" / "run").predict(str(home / "bob" / "rows.csv"))
    assert (found == "present").mean() > 0.2


@pytest.mark.parametrize("method", ["scool", "scool-sbm"])
def test_who_joins_reads_that_numbers_about_its_samples_leave(home: Path, method: str) -> None:
    """Of the recommended method: means over the samples that it judges by."""
    (home / "run.toml").write_text(TERMS.replace("scool-sbm", method))
    requests = [home / name / f"{name}.request" for name in NAMES]
    say("invite", home / "run.toml", *requests, "--out", home / "other.invite")
    candidate = consider(home / "ann", home / "other.invite")
    assert ("such as a mean loss" in "\n".join(candidate.terms())) == (method == "scool")
    rate = candidate.invite.agreement.build_method().sgd.lr
    assert (rate == 0) == (method == "scool")  # which finds one, and so does training alone
    assert len(candidate.alone(2)) == 2


def spoil(path: str, change: Callable[[dict], Any]) -> Callable[[Path], None]:
    def work(home: Path) -> None:
        named = json.loads((home / path).read_text())
        change(named)
        (home / path).write_text(json.dumps(named))

    return work


def write(path: str, text: str) -> Callable[[Path], Any]:
    return lambda home: (home / path).write_text(text)


def another_key(home: Path) -> None:
    address = open_request(home).address
    shutil.rmtree(home / "ann")
    say("init", "ann", "--listen", address, "--data", "rows.csv", "--folder", home / "ann")


def another_address(home: Path) -> None:
    from scool.peer import identity

    key = identity.read_key((home / "ann" / "key.pem").read_bytes())
    asked = identity.pem(identity.request("ann", "elsewhere.example.org:1", key))
    (home / "ann" / "ann.request").write_bytes(asked)


def open_request(home: Path) -> Any:
    from scool.peer.identity import read_request

    return read_request((home / "ann" / "ann.request").read_bytes())


SPOILT = {
    "run.invite is not an invite": write("run.invite", "{}"),
    "run.invite cannot be read": lambda home: (home / "run.invite").unlink(),
    "run.invite was changed": spoil("run.invite", lambda i: i["agreement"].update(rounds=4)),
    "lacks the agreed certificate of cat": spoil("run.invite", lambda i: i["leaves"].pop("cat")),
    "certificate of ann is of another authority": lambda home: foreign(home),
    "is not for eve: its members are": write("ann/peer.toml", 'name = "eve"'),
    "is not for the key in": another_key,
    "asked for elsewhere.example.org:1": another_address,
    "'oldpeak' is not a column|'age' is not a column": write(
        "ann/rows.csv", "sex,disease\nmale,x\n"
    ),
    "'disease' has 'perhaps', which are not among the agreed": lambda home: replace(
        home / "ann" / "rows.csv", "absent", "perhaps"
    ),
    "'sex' has 'man', which are not": lambda home: replace(home / "ann/rows.csv", ",male", ",man"),
    "rows.csv is missing": lambda home: (home / "ann" / "rows.csv").unlink(),
}


def replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def foreign(home: Path) -> None:
    from scool.peer.identity import new_authority

    spoil("run.invite", lambda i: i.update(authority=new_authority("run")[1].decode()))(home)


@pytest.mark.parametrize("words", SPOILT)
def test_an_invite_that_does_not_fit_is_refused_and_nothing_changes(home: Path, words: str) -> None:
    SPOILT[words](home)
    before = sorted((home / "ann").iterdir())
    with pytest.raises(ScoolError, match=words):
        consider(home / "ann", home / "run.invite").alone(1)
    assert sorted((home / "ann").iterdir()) == before


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ("round = 3", "unknown option 'round' in .*: did you mean 'rounds'"),
        ("rounds = ", "is not valid TOML"),
        ("", "does not say what the data are"),
        ("[data]\ninputs = 3\noutputs = 2", "give the shape of a sample"),
        ("[data]\ninputs = [3]\noutputs = 0", "give the number of classes"),
        ('[table]\nlabel = "a"\nnumber = []', "unknown option 'number' in .table."),
        ('[table]\nlabel = "a"\nclasses = ["b", "c"]', "has no column to learn from"),
        ('method = "pfedgraph"\n[data]\ninputs = [3]\noutputs = 2', "it needs a server"),
        (
            '[model]\nfunction = "nets:build"\n[data]\ninputs = [3]\noutputs = 2',
            "function = 'nets:build' cannot be loaded",
        ),
    ],
)
def test_terms_that_cannot_be_are_refused(
    home: Path, terms: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "other.toml").write_text(terms)
    requests = [str(home / name / f"{name}.request") for name in NAMES]
    arguments = ["peer", "invite", str(home / "other.toml"), *requests, "--out", str(home / "x")]
    assert run_command(arguments) == 2
    said = capsys.readouterr().err
    assert re.search(words, said), said
    assert not (home / "x").exists()


def test_a_network_of_ones_own_is_pinned_with_its_file(home: Path) -> None:
    code = "from torch import nn\n\ndef build():\n    return nn.Linear(11, 2)\n"
    (home / "nets_of_three.py").write_text(code)
    (home / "run.toml").write_text(TERMS + '[model]\nfunction = "nets_of_three:build"\n')
    requests = [home / name / f"{name}.request" for name in NAMES]
    say("invite", home / "run.toml", *requests, "--out", home / "own.invite")
    agreed = Invite.read(home / "own.invite").agreement
    assert agreed.model["function"] == "nets_of_three:build"
    shutil.copy(home / "nets_of_three.py", home / "ann")
    assert len(consider(home / "ann", home / "own.invite").alone(2)) == 2
    (home / "nets_of_three.py").write_text(code + "# changed\n")  # the one that is imported here
    with pytest.raises(ScoolError, match="is not the agreed one: its SHA-256 is"):
        consider(home / "ann", home / "own.invite")
