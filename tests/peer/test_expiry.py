"""What an owner can do whose certificate has expired: everything but take part."""

from pathlib import Path
from typing import Any

import pytest

from scool.cli.main import run_command
from scool.errors import ConfigError

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.pilots import ADDRESSES, NAMES, OPTIONS, ROUNDS, take_part
from scool.peer import pilot as pilots
from scool.peer.identity import Keys, common_name, sign_leaf
from scool.peer.leaving import has_left
from scool.peer.node import run_owner
from scool.peer.owner import open_owner
from scool.peer.pilot import Trial, make_pilot
from scool.peer.status import read_status
from scool.recording.folder import RunFolder
from toys import classification


def test_who_has_expired_may_sign_and_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def expired(*given: Any) -> bytes:
        return sign_leaf(*given, days=0)

    monkeypatch.setattr(pilots, "sign_leaf", expired)
    trial = Trial(rounds=ROUNDS, mode="elastic", places=5)
    make_pilot(tmp_path / "pilot", ADDRESSES, trial, OPTIONS, classification())
    ann, bob, file = (tmp_path / "pilot" / name for name in ("ann", "bob", "run.amendment"))
    with pytest.raises(ConfigError, match=r"expired on .*more rounds need a new agreement"):
        run_owner(open_owner(ann), connect=lambda owner, largest: pytest.fail("connected"))

    def say(*words: object) -> None:
        assert run_command(["peer", *map(str, words)]) == 0, capsys.readouterr().err

    say("init", "eve", "--listen", "127.0.0.1:7410", "--folder", tmp_path / "eve")
    say("amend", ann, tmp_path / "eve" / "eve.request", "--out", file)
    say("join", bob, file, "--yes")
    say("leave", ann, "--yes")
    assert has_left(ann)


def test_a_last_round_that_is_done_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "pilot"

    def check_time(keys: Keys) -> None:
        records = home / common_name(keys._leaf.subject) / "run"
        if records.exists() and len(RunFolder.open(records).rows()) == ROUNDS:
            raise ConfigError("leaf.pem expired")

    monkeypatch.setattr(Keys, "check_time", check_time)
    make_pilot(home, ADDRESSES, Trial(rounds=ROUNDS), OPTIONS, classification())
    take_part(home)
    for name in NAMES:
        assert read_status(home / name)["state"] == "finished"
        assert RunFolder.open(home / name / "run").header["status"] == "finished"
