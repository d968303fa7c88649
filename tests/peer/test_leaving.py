"""Stopping for a while and leaving for good: what is saved, and what the others do."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from scool.cli.main import run_command
from scool.errors import ScoolError
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.peer.terms import Mode
from scool.recording.folder import RunFolder
from scool.recording.writer import RunWriter
from scool.run.loop import Interrupted
from scool.types import Info

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.pilots import ADDRESSES, NAMES, simulated
from scool.peer.node import run_owner
from scool.peer.owner import open_owner
from scool.peer.pilot import Trial, make_pilot
from scool.peer.status import read_status
from toys import classification

ROUNDS, LAST = 8, 2
OPTIONS = {"epochs": 1, "batch_size": 4, "sparsify_round": 1, "fraction": 0.4}


class AtRound:
    """A recorder that lets something happen in a round."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def start(self, header: Mapping[str, Any], first_round: int) -> None: ...

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        if row["round"] == LAST:
            self.act()

    def end(self, result: Any) -> None: ...


def press() -> None:
    raise KeyboardInterrupt


def run(folder: Path, mode: Mode, act: Any, who: Collection[str] = ("bob",)) -> dict[str, Any]:
    """Four owners, of whom bob does something in a round: what each returned, or its last words."""
    make_pilot(folder, ADDRESSES, Trial(rounds=ROUNDS, mode=mode), OPTIONS, classification())
    return again(folder, MemoryNetwork(4, delay=(0.05, 0.1)), act, who)


def again(
    folder: Path, network: MemoryNetwork, act: Any = None, who: Collection[str] = ()
) -> dict[str, Any]:
    """The owners of a folder run."""

    def live(name: str) -> Any:
        def program(transport: MemoryTransport) -> Any:
            recorders = [AtRound(act)] if name in who else []
            try:
                owner = open_owner(folder / name)
                return run_owner(owner, recorders, connect=lambda *_: transport)
            except (Interrupted, ScoolError) as error:
                return str(error)

        return program

    found = network.run({place: live(name) for place, name in enumerate(NAMES)})
    return {NAMES[place]: result for place, result in found.items()}


def rounds_of(folder: Path, name: str) -> int:
    return len(RunFolder.open(folder / name / "run").rows())


def test_a_stopped_peer_says_what_is_saved_and_the_others_go_on(tmp_path: Path) -> None:
    found = run(tmp_path / "p", "elastic", press)
    assert "stopped after round 3; the state is saved, `scool peer run" in found["bob"]
    assert "The others go on without this peer until it is back" in found["bob"]
    assert read_status(tmp_path / "p" / "bob")["state"] == "stopped"
    assert [rounds_of(tmp_path / "p", name) for name in NAMES] == [ROUNDS, 3, ROUNDS, ROUNDS]
    rows = RunFolder.open(tmp_path / "p" / "ann" / "run").rows()
    assert rows[-1]["absent"] == [1] and read_status(tmp_path / "p" / "ann")["left"] == []


def test_a_strict_run_that_all_were_stopped_in_goes_on(tmp_path: Path) -> None:
    """ann has saved a round less than the others, which she needs from them: they repeat it."""
    folder = tmp_path / "p"
    found = run(folder, "strict", press, who=NAMES)
    assert all("stopped after round 3" in words for words in found.values())
    records = RunFolder.open(folder / "ann" / "run")
    RunWriter.take_up(records, LAST).close()
    found = again(folder, MemoryNetwork(4, delay=(0.05, 0.1)))
    assert [result["rounds"] for result in found.values()] == [ROUNDS] * 4
    expected = simulated(folder)
    for place, name in enumerate(NAMES):
        for row, simulation in zip(
            RunFolder.open(folder / name / "run").rows(), expected.history, strict=True
        ):
            assert row["scores"][place] == simulation["scores"][place]


@pytest.mark.parametrize("mode", ["elastic", "strict"])
def test_who_leaves_tells_the_others_and_does_not_come_back(tmp_path: Path, mode: Mode) -> None:
    folder = tmp_path / "p"
    leave = ["peer", "leave", str(folder / "bob"), "--yes"]
    found = run(folder, mode, lambda: run_command(leave))
    assert "left the run after round 3" in found["bob"]
    assert read_status(folder / "bob")["state"] == "left" and rounds_of(folder, "bob") == 3
    for name in ("ann", "cat", "dan"):
        if mode == "elastic":
            assert found[name]["rounds"] == ROUNDS
            assert read_status(folder / name)["left"] == ["bob"]
            log = (folder / name / "audit.jsonl").read_text().splitlines()
            assert ["bob"] in [json.loads(x).get("members") for x in log if '"left"' in x]
        else:
            assert "bob has left the run for good" in found[name]
            assert rounds_of(folder, name) == 3
    for words in (["run", str(folder / "bob")], leave[1:]):
        assert run_command(["peer", *words]) == 2
    assert run_command(["peer", "export", str(folder / "bob")]) == 0


def test_nobody_leaves_unasked_or_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "p"
    run(folder, "strict", lambda: None)
    for words, said in ((["--yes"], "is finished"), ([], "nobody is there to ask")):
        assert run_command(["peer", "leave", str(folder / "bob"), *words]) == 2
        assert said in capsys.readouterr().err
    assert not (folder / "bob" / "left.json").exists()
