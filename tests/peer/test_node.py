"""Owners' folders: what is made for a trial, what is checked first, and whole runs from them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import scool
from scool.cli.main import run_command
from scool.errors import ScoolError
from scool.graph.edges import as_matrix
from scool.peer.agreement import Agreement
from scool.peer.join import read_alone
from scool.peer.memory import MemoryNetwork
from scool.peer.transport import Transport
from scool.recording.folder import RunFolder
from toys import classification

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.pilots import ADDRESSES, NAMES, ROUNDS, live, simulated, take_part
from scool.peer.identity import Keys
from scool.peer.node import run_owner
from scool.peer.owner import open_owner, sign, write_signatures
from scool.peer.pilot import Trial, make_pilot
from scool.peer.status import read_status


def check_equal(folder: Path, expected: scool.Result) -> None:
    """The run folders hold the models, the rows and the scores of the simulation."""
    for place, name in enumerate(NAMES):
        model = scool.load_model(folder / name / "run").network.state_dict()
        for n, t in expected.model(place).state_dict().items():
            assert torch.equal(model[n], t)
        records = RunFolder.open(folder / name / "run")
        graph = as_matrix(records.read_graph(ROUNDS - 1))
        assert torch.equal(graph[place], as_matrix(expected.graphs[ROUNDS - 1])[place])
        assert records.rows()[-1]["scores"][place] == expected.history[-1]["scores"][place]


def test_a_pilot_gives_what_the_simulator_gives(pilot: Path) -> None:
    take_part(pilot)
    check_equal(pilot, simulated(pilot))
    assert open_owner(pilot / "bob").signatures.keys() == set(NAMES)
    status = read_status(pilot / "bob")
    assert status["state"] == "finished" and status["round"] == ROUNDS and not status["problems"]
    with pytest.raises(ScoolError, match="holds no model of ann: it is that of bob"):
        scool.load_model(pilot / "bob" / "run", "ann")
    with pytest.raises(ScoolError, match="is finished"):
        run_owner(open_owner(pilot / "bob"))


@pytest.mark.parametrize("method", ["fedfomo", "scool"])
def test_an_owner_sets_the_same_samples_aside_as_the_simulator(method: str, tmp_path: Path) -> None:
    options = {"epochs": 1, "batch_size": 4, "fraction": 0.5}
    trial = Trial(method=method, rounds=ROUNDS)
    make_pilot(tmp_path / "pilot", ADDRESSES, trial, options, classification())
    take_part(tmp_path / "pilot")
    check_equal(tmp_path / "pilot", simulated(tmp_path / "pilot"))


def test_a_peer_that_is_killed_goes_on_from_its_folder(pilot: Path) -> None:
    network = MemoryNetwork(len(NAMES), delay=(0.1, 0.2))
    network.kill(1, at=2.5)
    done: list[int] = []
    network.at(19.0, lambda: done.append(len(RunFolder.open(pilot / "bob" / "run").rows())))
    network.start(1, live(pilot, 1), at=20.0)
    take_part(pilot, network)
    assert 0 < done[0] < ROUNDS and network.now > 20.0
    check_equal(pilot, simulated(pilot))


def spoil(file: str, old: str, new: str) -> Any:
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))

    return change


def agree(**changes: Any) -> Any:
    """Another agreement, with an id that fits, and signed."""

    def change(folder: Path) -> None:
        named = json.loads((folder / "agreement.json").read_text()) | changes
        del named["run"]
        members = tuple(scool.peer.agreement.Member(**m) for m in named.pop("members"))
        named["inputs"] = tuple(named["inputs"])
        agreement = Agreement(**named, members=members)
        agreement.write(folder)
        leaves = [(folder / "members" / f"{name}.pem").read_bytes() for name in NAMES]
        place = NAMES.index(folder.name)
        keys = Keys((folder / "key.pem").read_bytes(), leaves, place)
        write_signatures(folder, {folder.name: sign(agreement, keys)})

    return change


def other_data(folder: Path) -> None:
    np.savez(folder / "data.npz", x=np.zeros((6, 3), "float32"), y=np.arange(6) % 3)


def other_certificate(folder: Path) -> None:
    shutil.copy(folder / "members" / "ann.pem", folder / "members" / "cat.pem")


SPOILT = {
    "has no agreement.json: nobody has joined": lambda folder: (folder / "agreement.json").unlink(),
    "was changed: its id does not match": spoil("agreement.json", '"rounds": 4', '"rounds": 5'),
    "is damaged": spoil("agreement.json", '"rounds": 4,', ""),
    "is for scool 9.9, and this is": agree(version="9.9"),
    "unknown mode 'loose'": agree(mode="loose"),
    "deadline = 0 is not possible": agree(deadline=0),
    "places = 3 is not possible": agree(places=3),
    "places = 6 is not possible with 4 members in a strict run": agree(places=6),
    "min_peers = 5 is not possible": agree(min_peers=5),
    "aggregate = 'updates' is not possible with mode = 'elastic'": agree(mode="elastic"),
    "the first model differs from the agreed one": agree(theta0="sha256:00"),
    "'ifca' does not run on peers: it needs a server": agree(method="ifca", algorithm={}),
    r"inputs \(4,\), 3 outputs; agreed is classification, inputs \(5,\)": agree(inputs=[5]),
    r"the data are classification, inputs \(3,\)": other_data,
    "data.npz' cannot be read": lambda folder: (folder / "data.npz").unlink(),
    "mine:load' cannot be loaded": spoil("peer.toml", '"data.npz"', '"mine:load"'),
    "give FILE.npz, FILE.csv,": spoil("peer.toml", '"data.npz"', '"data.txt"'),
    "data.csv is a table, and the agreement does": spoil("peer.toml", "data.npz", "data.csv"),
    "unknown option 'dat': did you mean 'data'": spoil("peer.toml", "data =", "dat ="),
    "bob has not signed the agreement": spoil("signatures.json", '"bob"', '"cat"'),
    "signatures.json is damaged": spoil("signatures.json", "{", "["),
    "is not valid TOML": spoil("peer.toml", "name =", "name"),
    "lacks 'name'": spoil("peer.toml", 'name = "bob"', ""),
    "says name = 'eve', and the members": spoil("peer.toml", '"bob"', '"eve"'),
    "leaf.pem is not the certificate of cat": spoil("peer.toml", '"bob"', '"cat"'),
    "cat.pem is not the certificate that was agreed on": other_certificate,
    "key.pem is not the key of leaf.pem": lambda f: shutil.copy(f.parent / "ann/key.pem", f),
    "cannot be read .No such file": lambda folder: (folder / "key.pem").unlink(),
}


@pytest.mark.parametrize("words", SPOILT)
def test_what_does_not_fit_is_said_before_anybody_connects(pilot: Path, words: str) -> None:
    def connect(owner: Any, largest: int) -> Transport:
        raise AssertionError("connected")

    SPOILT[words](pilot / "bob")
    with pytest.raises(ScoolError, match=words):
        run_owner(open_owner(pilot / "bob"), connect=connect)


def test_data_may_come_from_a_function(pilot: Path) -> None:
    folder = pilot / "bob"
    expected = open_owner(folder).load().train.y
    code = "import pathlib, numpy\n\ndef arrays():\n    here = pathlib.Path(__file__).parent\n"
    (folder / "bobs_data.py").write_text(code + "    return dict(numpy.load(here / 'data.npz'))\n")
    spoil("peer.toml", '"data.npz"', '"bobs_data:arrays"')(folder)
    assert torch.equal(open_owner(folder).load().train.y, expected)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"ann": "127.0.0.1:7400"}, "two members or more"),
        ({"ann": "127.0.0.1", "bob": "127.0.0.1:1"}, "give HOST:PORT"),
        ({"Ann": "127.0.0.1:1", "bob": "127.0.0.1:2"}, "name = 'Ann' is not possible"),
    ],
)
def test_a_pilot_that_cannot_be(members: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(ScoolError, match=words):
        make_pilot(tmp_path / "pilot", members, Trial(), None, classification())
    assert not (tmp_path / "pilot").exists()


def test_the_command_makes_a_pilot_of_either_mode(tmp_path: Path) -> None:
    members = [f"{name}={address}" for name, address in ADDRESSES.items()]
    command = ["peer", "pilot", str(tmp_path / "pilot"), *members, "--mode", "elastic"]
    assert run_command([*command, "--deadline", "5", "--rounds", "2"]) == 0
    agreement = Agreement.read(tmp_path / "pilot" / "ann")
    assert (agreement.mode, agreement.deadline) == ("elastic", 5.0)
    assert len(read_alone(tmp_path / "pilot" / "ann")) == 2  # for `status`
