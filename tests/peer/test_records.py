"""The run folder of a peer is one like any other: all commands take it, and name the owners."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="pip install scool[peer]")

import scool
from peer.pilots import take_part
from scool.cli.main import run_command


def test_every_command_takes_the_run_folder_of_a_peer(
    pilot: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    take_part(pilot)
    bob, ann = pilot / "bob" / "run", pilot / "ann" / "run"

    def said(*words: object, code: int = 0) -> str:
        assert run_command([str(word) for word in words]) == code
        shown = capsys.readouterr()
        return shown.out + shown.err

    assert "whole" in said("verify", bob)
    assert "finished" in said("ls", pilot / "bob") and "finished" in said("watch", bob)
    assert "records differ" in said("diff", bob, ann)
    said("report", bob, ann, "--out", pilot / "page.html")
    assert (pilot / "page.html").exists()
    said("export", bob, "--client", "bob", "--out", pilot / "own")
    assert "Personal model of client bob" in (pilot / "own" / "README.txt").read_text()
    words = said("export", bob, "--client", "cat", "--out", pilot / "none", code=2)
    assert "the run holds no model of cat: it is that of bob, on the machine" in words
    assert not (pilot / "none").exists()
    said("peer", "export", pilot / "bob")
    edges = (pilot / "bob" / "export" / "graph.csv").read_text().splitlines()
    assert edges[0] == "client,from,weight" and any(edge.startswith("bob,bob,") for edge in edges)
    samples = np.load(pilot / "bob" / "data.npz")["x_test"]
    found = [scool.load_model(at).predict(samples) for at in (bob, pilot / "bob" / "export")]
    assert (found[0] == found[1]).all()
    for command in ("resume", "rerun"):
        assert f"`scool peer run {pilot / 'bob'}` continues it" in said(command, bob, code=2)
