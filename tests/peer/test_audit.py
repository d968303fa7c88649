"""What left this machine is written down before it leaves, and cannot be changed afterwards."""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.pilots import NAMES, take_part
from scool.cli.main import run_command
from scool.errors import ScoolError
from scool.peer.audit import FIRST, MOST, NAME, Audit, verify
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.peer.status import read_status


def test_the_log_of_a_run_accounts_for_every_byte(
    pilot: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    take_part(pilot)
    logs = {name: verify(pilot / name / NAME) for name in NAMES}
    for name in NAMES:
        status = read_status(pilot / name)
        to_me = sum(sum(log.left.get(name, {}).values()) for log in logs.values())
        assert to_me >= status["bytes_received"] > 0
        assert verify(pilot / name / NAME, status["audit"]).refused == 0
        lines = [json.loads(line) for line in (pilot / name / NAME).read_text().splitlines()]
        assert lines[0]["what"] == "start" and set(lines[0]["members"]) == set(NAMES)
        assert {line["what"] for line in lines} == {"start", "here", "record", "model"}
        models = [line for line in lines if line["what"] == "model"]
        for line in models:  # the key is the same SHA-256, in base64
            digest = base64.urlsafe_b64encode(bytes.fromhex(line["sha256"])).decode()
            assert line["key"] == f"model/{digest.rstrip('=')}"
        assert all(name not in line["to"] for line in lines if "to" in line)
    assert run_command(["peer", "audit", str(pilot / "ann"), "--head", logs["ann"].head]) == 0
    assert f"{logs['ann'].lines} lines, whole" in capsys.readouterr().out


def test_a_model_that_leaves_to_many_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit, hashed = Audit(tmp_path, NAMES), list[bytes]()
    one, other = b"one" * 1000, b"two" * 1000
    sha256 = hashlib.sha256

    def watched(data: bytes) -> Any:
        hashed.append(data)
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", watched)
    for to in (1, 2, 3):
        audit.leaving({to}, "model/a", one)
        audit.leaving({to}, "model/b", other)
        audit.leaving({to}, "0/a", b"a record")
    assert hashed.count(one) == hashed.count(other) == 1
    monkeypatch.undo()
    lines = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]
    expected = {"model/a": one, "model/b": other, "0/a": b"a record"}
    assert all(sha256(expected[n["key"]]).hexdigest() == n["sha256"] for n in lines)
    assert verify(tmp_path / NAME).lines == 9


@pytest.fixture
def log(tmp_path: Path) -> Path:
    audit = Audit(tmp_path, NAMES)
    for number in range(5):
        audit.leaving({1, 2}, f"{number}/a", b"x" * number)
    return tmp_path / NAME


CHANGES: dict[str, Callable[[list[str]], list[str]]] = {
    "line 3": lambda lines: [line.replace("1/a", "9/a") for line in lines],  # seen in the next one
    "line 1": lambda lines: lines[1:],
    "line 2": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "line 4": lambda lines: [*lines[:3], "{}", *lines[3:]],
    "line 5": lambda lines: [*lines[:4], "rubbish"],
}


@pytest.mark.parametrize("where", CHANGES)
def test_a_log_that_was_changed_is_told(log: Path, where: str) -> None:
    log.write_text("\n".join(CHANGES[where](log.read_text().splitlines())) + "\n")
    with pytest.raises(ScoolError, match=f"changed or is damaged at {where}"):
        verify(log)
    with pytest.raises(ScoolError, match=f"changed or is damaged at {where}"):
        Audit(log.parent, NAMES)


def test_a_log_that_was_written_anew_or_shortened_lacks_the_head_that_was_noted(log: Path) -> None:
    head = verify(log).head
    log.write_text("\n".join(log.read_text().splitlines()[:4]) + "\n")
    assert verify(log).lines == 4
    with pytest.raises(ScoolError, match="does not hold the line with hash"):
        verify(log, head)


def test_a_line_that_a_crash_left_unfinished_is_cut_and_that_is_said(log: Path) -> None:
    with log.open("a") as file:
        file.write('{"before": "')
    audit = Audit(log.parent, NAMES)
    assert verify(log).lines == 6 and verify(log).head == audit.head != FIRST
    assert json.loads(log.read_text().splitlines()[-1])["what"] == "cut"


def test_what_cannot_be_written_down_does_not_leave(tmp_path: Path) -> None:
    def speak(me: MemoryTransport) -> None:
        audit = Audit(tmp_path, NAMES)
        (tmp_path / NAME).symlink_to("/dev/full")  # every write fails: no space left on device
        me.leaving = audit.leaving
        with pytest.raises(ScoolError, match=r"No space left on device.*nothing leaves"):
            me.offer("0/a", b"secret", push=True)

    def listen(me: MemoryTransport) -> list:
        while me.now() < 1.0:
            me.wait(1.0)
        return me.arrivals()

    assert MemoryNetwork(2).run({0: listen, 1: speak})[0] == []


def test_refusals_do_not_fill_the_disk(tmp_path: Path) -> None:
    audit = Audit(tmp_path, NAMES)
    for number in range(MOST + 50):
        audit.refused(f"rubbish {number}", [b"proof"])
    found = verify(tmp_path / NAME)
    assert found.lines == found.refused == MOST + 1
