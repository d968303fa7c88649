"""Another member for a run that goes on: an amendment that all sign, and what forged ones meet."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scool.cli.main import run_command
from scool.errors import ScoolError
from scool.graph.edges import as_matrix
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.recording.clients import read_clients
from scool.recording.folder import RunFolder

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from scool.peer import identity
from scool.peer.agreement import Agreement, Member
from scool.peer.amending import consider_amendment, propose
from scool.peer.amendment import lacking, with_members
from scool.peer.editions import Editions, Watch
from scool.peer.farewells import read_farewells
from scool.peer.identity import read_request
from scool.peer.invite import Invite
from scool.peer.node import run_owner
from scool.peer.owner import open_owner
from scool.peer.pilot import Trial, arrays_of, make_pilot
from scool.peer.status import read_status
from scool.run.loop import Interrupted
from toys import classification

NAMES = ("ann", "bob", "cat")
ADDRESSES = {name: f"127.0.0.1:{7400 + place}" for place, name in enumerate((*NAMES, "dan"))}
OPTIONS = {"epochs": 2, "batch_size": 4, "sparsify_round": 2, "fraction": 0.4}
ROUNDS = 20


def say(*words: object) -> None:
    """A command as a person gives it, which has to work."""
    assert run_command(["peer", *map(str, words)]) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three owners of a run with four places, and dan, who has a key and data."""
    home = tmp_path_factory.mktemp("made") / "home"
    pilot_of(home, Trial(rounds=ROUNDS, mode="elastic", deadline=4.0, places=4))
    return home


def pilot_of(home: Path, trial: Trial) -> None:
    data = classification()
    make_pilot(home, {name: ADDRESSES[name] for name in NAMES}, trial, OPTIONS, data)
    say("init", "dan", "--listen", ADDRESSES["dan"], "--folder", home / "dan")
    np.savez(home / "dan" / "data.npz", allow_pickle=False, **arrays_of(data, 3))


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "home"))


def amend(home: Path, *signers: str) -> Path:
    """An amendment that ann proposes and these sign."""
    file = home / "run.amendment"
    say("amend", home / "ann", home / "dan" / "dan.request", "--out", file)
    for name in signers:
        say("join", home / name, file, "--yes")
    return file


def connecting(transport: MemoryTransport) -> Any:
    """Opens the network for the members of the edition that a peer has."""
    return lambda owner, largest: transport.open(range(len(owner.agreement.members)))


def live(home: Path, name: str, told: list[str]) -> Any:
    def program(transport: MemoryTransport) -> Any:
        owner = open_owner(home / name)
        return run_owner(owner, tell=told.append, connect=connecting(transport))

    return program


def take_part(home: Path, file: Path, adopts: Mapping[str, float]) -> list[str]:
    """The three run, some take up the amendment at a time, and dan comes; what they were told."""
    told: list[str] = []
    network = MemoryNetwork(4, delay=(0.05, 0.1))
    for name, at in adopts.items():
        network.at(at, lambda name=name: say("join", home / name, file, "--yes"))
    network.start(3, live(home, "dan", told), at=4.0)
    network.run({place: live(home, name, told) for place, name in enumerate(NAMES)}, until=300)
    return told


def absent(home: Path, name: str) -> list[list[int]]:
    return [row.get("absent", []) for row in RunFolder.open(home / name / "run").rows()]


def test_a_newcomer_takes_a_reserved_place_of_a_run_that_goes_on(home: Path) -> None:
    """Each takes the amendment up while it runs, and comes back with what it had."""
    file = amend(home, "bob", "cat", "dan")
    before = (home / "ann" / "agreement.json").read_bytes()
    told = take_part(home, file, {"ann": 3.0, "bob": 3.0, "cat": 5.0})
    assert told == ["edition 2 of the agreement: dan may come"] * 3
    for name in NAMES:
        rows = absent(home, name)
        assert len(rows) == ROUNDS and rows[0] == [3] and not any(rows[-6:])
        assert sum(NAMES.index(name) in row for row in rows) <= 4  # the notice it gave
    assert [*absent(home, "dan")[0]] == [0, 1, 2, 3] and not absent(home, "dan")[-1]
    for name in (*NAMES, "dan"):
        folder = RunFolder.open(home / name / "run")
        clients = read_clients(folder)
        assert clients and clients.client_names == [*NAMES, "dan"]
        graph = as_matrix(folder.read_graph(ROUNDS - 1))
        assert graph[3, 1] > 0.1 and graph[1, 3] > 0.1 and graph[0, 2] > 0.1  # the two groups
        assert run_command(["verify", str(folder.path)]) == 0
    assert read_status(home / "ann")["run"] == json.loads(before)["run"]
    assert set(open_owner(home / "ann").signatures) == {*NAMES, "dan"}
    assert Agreement.read(home / "ann").edition == 2


def test_where_most_are_enough_who_does_not_sign_goes_on_without_the_newcomer(home: Path) -> None:
    home = home.parent / "most"
    trial = Trial(rounds=ROUNDS, mode="elastic", deadline=4.0, places=4, signers="most")
    pilot_of(home, trial)
    file = amend(home, "bob", "dan")
    take_part(home, file, {"ann": 3.0, "bob": 3.0})
    assert [absent(home, name)[-1] for name in (*NAMES, "dan")] == [[], [], [3], [2]]
    assert Agreement.read(home / "cat").edition == 1


def test_who_has_left_for_good_need_not_sign(home: Path) -> None:
    """Its signed farewell travels with the amendment, so that all can check it."""
    network, told = MemoryNetwork(3, delay=(0.05, 0.1)), []
    network.at(2.0, lambda: say("leave", home / "cat", "--yes"))
    programs: dict[int, Any] = {i: live(home, name, told) for i, name in enumerate(NAMES)}
    leaving = programs[2]
    programs[2] = lambda transport: _left(leaving, transport)
    network.at(4.0, lambda: said.append(amend(home, "bob", "dan")))
    network.at(4.5, lambda: say("join", home / "ann", said[0]))
    said: list[Path] = []
    network.run(programs, until=300)
    [file] = said
    assert Agreement.read(home / "dan").edition == 2
    assert open_owner(home / "dan").agreement.names == (*NAMES, "dan")
    assert "edition 2 of the agreement: dan may come" in told
    assert read_status(home / "ann")["left"] == ["cat"]  # though it was opened anew
    assert [*read_farewells(home / "dan")] == ["cat"]
    spoil(lambda n: n["farewells"].update(bob=n["farewells"]["cat"]))(home, file)
    with pytest.raises(ScoolError, match="farewell of 'bob' is none"):
        consider_amendment(home / "ann", file)


def _left(program: Any, transport: MemoryTransport) -> None:
    with pytest.raises(Interrupted, match="left the run"):
        program(transport)


def test_who_leaves_as_an_amendment_comes_says_so(home: Path) -> None:
    file = amend(home, "bob", "cat", "dan")
    network = MemoryNetwork(3, delay=(0.05, 0.1))

    def both() -> None:
        say("join", home / "cat", file)
        say("leave", home / "cat", "--yes")

    network.at(2.0, both)
    programs: dict[int, Any] = {i: live(home, name, []) for i, name in enumerate(NAMES)}
    leaving = programs[2]
    programs[2] = lambda transport: _left(leaving, transport)
    network.run(programs, until=300)
    assert read_status(home / "cat")["state"] == "left"
    assert read_status(home / "ann")["left"] == ["cat"]


def test_a_run_with_an_amendment_goes_on_after_a_restart_and_takes_another(home: Path) -> None:
    """No place is left for the second one: the next edition has one more."""
    file = amend(home, "bob", "cat", "dan")
    for name in NAMES:
        say("join", home / name, file)  # signed before: nobody is asked
    say("init", "eve", "--listen", "127.0.0.1:7405", "--folder", home / "eve")
    proposed = propose(open_owner(home / "dan"), [wanted(home, "eve")]).agreement
    before = open_owner(home / "dan").agreement
    assert (before.edition, before.capacity) == (2, 4)
    assert (proposed.edition, proposed.places, proposed.capacity) == (3, 5, 5)


# ---------------------------------------------------------------------- what is no amendment


def wanted(home: Path, name: str) -> Any:
    return read_request((home / name / f"{name}.request").read_bytes())


def spoil(change: Any) -> Any:
    """Change the file that is sent round."""

    def work(home: Path, file: Path) -> None:
        named = json.loads(file.read_text())
        change(named)
        file.write_text(json.dumps(named))

    return work


def as_signed(named: dict) -> None:
    """The signature of ann in the name of others."""
    named["signatures"] |= {name: named["signatures"]["ann"] for name in ("bob", "dan")}


def as_another_newcomer(home: Path, file: Path) -> None:
    """A relay puts its own certificate in the place of the newcomer's, with an authority."""
    say("init", "dan", "--listen", "127.0.0.1:7403", "--folder", home / "false")
    request = read_request((home / "false" / "dan.request").read_bytes())
    key, authority = identity.new_authority("run")
    leaf = identity.sign_leaf(request, key, authority)

    def change(named: dict) -> None:
        named["leaves"]["dan"] = leaf.decode()
        named["agreement"]["members"][3]["leaf"] = identity.fingerprint(leaf)
        first = named["authority"].index("-----END") + 26
        named["authority"] = named["authority"][:first] + authority.decode()

    spoil(change)(home, file)


def of_another_run(home: Path, file: Path) -> None:
    """An outsider who has keys of its own for all names."""
    pilot_of(home / "other", Trial(rounds=ROUNDS, mode="elastic", deadline=4.0, places=4))
    amend(home / "other", "bob", "cat", "dan").replace(file)


def with_the_id_of_this_run(home: Path, file: Path) -> None:
    """The same, with the id of the run that is attacked."""
    run = json.loads(file.read_text())["agreement"]["run"]
    of_another_run(home, file)
    spoil(lambda named: named["agreement"].update(run=run, founding=run))(home, file)


FORGED = {
    "edition 2 does not follow from edition 1": spoil(lambda n: n["agreement"].update(rounds=99)),
    "edition 2 does not follow from edition 1  ": spoil(lambda n: n["agreement"].update(places=9)),
    "edition 2 does not follow from edition 1 ": spoil(lambda n: n["agreement"].update(before="")),
    "does not follow": spoil(lambda n: n["agreement"]["members"][1].update(address="x:1")),
    "does not follow ": with_the_id_of_this_run,
    "lacks the agreed certificate of bob": spoil(
        lambda n: n["agreement"]["members"][1].update(leaf="sha256:00")
    ),
    "signature of 'bob' under edition 2 is none": spoil(as_signed),
    "signature of 'eve'": spoil(lambda n: n["signatures"].update(eve="00")),
    "signature of 'ann' under edition 2 is none": as_another_newcomer,
    "an authority that signed for no member": spoil(
        lambda n: n.update(authority=n["authority"] + identity.new_authority("run")[1].decode())
    ),
    "is of run .*, and .* takes part in": of_another_run,
    "the first edition of the agreement is missing": spoil(lambda n: n.update(earlier=[])),
    "each with its own name": spoil(
        lambda n: n["agreement"]["members"].__setitem__(3, n["agreement"]["members"][1])
    ),
    "is not an invite, or is damaged": spoil(lambda n: n.update(signatures=3)),
}


@pytest.mark.parametrize("words", FORGED)
def test_a_forged_amendment_is_refused_and_nothing_changes(home: Path, words: str) -> None:
    """Whoever made it: an outsider, a relay, or a member alone."""
    file = amend(home)
    before = {path.name: path.stat().st_mtime for path in (home / "bob").iterdir()}
    FORGED[words](home, file)
    with pytest.raises(ScoolError, match=words.strip()):
        consider_amendment(home / "bob", file)
    assert {path.name: path.stat().st_mtime for path in (home / "bob").iterdir()} == before


def test_nobody_signs_two_amendments_for_one_place(home: Path) -> None:
    """Else two groups of members could let in one owner each."""
    say("init", "eve", "--listen", "127.0.0.1:7405", "--folder", home / "eve")
    file = amend(home)
    with pytest.raises(ScoolError, match="has signed edition 2 of the agreement already"):
        propose(open_owner(home / "ann"), [wanted(home, "eve")])
    other = home / "other.amendment"
    say("amend", home / "bob", home / "eve" / "eve.request", "--out", other)
    with pytest.raises(ScoolError, match="has signed another edition 2"):
        consider_amendment(home / "bob", file).sign()


def test_two_groups_that_are_most_share_a_member(home: Path) -> None:
    """Who left would else count in both, and one place could have two owners."""
    members = [Member(name, "127.0.0.1:7400", "") for name in ("ann", "bob", "cat", "dan", "eve")]
    found = Agreement.read(home / "ann")
    before = replace(found, members=tuple(members), places=6, signers="most")
    after = with_members(before, [Member("fay", "127.0.0.1:7405", "")])
    signed = {"ann": "", "bob": "", "fay": ""}
    assert lacking(before, after, signed, left=["eve"]) == ["cat", "dan"]
    assert not lacking(before, after, {**signed, "cat": ""}, left=["eve"])
    assert not lacking(before, after, signed, left=["cat", "dan", "eve"])  # nobody else is there


def test_a_member_whose_certificate_expired_keeps_no_newcomer_out(home: Path) -> None:
    """A newcomer's own has to be valid."""
    say("init", "eve", "--listen", "127.0.0.1:7405", "--folder", home / "eve")
    editions = [replace(Agreement.read(home / "ann"), places=5)]
    leaves = {name: (home / "ann" / "members" / f"{name}.pem").read_bytes() for name in NAMES}
    authorities = (home / "ann" / "authority.pem").read_bytes()
    for name, days in {"dan": 0, "eve": 1}.items():
        key, authority = identity.new_authority("run")
        leaf = leaves[name] = identity.sign_leaf(wanted(home, name), key, authority, days)
        member = Member(name, wanted(home, name).address, identity.fingerprint(leaf))
        editions.append(with_members(editions[-1], [member]))
        authorities += authority
    Invite(editions[2], authorities, leaves, tuple(editions[:2])).check()
    without = authorities[: -len(authority)]
    with pytest.raises(ScoolError, match="the certificate of dan expired on"):
        Invite(editions[1], without, leaves, (editions[0],)).check()


def test_a_crash_while_an_edition_is_taken_up_leaves_the_one_before(home: Path) -> None:
    file = amend(home, "bob", "cat", "dan")
    say("join", home / "ann", file)
    owner = open_owner(home / "ann")
    Editions((*owner.earlier, owner.agreement), {"ann": "00"}).write(home / "ann", 3)
    assert open_owner(home / "ann").agreement.edition == 2


def test_an_agreement_is_read_again_only_where_its_file_is_another(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer looks whenever it waits, thousands of times in a run."""
    owner, read = open_owner(home / "ann"), list[Path]()
    old = Agreement.read
    monkeypatch.setattr(Agreement, "read", lambda folder: (read.append(folder), old(folder))[1])
    watch = Watch(owner.folder, owner.agreement)
    for _ in range(5):
        watch.look()
    assert len(read) == 1
    replace(owner.agreement, edition=2, founding=owner.agreement.run).write(owner.folder)
    with pytest.raises(KeyboardInterrupt):
        watch.look()
    assert watch.newer


def test_a_member_may_join_by_the_amendment_alone(home: Path) -> None:
    """It did not join before, or lost its folder but for the key: others check what it signs."""
    for name in ("agreement.json", "signatures.json", "leaf.pem", "authority.pem"):
        (home / "cat" / name).unlink()
    file = amend(home, "bob", "cat", "dan")
    say("join", home / "cat", file, "--yes")
    cat = open_owner(home / "cat")
    say("join", home / "ann", file)
    open_owner(home / "ann").admit(2, {"signature": cat.signatures["cat"]})


def test_what_cannot_be_written_is_not_signed_and_a_second_proposal_names_the_first(
    home: Path,
) -> None:
    words = ["peer", "amend", str(home / "ann"), str(home / "dan" / "dan.request"), "--out"]
    assert run_command([*words, str(home / "none" / "file")]) == 2
    assert not (home / "ann" / "signed.json").exists()
    amend(home)
    with pytest.raises(ScoolError, match=r"pending\.invite is the file as this owner has it"):
        propose(open_owner(home / "ann"), [wanted(home, "dan")])
    (home / "ann" / "pending.invite").write_text("{}")  # damaged: others have it
    assert not consider_amendment(home / "ann", home / "run.amendment").is_in_force


def test_a_folder_without_all_signatures_does_not_run(home: Path) -> None:
    """A member that puts the files there by hand."""
    file = amend(home, "dan")
    made = consider_amendment(home / "ann", file)
    made.adopt()
    with pytest.raises(ScoolError, match="edition 2 of the agreement lacks the signature of bob"):
        open_owner(home / "ann")


def test_signatures_that_come_back_from_several_members_add_up(home: Path) -> None:
    file = amend(home)
    for name in ("bob", "cat", "dan"):
        copy = shutil.copy(file, home / f"{name}.amendment")
        say("join", home / name, copy, "--yes")
    for name in ("bob", "cat", "dan"):
        assert Agreement.read(home / "ann").edition == 1
        say("join", home / "ann", home / f"{name}.amendment")
    assert Agreement.read(home / "ann").edition == 2


def test_a_strict_run_does_not_grow(home: Path) -> None:
    pilot_of(home / "strict", Trial(rounds=ROUNDS))
    with pytest.raises(ScoolError, match="a strict run has the members that it began with"):
        propose(open_owner(home / "strict" / "ann"), [wanted(home, "dan")])
