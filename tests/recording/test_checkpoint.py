"""Checkpoints: whole or refused. Files: old or new, never half."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from scool.errors import RunError
from scool.recording.atomic import write_bytes, write_json
from scool.recording.checkpoint import flatten, load_checkpoint, save_checkpoint, unflatten
from scool.recording.folder import RunFolder


class Inner(NamedTuple):
    w: Tensor
    flag: Tensor


class State(NamedTuple):
    theta: dict[str, Tensor]
    graph: Inner
    count: Tensor


def state() -> State:
    return State(
        {"0.weight": torch.randn(2, 3), "0.bias": torch.randn(2)},
        Inner(torch.rand(2, 2, dtype=torch.float64), torch.tensor([True, False])),
        torch.tensor(7),
    )


def test_round_trip_keeps_bits_types_and_structure(tmp_path: Path) -> None:
    before = state()
    flat = flatten(before)
    assert sorted(flat) == ["count", "graph/flag", "graph/w", "theta/0.bias", "theta/0.weight"]
    save_checkpoint(tmp_path / "c", 3, flat)
    loaded = load_checkpoint(tmp_path / "c")
    after = unflatten(state(), loaded.tensors)
    assert loaded.rounds == 3 and isinstance(after, State) and isinstance(after.graph, Inner)
    for name, tensor in flatten(after).items():
        assert tensor.dtype == flat[name].dtype and torch.equal(tensor, flat[name])


def test_equal_states_are_equal_files(tmp_path: Path) -> None:
    flat = flatten(state())
    for number in range(6):
        save_checkpoint(tmp_path / str(number), 3, flat)
    assert len({(tmp_path / str(n)).read_bytes() for n in range(6)}) == 1


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, 3, flatten(state()))
    whole = path.read_bytes()
    for position in range(len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 1 << (position % 8)
        path.write_bytes(broken)
        with pytest.raises(RunError):
            load_checkpoint(path)


@pytest.mark.parametrize("kept", [0, 5, 60, -1])
def test_a_truncated_file_is_noticed(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, 3, flatten(state()))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(RunError, match=r"cannot be read.*delete c"):
        load_checkpoint(path)


def test_other_versions_are_named(tmp_path: Path) -> None:
    save_file(flatten(state()), tmp_path / "plain")
    with pytest.raises(RunError, match=r"another version of scool \(no format"):
        load_checkpoint(tmp_path / "plain")
    meta = {"scool": json.dumps({"format": "scool-checkpoint-9", "rounds": 3})}
    save_file(flatten(state()), tmp_path / "newer", metadata=meta)
    with pytest.raises(RunError, match="scool-checkpoint-9; this one reads"):
        load_checkpoint(tmp_path / "newer")


def test_a_state_of_another_shape_is_refused(tmp_path: Path) -> None:
    flat = flatten(state())
    with pytest.raises(RunError, match="another configuration"):
        unflatten(state(), {n: t for n, t in flat.items() if n != "graph/w"})
    with pytest.raises(RunError, match=r"\(5, 5\) for 'graph/w'"):
        unflatten(state(), flat | {"graph/w": torch.zeros(5, 5)})


def line(round: int) -> dict[str, int]:
    return {"round": round, "messages": 0, "bytes": 0}


def test_the_last_two_checkpoints_stay(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    for rounds in (1, 2, 3):
        folder.append("metrics.jsonl", line(rounds - 1))
        folder.write_checkpoint(rounds, flatten(state()))
    names = sorted(p.name for p in folder.path.glob("*.safetensors"))
    assert names == ["checkpoint-000002.safetensors", "checkpoint-000003.safetensors"]
    last = folder.last_checkpoint()
    assert last is not None and last.rounds == 3


def test_a_checkpoint_ahead_of_its_lines_is_passed_over(tmp_path: Path) -> None:
    """After a power cut the unsynced end of metrics.jsonl may be gone."""
    folder = RunFolder.create(tmp_path / "run", {})
    for rounds in (1, 2):
        folder.append("metrics.jsonl", line(rounds - 1))
        folder.write_checkpoint(rounds, flatten(state()))
    path = folder.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    last = folder.last_checkpoint()
    assert last is not None and last.rounds == 1
    folder.rewind(1)
    assert [row["round"] for row in folder.rows()] == [0]
    assert len(list(folder.path.glob("checkpoint-*"))) == 1


def test_existing_folders_are_never_overwritten(tmp_path: Path) -> None:
    taken = tmp_path / "run"
    taken.mkdir()
    RunFolder.create(taken, {"a": 1})  # an empty folder is free
    with pytest.raises(RunError, match=r"exists already.*scool resume"):
        RunFolder.create(taken, {"a": 2})
    assert RunFolder.open(taken).header == {"a": 1}
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="exists already"):
        RunFolder.create(tmp_path / "file", {})
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(RunError, match="cannot make"):
        RunFolder.create(tmp_path / "file" / "below", {})
    with pytest.raises(RunError, match=r"no run\.json"):
        RunFolder.open(tmp_path / "nothing")


def test_what_a_kill_left_of_a_start_is_not_in_the_way(tmp_path: Path) -> None:
    left = tmp_path / "run"
    left.mkdir()
    (left / ".run.json.123.tmp").write_text("{")
    RunFolder.create(left, {"a": 1})
    (left / "graphs").rmdir()  # killed between the header and the folder
    RunFolder.open(left).write_graph(0, torch.eye(2))


def test_damaged_records_are_named(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    folder.write_graph(0, torch.eye(2))
    assert torch.equal(folder.graphs()[0], torch.eye(2))
    (folder.path / "graphs" / "000000.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"000000.safetensors cannot be read"):
        folder.graphs()
    (folder.path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run.json is damaged: Expecting .* Put a whole one"):
        folder.header  # noqa: B018
    (folder.path / "run.json").write_text('{"rounds": "x"}')
    with pytest.raises(RunError, match=r"run.json is damaged: rounds = 'x' is not a whole number"):
        folder.header  # noqa: B018
    folder.append("metrics.jsonl", line(0))
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\n")
    assert folder.rows() == [line(0)]


def test_json_with_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not (tmp_path / "a.json").exists()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB, where the machine lets us have one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip(f"mount is not permitted: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_keeps_what_was_there(tiny_disk: Path) -> None:
    path = tiny_disk / "file"
    write_bytes(path, b"old")
    with pytest.raises(RunError, match=r"No space left.*intact"):
        write_bytes(path, os.urandom(1 << 20))
    assert path.read_bytes() == b"old"
    assert [p.name for p in tiny_disk.iterdir()] == ["file"]


def test_a_folder_that_may_not_be_written_says_so(tmp_path: Path) -> None:
    """/dev/full refuses every byte; a line that cannot be appended is a RunError."""
    folder = RunFolder.create(tmp_path / "run", {})
    (folder.path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"No space left.*scool resume"):
        folder.append("metrics.jsonl", {"round": 0})
