"""What an owner sees of a peer: on the terminal, in a line of a log, and in a browser."""

import http.client
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.pilots import NAMES, take_part
from scool.cli.main import run_command
from scool.errors import ScoolError
from scool.peer.audit import Audit
from scool.peer.memory import MemoryNetwork
from scool.peer.node import run_owner
from scool.peer.owner import open_owner
from scool.peer.page import peers_page, serving
from scool.peer.panel import peer_line, peer_panel, peers_table
from scool.peer.post import Post
from scool.peer.standing import Standing, find_peers
from scool.peer.status import NAME, StatusFile, read_status
from scool.recording.disk import LOCK, holding

HOSTILE = "<script>alert(1)</script>\x1b[2J[red]"
TOLD = {
    "name": "bob",
    "run": "a1b2c3d4e5",
    "method": "scool-sbm",
    "mode": "elastic",
    "measure": "accuracy",
    "rounds": 10,
    "members": ["ann", "bob", "cat", "dan"],
    "here": ["ann", "bob"],
    "left": ["dan"],
    "state": "running",
    "round": 4,
    "first_round": 2,
    "since": 1000.0,
    "time": 1003.0,
    "waiting_for": [],
    "weights": [0.3, 0.65, 0.05, 0.0],
    "scores": [50.0, 60.0, None, 80.0],
    "alone": [40.0, 50.0, 60.0, 70.0, 99.0],
    "bytes_sent": 1500,
    "bytes_received": 2500,
    "problems": ["an old fault", HOSTILE],
}


def standing(is_alive: bool = True, **changes: Any) -> Standing:
    return Standing(Path("here/bob"), {**TOLD, **changes}, is_alive)


def seen(drawn: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(drawn)
    return console.export_text()


def test_one_peer_in_full() -> None:
    text = seen(peer_panel(standing()))
    lines = {line.split()[2]: line for line in text.splitlines() if line[2:3] in "●○x"}
    assert list(lines) == ["bob", "ann", "cat", "dan"]
    assert "65%" in lines["bob"] and lines["bob"].count("█") == 16 and "here" in lines["ann"]
    assert "away" in lines["cat"] and "left for good" in lines["dan"]
    assert "round 4 of 10, 1.5 s a round, 9 s left" in text
    assert "80.0 %" in text and "+10.0 points against alone" in text and "70.0 %" in text
    assert "1.5 kB sent, 2.5 kB received" in text
    assert "\\x1b[2J[red]" in text and "\x1b[2J" not in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"waiting_for": ["cat"]}, "waiting for cat"),
        ({"is_alive": False}, "no process runs: killed, or the machine was off"),
        ({"is_alive": False, "state": "stopped"}, "`scool peer run here/bob` goes on"),
        ({"is_alive": False, "state": "failed", "why": "the disk is full"}, "the disk is full"),
        ({"is_alive": False, "state": "finished"}, ""),
        ({}, ""),
    ],
)
def test_what_to_know_or_do_is_said(changes: Mapping[str, Any], words: str) -> None:
    peer = standing(**changes)
    assert words in peer.sentence if words else not peer.sentence
    assert words in peer_line(peer) and words[:10] in seen(peers_table([peer]))
    assert peer.is_over == (changes.get("state") == "finished")


def test_scores_of_regression_and_of_who_never_trained_alone() -> None:
    assert standing(measure="R2", scores=[0.5], alone=[0.75]).gain == "-0.250"
    short = standing(alone=[60.0, 70.0])
    assert (short.gain, short.alone_after) == ("+10.0 points", "after 2 rounds")
    assert standing(alone=[]).gain == "" and standing(scores=[], alone=[1.0]).gain == ""
    assert "none" in seen(peer_panel(standing(scores=[None], problems=[])))


def get(port: int, path: str = "/", host: str = "", method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    words = answer.read().decode()
    if answer.status == 200:
        assert "default-src 'none'" in str(answer.getheader("Content-Security-Policy"))
    connection.close()
    return answer.status, words


def test_the_page_is_for_this_machine_and_can_only_be_looked_at() -> None:
    with serving(0, lambda: peers_page([standing()])) as address:
        assert address.startswith("http://127.0.0.1:")
        port = int(address.rstrip("/").rpartition(":")[2])
        code, page = get(port)
        assert code == 200 and "<script" not in page and "&lt;script&gt;" in page
        assert "src=" not in page and "http" not in page.replace("http-equiv", "")
        assert "width:65.0%" in page and "+10.0 points" in page
        assert get(port, method="HEAD") == (200, "")
        assert get(port, host=f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1"):
            assert get(port, host=host)[0] == 403
        assert get(port, "/key.pem")[0] == 404 and get(port, "/../key.pem")[0] == 404
        assert get(port, method="POST")[0] == 501
        with pytest.raises(ScoolError, match=f"the page cannot be at port {port}"):
            with serving(port, lambda: ""):
                pass
    with pytest.raises(OSError):
        get(port)


def test_a_finished_run_is_seen_and_watched_to_its_end(
    pilot: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    take_part(pilot)
    peer = Standing.read(pilot / "bob")
    assert peer.is_over and not peer.is_alive and len(peer.scores) == peer.told["rounds"]
    assert sum(member.weight or 0.0 for member in peer.neighbours) == pytest.approx(1.0, abs=1e-3)
    assert peer.told["bytes_sent"] > peer.told["bytes_received"] / 2
    assert find_peers([pilot]) == [pilot / name for name in ("ann", "bob", "cat", "dan")]
    assert run_command(["peer", "status", str(pilot), "--watch"]) == 0
    assert capsys.readouterr().out.count("finished") == 4
    assert run_command(["peer", "status", str(pilot), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [peer["is_running"] for peer in found] == [False] * 4


def test_rounds_that_people_cannot_follow_are_not_all_written(
    pilot: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last word is; so is a round that is followed by a wait."""
    network, written = MemoryNetwork(1), list[int]()
    [transport] = network.run({0: lambda me: me}).values()
    owner = open_owner(pilot / "ann")
    status = StatusFile(owner, Post(transport, "r", 4, 99), print, Audit(owner.folder, NAMES))
    monkeypatch.setattr(
        "scool.peer.status.write_bytes",
        lambda path, content, **named: written.append(json.loads(content)["round"]),
    )
    for t in range(50):
        status.round({"round": t}, {"graph": torch.eye(4)})
    assert len(written) < 5
    status.waiting([1], 0.5)
    assert written[-1] == 50
    status.waiting([1], 0.7)
    assert written.count(50) == 1
    status.end(None)
    assert written.count(50) == 2


def test_a_folder_has_one_peer_at_a_time(pilot: Path) -> None:
    owner = open_owner(pilot / "bob")
    with holding(owner.folder / LOCK) as is_ours:
        assert is_ours
        with pytest.raises(ScoolError, match=r"another `scool peer run .*bob` is running"):
            run_owner(owner, connect=lambda *_: pytest.fail("connected"))


def test_a_damaged_status_is_said(tmp_path: Path) -> None:
    with pytest.raises(ScoolError, match="start the peer with"):
        read_status(tmp_path)
    (tmp_path / NAME).write_text("{")
    with pytest.raises(ScoolError, match="is damaged"):
        Standing.read(tmp_path)
