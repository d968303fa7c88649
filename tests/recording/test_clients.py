"""The record of who the clients were: whole, the same every time, and no data in it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import scool
from records import make_old, write_clients
from scool.errors import RunError
from scool.recording.clients import NAME, describe_clients, read_clients
from scool.recording.folder import RunFolder
from scool.recording.verify import verify_run
from toys import classification, regression


@pytest.mark.parametrize("make", [classification, regression])
def test_what_is_written_is_read(make, tmp_path: Path) -> None:
    federation = replace(make(), client_names=("<a>", "ü", "c", ""))
    write_clients(tmp_path, federation)
    found, expected = read_clients(RunFolder(tmp_path)), describe_clients(federation)
    assert found is not None
    for mine, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert isinstance(mine, torch.Tensor) and torch.equal(mine, theirs)
        elif not isinstance(theirs, dict):
            assert mine == theirs
    for part in ("train", "val", "test"):
        sizes = getattr(federation, part).sizes
        assert torch.equal(found.counts[part].sum(dim=1), sizes)
        assert torch.equal(found.counts[part], expected.counts[part])


def test_equal_federations_give_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_clients(tmp_path / name, scool.digits(num_clients=6, groups=2, seed=3))
    assert (tmp_path / "a" / NAME).read_bytes() == (tmp_path / "b" / NAME).read_bytes()


def test_older_and_damaged_folders(tmp_path: Path) -> None:
    assert read_clients(RunFolder(tmp_path)) is None
    (tmp_path / NAME).write_bytes(b"half a file")
    with pytest.raises(RunError, match="a whole copy, or let `scool resume` write it again"):
        read_clients(RunFolder(tmp_path))


@pytest.mark.parametrize("content", [None, b"half a file"])
def test_resuming_writes_a_lost_record_again(content: bytes | None, tmp_path: Path) -> None:
    federation, out = classification(), tmp_path / "r"
    scool.fit(federation, "linear", scool.LocalOnly(), rounds=1, out=out)
    whole = (out / NAME).read_bytes()
    (out / NAME).unlink() if content is None else (out / NAME).write_bytes(content)
    with pytest.raises(RunError, match="is missing" if content is None else "is damaged"):
        read_clients(RunFolder(out))
    scool.fit(federation, "linear", scool.LocalOnly(), rounds=2, out=out, resume=True)
    assert (out / NAME).read_bytes() == whole and verify_run(out).is_whole


def test_resuming_an_older_run_adds_the_record(tmp_path: Path) -> None:
    federation = classification()
    scool.fit(federation, "linear", scool.LocalOnly(), rounds=1, out=tmp_path / "r")
    make_old(tmp_path / "r")
    (tmp_path / "r" / NAME).unlink()
    scool.fit(federation, "linear", scool.LocalOnly(), rounds=2, out=tmp_path / "r", resume=True)
    found = read_clients(RunFolder(tmp_path / "r"))
    assert found is not None and found.num_clients == 4
