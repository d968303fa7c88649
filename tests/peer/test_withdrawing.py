"""A proposal that dies is withdrawn, and never do two owners get one place."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from scool.cli.main import run_command
from scool.errors import ScoolError

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.test_amending import NAMES, pilot_of, say
from scool.peer.agreement import Agreement
from scool.peer.amending import consider_amendment
from scool.peer.editions import PENDING, SIGNED, withdraw
from scool.peer.owner import open_owner
from scool.peer.pilot import Trial

TRIAL = Trial(rounds=3, mode="elastic", deadline=4.0, places=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three members, and two who want the fourth place."""
    home = tmp_path_factory.mktemp("made") / "home"
    pilot_of(home, TRIAL)
    say("init", "eve", "--listen", "127.0.0.1:7405", "--folder", home / "eve")
    shutil.copy(home / "dan" / "data.npz", home / "eve")
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "home"))


def propose(home: Path, member: str, newcomer: str) -> Path:
    file = home / f"{newcomer}.amendment"
    say("amend", home / member, home / newcomer / f"{newcomer}.request", "--out", file)
    return file


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert run_command(["peer", *map(str, words)]) == 2
    return capsys.readouterr().err


def test_a_proposal_that_dies_makes_room_for_another(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dan vanished before he signed, and comes back too late."""
    dead = propose(home, "ann", "dan")
    for name in ("bob", "cat"):
        say("join", home / name, dead, "--yes")
    words = ("amend", home / "ann", home / "eve" / "eve.request", "--out", home / "eve.amendment")
    assert "amend" in (told := refused(capsys, *words)) and "--withdraw" in told
    for name in ("ann", "bob"):
        say("amend", home / name, "--withdraw")
        assert not (home / name / PENDING).exists()
    file = propose(home, "ann", "eve")
    for name in ("bob", "eve"):
        say("join", home / name, file, "--yes")
    assert "has signed edition 2" in refused(capsys, "join", home / "cat", file, "--yes")
    say("amend", home / "cat", "--withdraw")
    say("join", home / "cat", file, "--yes")
    say("join", home / "dan", dead, "--yes")  # the signatures of all are there now
    assert "has signed another" in refused(capsys, "join", home / "ann", dead, "--yes")
    for name in NAMES:
        say("join", home / name, file)
        agreement = open_owner(home / name).agreement
        assert (agreement.edition, agreement.names) == (3, (*NAMES, "eve"))
        assert "amends edition 1" in refused(capsys, "join", home / name, dead, "--yes")


def test_what_is_in_force_or_was_never_signed_cannot_be_withdrawn(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing to withdraw" in refused(capsys, "amend", home / "ann", "--withdraw")
    file = propose(home, "ann", "dan")
    for name in ("bob", "cat", "dan", "ann"):
        say("join", home / name, file, "--yes")
    assert Agreement.read(home / "ann").edition == 2
    assert "nothing to withdraw" in refused(capsys, "amend", home / "ann", "--withdraw")
    assert "there is nobody to let in" in refused(capsys, "amend", home / "ann")


def test_who_withdrew_may_sign_the_same_again(home: Path) -> None:
    """Its signature is in the file: it is asked nevertheless."""
    file = propose(home, "ann", "dan")
    say("amend", home / "ann", "--withdraw")
    assert not consider_amendment(home / "ann", file).is_signed
    for name in ("bob", "cat", "dan", "ann"):
        say("join", home / name, file, "--yes")
    assert Agreement.read(home / "ann").edition == 2


def test_who_never_signed_proposes_a_number_that_was_withdrawn(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    propose(home, "ann", "dan")
    say("amend", home / "ann", "--withdraw")
    file = propose(home, "bob", "eve")
    assert "one of them proposes anew" in refused(capsys, "join", home / "ann", file, "--yes")


def test_where_most_are_enough_nothing_is_withdrawn(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bob could let in dan with the signature that ann withdrew, and cat eve with the new one."""
    shutil.rmtree(home)
    home.mkdir()
    pilot_of(home, Trial(rounds=3, mode="elastic", deadline=4.0, places=4, signers="most"))
    propose(home, "ann", "dan")
    told = refused(capsys, "amend", home / "ann", "--withdraw")
    assert "signers = 'most'" in told and "new agreement" in told
    assert (home / "ann" / SIGNED).exists()


@pytest.mark.parametrize("seed", range(6))
def test_in_whatever_order_no_place_gets_two_owners(home: Path, seed: int) -> None:
    """All have signed both editions, one after the other, and go on to sign, withdraw and take up
    at random; every signature that was ever given stays in the files."""
    rng, files = Random(seed), list[Path]()
    for newcomer in ("dan", "eve"):
        for name in NAMES if files else ():
            say("amend", home / name, "--withdraw")
        files.append(propose(home, "ann", newcomer))
        for name in ("bob", "cat", newcomer):
            consider_amendment(home / name, files[-1]).sign().invite.write(files[-1])

    def sign(name: str, file: Path) -> None:
        consider_amendment(home / name, file).sign().invite.write(file)

    def take_up(name: str, file: Path) -> None:
        found = consider_amendment(home / name, file)
        if not found.invite.lacking:
            found.adopt()

    def let_go(name: str, file: Path) -> None:
        withdraw(home / name, Agreement.read(home / name))

    steps: list[Callable[[str, Path], None]] = [sign, sign, take_up, take_up, let_go]
    every = list(itertools.product(steps, NAMES, files))
    for step, name, file in rng.choices(every, k=60):
        try:
            step(name, file)
        except ScoolError:
            continue
        assert len({Agreement.read(home / name).names[3:] for name in NAMES} - {()}) <= 1
