"""A run that grows beyond its places: what all keep, what a kill leaves, who is not there yet."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import scool
from scool.cli.main import run_command
from scool.errors import ScoolError
from scool.graph.edges import as_matrix
from scool.peer import keeping_up
from scool.peer.elastic import Elastic
from scool.peer.memory import Died, MemoryNetwork, MemoryTransport
from scool.peer.post import Post
from scool.recording.folder import RunFolder

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.test_amending import OPTIONS, absent, live, say, wanted
from peer.test_strict import OFFERED, method
from peer.worlds import peer_engine
from scool.peer.agreement import Agreement
from scool.peer.amending import propose
from scool.peer.newcomers import let_in, make_newcomer
from scool.peer.offered import averaging_models, check_elastic
from scool.peer.owner import open_owner
from scool.peer.pilot import Trial, make_pilot
from scool.recording.checkpoint import flatten, unflatten
from scool.run.prepare import prepare_data
from toys import classification, tanh_net

NAMES = ("ann", "bob", "cat", "dan", "eve")
SIZES = (12, 9, 8, 12, 10)
LIMITS: dict[str, Any] = {"mode": "elastic", "deadline": 4.0}


def pilot_of(
    home: Path, members: int, trial: Trial, options: Mapping[str, Any] = OPTIONS
) -> list[Path]:
    """Owners of a run in which no place is free, and others who have keys and data."""
    data = classification(SIZES)
    addresses = {name: f"127.0.0.1:{7400 + place}" for place, name in enumerate(NAMES)}
    folders = make_pilot(home, dict(list(addresses.items())[:members]), trial, options, data)
    for place in range(members, len(NAMES)):
        folders.append(home / NAMES[place])
        make_newcomer(folders[place], addresses[NAMES[place]], data, place)
    return folders


def whole(folder: Path) -> RunFolder:
    assert run_command(["verify", str(folder / "run")]) == 0
    return RunFolder.open(folder / "run")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three owners and two who come one after the other, each beyond the places."""
    home = tmp_path_factory.mktemp("grown") / "home"
    folders = pilot_of(home, 3, Trial(rounds=26, **LIMITS))
    network, told = MemoryNetwork(5, delay=(0.05, 0.1)), []
    for place, at in {3: 2.5, 4: 8.0}.items():
        network.at(at, lambda place=place: let_in(folders[:place], folders[place]))
        network.start(place, live(home, NAMES[place], told), at=at + 0.5)
    network.run({place: live(home, NAMES[place], told) for place in range(3)}, until=300)
    assert (
        sorted(told)
        == ["edition 2 of the agreement: dan may come"] * 3
        + ["edition 3 of the agreement: eve may come"] * 4
    )
    return home


def test_newcomers_come_one_after_another_and_nobody_is_lost(grown: Path) -> None:
    for place, name in enumerate(NAMES):
        rows, folder = absent(grown, name), whole(grown / name)
        assert len(rows) == 26 and not any(rows[-3:])
        if place < 3:
            assert rows[0] == [3, 4] and sum(place in row for row in rows) <= 8
        graph = as_matrix(folder.read_graph(25))
        assert graph.shape == (5, 5) and graph[3, 1] > 0.1 and graph[1, 3] > 0.1
        assert graph[4, 0] + graph[4, 2] > 0.1 and graph[0, 2] > 0.1  # the two groups
        assert folder.rows()[-1]["scores"][place] > 60
        assert Agreement.read(grown / name).capacity == 5


def test_records_of_rounds_before_are_those_of_all_with_nobody_there(grown: Path) -> None:
    folder = whole(grown / "ann")
    first = folder.rows()[0]
    assert len(first["scores"]) == len(first["blocks"]) == 5 and first["scores"][3:] == [None, None]
    assert len(folder.lines("metrics.jsonl").rows[0]["scores"]) == 3  # what was written stays
    graph = as_matrix(folder.read_graph(0))
    assert graph.shape == (5, 5) and not graph[3:].any() and not graph[:, 3:].any()
    assert {as_matrix(w).shape for w in folder.graphs().values()} == {(5, 5)}


def test_every_command_takes_a_folder_that_has_grown(
    grown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: object) -> str:
        assert run_command([str(word) for word in words]) == 0
        shown = capsys.readouterr()
        return shown.out + shown.err

    home = Path(shutil.copytree(grown, tmp_path / "home"))
    ann, dan = home / "ann" / "run", home / "dan" / "run"
    assert "whole" in said("verify", ann) and "damaged" not in said("ls", home / "ann")
    assert "damaged" not in said("report", ann, dan, "--out", home / "page.html")
    said("diff", ann, dan)
    assert "eve" in said("peer", "status", home / "ann") and said("watch", ann)
    said("peer", "export", home / "ann")
    edges = (home / "ann" / "export" / "graph.csv").read_text()
    assert "client,from,weight" in edges and "place-" not in edges
    samples = np.load(home / "ann" / "data.npz")["x_test"]
    found = [scool.load_model(at).predict(samples) for at in (ann, home / "ann" / "export")]
    assert (found[0] == found[1]).all()


# ---------------------------------------------------------------------- kills


class Mortal:
    """The disk below a folder: once armed, its process is dead from the n-th change on. (A dead
    process gives locks back, so these still work.)"""

    def __init__(self, folder: Path, at: int, kill: Callable[[], None] = lambda: None) -> None:
        self.folder, self.at, self.kill = folder, at, kill
        self.changes, self.is_armed = 0, False

    def _wrap(self, function: Any) -> Any:
        def change(path: Any, *args: Any, **named: Any) -> Any:
            is_record = Path(path).is_relative_to(self.folder) and Path(path).suffix != ".lock"
            if self.is_armed and is_record:
                self.changes += 1
                if self.changes == self.at:
                    self.kill()
                if self.changes >= self.at:
                    raise Died
            return function(path, *args, **named)

        return change

    def __enter__(self) -> "Mortal":
        self.patch = pytest.MonkeyPatch()
        for name in ("replace", "unlink"):
            self.patch.setattr(os, name, self._wrap(getattr(os, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


def test_a_kill_while_an_amendment_is_joined_leaves_one_edition_or_the_other(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    pilot_of(made, 2, Trial(rounds=9, **LIMITS))
    propose(open_owner(made / "ann"), [wanted(made, "cat")]).write(made / "file")
    for name in ("bob", "cat"):
        say("join", made / name, made / "file", "--yes")
    editions: list[int] = []
    while editions[-1:] != [2]:
        home = Path(shutil.copytree(made, tmp_path / f"{len(editions)}"))
        with Mortal(home / "ann", len(editions) + 1) as mortal:
            mortal.is_armed = True
            with contextlib.suppress(Died):
                say("join", home / "ann", home / "file", "--yes")
        found = open_owner(home / "ann").agreement
        assert (found.edition, found.capacity) in ((1, 2), (2, 3))
        editions.append(found.edition)
        say("join", home / "ann", home / "file", "--yes")  # once more
        assert open_owner(home / "ann").agreement.edition == 2
    assert len(editions) > 5


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("two") / "home"
    pilot_of(home, 2, Trial(rounds=9, **LIMITS))
    return home


@pytest.mark.parametrize("at", [4, 5, 6, 7, 8])
def test_a_kill_while_a_run_grows_loses_nothing(two: Path, tmp_path: Path, at: int) -> None:
    """At each change of bob's disk while he takes the amendment up: the list of his records, who
    the clients are, the first graph and the first checkpoint of three."""
    home = Path(shutil.copytree(two, tmp_path / "home"))
    folders, rounds = [home / name for name in NAMES], list[int]()
    network = MemoryNetwork(3, delay=(0.05, 0.1))
    with Mortal(home / "bob" / "run", at, lambda: network.kill(1, at=network.now)) as mortal:

        def adopt() -> None:
            let_in(folders[:2], folders[2])
            mortal.is_armed = True

        def again() -> None:
            mortal.is_armed = False
            rounds.append(len(whole(home / "bob").rows()))
            page = str(home / "page.html")
            assert run_command(["report", str(home / "bob" / "run"), "--out", page]) == 0

        network.at(1.6, adopt)
        network.at(6.0, again)
        network.start(1, live(home, "bob", []), at=6.0)
        network.run({place: live(home, NAMES[place], []) for place in range(2)}, until=300)
    assert rounds[0] >= 4  # those that were saved before
    for name in ("ann", "bob"):
        folder = whole(home / name)
        assert len(folder.rows()) == 9 and folder.clients == 3
        assert as_matrix(folder.read_graph(0)).shape == (3, 3)


# ---------------------------------------------------------------------- who is not there yet


def test_who_does_not_sign_goes_on_with_those_it_knows(tmp_path: Path) -> None:
    """Cat has three places and the others four. She is killed and comes back, and so is ann: each
    takes the graph of somebody who has other places."""
    home = tmp_path / "home"
    folders = pilot_of(home, 3, Trial(rounds=24, signers="most", **LIMITS))
    network, told = MemoryNetwork(5, delay=(0.05, 0.1)), []
    network.at(1.5, lambda: let_in([folders[0], folders[1]], folders[3]))
    network.start(3, live(home, "dan", told), at=2.0)
    for place, at in {2: 8.0, 0: 12.0}.items():
        network.kill(place, at=at)
        network.start(place, live(home, NAMES[place], told), at=at + 0.5)
    network.run({place: live(home, NAMES[place], told) for place in range(3)}, until=300)
    assert told.count("edition 2 of the agreement: dan may come") == 2
    assert [absent(home, name)[-1] for name in NAMES[:4]] == [[], [], [], [2]]
    shapes = [as_matrix(whole(home / name).read_graph(23)).shape[0] for name in NAMES[:4]]
    assert shapes == [4, 4, 3, 4]
    for name in NAMES[:4]:
        problems = json.loads((home / name / "status.json").read_text())["problems"]
        assert not [words for words in problems if "fit" in words or "clients" in words]


def test_a_graph_of_more_or_fewer_members_is_understood_and_nonsense_is_not() -> None:
    """What a peer gives that has taken up the amendment, or has not."""
    method = scool.SCooL(prior=scool.SBM(num_blocks=2))
    start = {k: method._prior.init(k, {}, 0) for k in (2, 3, 4)}
    given = {
        "fewer": (2, {"clients": 2}),
        "more": (4, {"clients": 4}),
        "text": (3, {"clients": "3"}),
        "many": (3, {"clients": 10**9}),
        "false": (2, {"clients": 3}),
        "odd": (4, {"clients": 2}),
    }
    found: dict[str, Any] = {}

    def give(me: MemoryTransport) -> None:
        post = Post(me, "run", 3, 1_000_000)
        for round, (clients, body) in enumerate(given.values()):
            state = start[clients]._replace(omega=start[clients].omega + 1)
            tensors = keeping_up._common({"graph": state})
            post.say(round, keeping_up.STATE, body, tensors, push=False)
        while me.now() < 30.0:
            me.wait(30.0)

    def take(me: MemoryTransport) -> None:
        post = Post(me, "run", 3, 1_000_000)
        view = Elastic(post, 9, 4.0, 2)
        view.source = (0,)
        part = keeping_up.KeepingUp(Inside(method), view, post)
        for round, word in enumerate(given):
            post.round = round
            found[word] = part._with_graph({"graph": start[3]}, 3, round)["graph"].omega
            found[word, "says"] = " ".join(post.problems)
            post.problems.clear()

    MemoryNetwork(2).run({0: give, 1: take})
    half, one = [0.5, 0.5], [1.5, 1.5]
    assert found["fewer"].tolist() == [one, one, half]
    assert found["more"].tolist() == [one, one, one]
    for word in ("text", "many", "false", "odd"):
        assert found[word].tolist() == [half] * 3
        assert "gave a graph that does not fit" in found[word, "says"]


class Inside(scool.LocalOnly.__base__):  # type: ignore[misc, name-defined]
    """Grows the graph of a method alone."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def grow(self, state: Any, fresh: Any) -> Any:
        return {"graph": self.method._prior.grow(state["graph"], fresh["graph"])}


def test_the_recommended_method_grows(tmp_path: Path) -> None:
    home = tmp_path / "home"
    options = {"lr": 0.1, "epochs": 1, "batch_size": 4, "kinds": "alone,graph"}
    folders = pilot_of(home, 3, Trial(method="scool", rounds=10, **LIMITS), options)
    network = MemoryNetwork(4, delay=(0.02, 0.05))
    network.at(1.0, lambda: let_in(folders[:3], folders[3]))
    network.start(3, live(home, "dan", []), at=1.4)
    network.run({place: live(home, NAMES[place], []) for place in range(3)}, until=300)
    rows = [whole(home / name).rows() for name in NAMES[:4]]
    assert [own[0].get("absent") for own in rows[:3]] == [[3]] * 3
    for own in rows:
        assert "absent" not in own[-1]
        told = [torch.tensor([w[3] for w in r[-1]["tracks"].values()]) for r in (own, rows[3])]
        assert torch.allclose(*told, atol=0.05)  # dan says what his weights are
    assert rows[0][0]["tracks"]["graph"][3] is None  # and there was nobody before


def grows(name: str) -> bool:
    algorithm = averaging_models(method(name))
    with contextlib.suppress(ScoolError):
        check_elastic(algorithm, name)
        return not algorithm.stays
    return False


@pytest.mark.parametrize("name", [name for name in OFFERED if grows(name)])
def test_what_a_peer_has_saved_grows_whatever_the_method(name: str) -> None:
    """Tensors with a number of places, and none of those with as many numbers by chance."""
    algorithm, states = averaging_models(method(name)), list[Any]()

    def begin(transport: MemoryTransport) -> None:
        for sizes in (SIZES[:3], SIZES):  # the network has layers of 3 and 5, too
            federation = prepare_data(classification(sizes), algorithm, seed=0)
            states.append(algorithm.init(*peer_engine(transport, federation, tanh_net())))

    MemoryNetwork(1).run({0: begin})
    few, many = states
    found = algorithm.grow(unflatten(many, flatten(few), clients=3), many)
    shapes = [{n: t.shape for n, t in flatten(state).items()} for state in (found, many)]
    assert shapes[0] == shapes[1]
    assert all(torch.equal(t, flatten(found)[n]) for n, t in flatten(few).items() if "theta" in n)


# ---------------------------------------------------------------------- what does not grow


@pytest.mark.parametrize(
    ("method", "options", "what"),
    [
        ("dpsgd", {"topology": "ring"}, "topology of method 'dpsgd'"),
        ("scool-dirac", {"topology": "ring"}, "topology of method 'scool-dirac'"),
        ("scool-sbm", {"null_loglik": [-1.0, -1.0, -1.0]}, "null_loglik of method 'scool-sbm'"),
    ],
)
def test_what_is_made_for_so_many_members_is_refused_before_anybody_signs(
    method: str, options: dict, what: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    pilot_of(home, 3, Trial(method=method, rounds=9, **LIMITS), {"epochs": 1} | options)
    before = sorted(path.name for path in (home / "ann").iterdir())
    with pytest.raises(ScoolError, match=f"no place is left.*{what} is made for 3 members"):
        propose(open_owner(home / "ann"), [wanted(home, "dan")])
    assert sorted(path.name for path in (home / "ann").iterdir()) == before
    home = tmp_path / "more"  # a reserved place is there from the start
    places = Trial(method=method, rounds=9, places=4, **LIMITS)
    if method != "scool-sbm":
        pilot_of(home, 3, places, {"epochs": 1} | options)
        assert propose(open_owner(home / "ann"), [wanted(home, "dan")]).agreement.capacity == 4
