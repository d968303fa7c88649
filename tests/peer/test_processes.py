"""Owners in processes of their own, over TLS on loopback, one of them killed on the way."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zenoh", reason="pip install scool[peer]")
pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.test_node import NAMES, OPTIONS, check_equal, simulated
from peer.test_zenoh import free_addresses, wait_for
from scool.errors import ScoolError
from scool.peer import pilot
from scool.peer.status import read_status
from toys import classification


def rounds_of(folder: Path) -> int:
    try:
        return read_status(folder)["round"]
    except ScoolError:
        return 0


def test_four_processes_give_what_the_simulator_gives_though_one_is_killed(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, addresses = tmp_path / "pilot", dict(zip(NAMES, free_addresses(4), strict=True))
    trial = pilot.Trial(rounds=6)
    folders = pilot.make_pilot(folder, addresses, trial, OPTIONS, classification())
    peers = [start(folder) for folder in folders]
    assert wait_for(lambda: rounds_of(folders[2]) >= 2, seconds=60)
    os.kill(peers[2].pid, signal.SIGKILL)
    peers[2].join()
    time.sleep(0.3)
    assert peers[0].is_alive() and rounds_of(folders[0]) <= rounds_of(folders[2]) + 1
    peers[2] = start(folders[2])
    for peer, where in zip(peers, folders, strict=True):
        peer.join(40)
        assert peer.exitcode == 0, Path(f"{where}.err").read_text()
    monkeypatch.setattr("peer.test_node.ROUNDS", 6)
    check_equal(folder, simulated(folder))
    for where in folders:
        assert read_status(where)["problems"] == []
