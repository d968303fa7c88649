"""Owners in processes of their own, over TLS on loopback, and what may happen to them."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zenoh", reason="pip install scool[peer]")
pytest.importorskip("cryptography", reason="pip install scool[peer]")

from scool.cli.main import run_command
from scool.errors import ScoolError
from scool.peer.agreement import Agreement
from scool.peer.faults import read_faults
from scool.peer.newcomers import check_newcomers
from scool.peer.outcome import Outcome, Summary
from scool.peer.pilot import Trial
from scool.peer.simulate import Plan, simulate
from toys import classification

OPTIONS = {"epochs": 2, "batch_size": 4, "sparsify_round": 1, "fraction": 0.4}


def run(folder: Path, trial: Trial, **plan: Any) -> tuple[Summary, list[str]]:
    """What became of four owners, and what is wrong with it."""
    faults = read_faults(plan.pop("faults", {}), 4)
    chosen = Plan(4, trial, faults, limit=90, **plan)
    watched = simulate(folder, chosen, OPTIONS, classification())
    outcome = Outcome(chosen, watched, None)
    found = outcome.summary()
    return found, outcome.failures(found)


def test_strict_processes_give_what_the_simulator_gives_though_one_is_killed(
    tmp_path: Path,
) -> None:
    """To the bit."""
    found, wrong = run(tmp_path / "p", Trial(rounds=6), faults={"kill": ["2@2+0.5"]}, pace=0.2)
    assert not wrong and found.strips == ["######"] * 4
    assert found.longest_round > 0.5  # the others waited


def test_elastic_processes_die_sleep_come_late_and_are_cut_off(tmp_path: Path) -> None:
    """And end together; nobody waits longer than a deadline."""
    trial = Trial(rounds=44, mode="elastic", deadline=4.0)
    faults = {"kill": ["1@5+1"], "stop": ["2@12+4"], "cut": ["0,1/2,3@26+4"]}
    found, wrong = run(tmp_path / "p", trial, faults=faults, late={3: 3}, pace=0.2)
    assert not wrong
    ann, bob, cat, dan = found.strips
    assert all(strip.endswith("###") for strip in found.strips)
    assert dan.startswith("...") and bob[:4] == "####" and "." in bob[4:12]
    assert "." in cat[12:26] and not {"o", "."}.isdisjoint(ann[26:36])
    [rounds] = found.healed  # the cut lasts longer than two, and all are whole at the end
    assert rounds is not None and 2 < rounds < 18


def test_a_newcomer_is_let_in_while_processes_run(tmp_path: Path) -> None:
    """All members take the amendment up at the same moment, and come back by themselves, one of
    them from its death; no place was reserved, so the run grows."""
    trial, faults = Trial(rounds=20, mode="elastic", deadline=4.0), {"kill": ["1@4+0.2"]}
    options: dict[str, Any] = {"newcomers": {3: 3}, "reserved": False, "faults": faults}
    found, _ = run(tmp_path / "p", trial, **options, pace=0.2)
    assert not found.failures
    *members, dan = found.strips
    assert dan.startswith("....") and all(strip.endswith("##") for strip in found.strips)
    assert all(strip[:3] == "###" and strip.count(".") <= 12 for strip in members)
    for place in range(4):
        assert run_command(["verify", str(tmp_path / "p" / f"peer-{place}" / "run")]) == 0
    agreed = [Agreement.read(tmp_path / "p" / f"peer-{place}") for place in range(4)]
    assert [(a.edition, a.run) for a in agreed] == [(2, agreed[0].founding)] * 4


@pytest.mark.parametrize("newcomers", [{0: 2}, {3: 2, 2: 5}, {1: 1, 2: 1, 3: 1}])
def test_newcomers_that_cannot_be_are_refused(newcomers: dict[int, int]) -> None:
    with pytest.raises(ScoolError, match="they get the last places"):
        check_newcomers(newcomers, 4)


def test_the_command_says_how_it_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.toml").write_text("hidden = [5]\n")
    command = "peer simulate --peers 2 --groups 1 --rounds 2 --method local --mode strict"
    files = ["--model", str(tmp_path / "model.toml"), "--out", str(tmp_path / "peers")]
    assert run_command([*command.split(), *files, "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert tuple(Agreement.read(tmp_path / "peers" / "peer-0").model["hidden"]) == (5,)
    assert found["strips"] == ["##", "##"] and found["score"] == found["simulator"]
    assert found["memory"] > 1_000_000
