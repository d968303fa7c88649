"""Checkpoints: whole or refused. Files: old or new, never half."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from records import make_old, tiny_file_system
from scool.errors import RunError
from scool.recording.checkpoint import (
    Checkpoint,
    as_checkpoint,
    flatten,
    save_checkpoint,
    unflatten,
)
from scool.recording.disk import write_bytes, write_json
from scool.recording.folder import RunFolder, state_round
from scool.recording.seals import with_seal
from scool.recording.tensors import read_tensors
from scool.recording.verify import verify_run
from scool.recording.writer import RunWriter


def load_checkpoint(path: Path, run: str | None = None) -> Checkpoint:
    return as_checkpoint(read_tensors(path, "checkpoint", run), 3)


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
    flat = flatten(state())
    save_checkpoint(path, 3, flat, run="mine")
    whole = path.read_bytes()
    for position in range(len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 1 << (position % 8)
        path.write_bytes(broken)
        try:
            found = load_checkpoint(path, run="mine")
        except ValueError:
            continue
        # A space or the order of the header: what is read is what was written.
        assert all(torch.equal(t, flat[name]) for name, t in found.tensors.items())
        assert set(found.tensors) == set(flat) and found.rounds == 3


@pytest.mark.parametrize("kept", [0, 5, 60, -1])
def test_a_truncated_file_is_noticed(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "c"
    save_checkpoint(path, 3, flatten(state()))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"cut off|claims|MetadataIncompleteBuffer|incomplete"):
        load_checkpoint(path)


def test_another_run_is_noticed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", 3, flatten(state()), run="mine")
    with pytest.raises(ValueError, match="belongs to another run"):
        load_checkpoint(tmp_path / "c", run="theirs")


def test_checkpoints_of_the_first_format_are_verified(tmp_path: Path) -> None:
    """As version 0.1 wrote them: no run, one checksum over all."""
    flat = {"x": torch.arange(4.0), "b/y": torch.tensor([True, False])}
    sha = hashlib.sha256(b"scool-checkpoint-1/3")
    for name in sorted(flat):
        sha.update(f"{name}/{flat[name].dtype}/{tuple(flat[name].shape)}".encode())
        sha.update(flat[name].view(torch.uint8).numpy().tobytes())
    about = {"format": "scool-checkpoint-1", "rounds": 3, "sha256": sha.hexdigest()}
    save_file(flat, tmp_path / "c", metadata={"scool": json.dumps(about)})
    assert load_checkpoint(tmp_path / "c").tensors.keys() == flat.keys()
    with pytest.raises(ValueError, match="not of this run"):
        load_checkpoint(tmp_path / "c", run="mine")
    content = bytearray((tmp_path / "c").read_bytes())
    content[-1] ^= 1
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(ValueError, match="do not match their checksum"):
        load_checkpoint(tmp_path / "c")


def test_other_versions_are_named(tmp_path: Path) -> None:
    save_file(flatten(state()), tmp_path / "plain")
    with pytest.raises(ValueError, match="it lacks 'rounds'"):
        load_checkpoint(tmp_path / "plain")
    meta = {"scool": json.dumps({"format": "scool-checkpoint-9", "rounds": 3})}
    save_file(flatten(state()), tmp_path / "newer", metadata=meta)
    with pytest.raises(ValueError, match="'scool-checkpoint-9', and this version of scool reads"):
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
    folder = RunWriter.create(tmp_path / "run", {})
    for rounds in (1, 2, 3):
        folder.append("metrics.jsonl", line(rounds - 1))
        folder.save(rounds, flatten(state()))
    folder.flush()
    names = sorted(p.name for p in folder.path.glob("*.safetensors"))
    assert names == ["checkpoint-000002.safetensors", "checkpoint-000003.safetensors"]
    last, problems = RunFolder(folder.path).last_checkpoint()
    assert last is not None and last.rounds == folder.saved == 3 and problems == []


def test_going_on_forgets_what_is_newer(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {})
    for rounds in (1, 2):
        writer.append("metrics.jsonl", line(rounds - 1))
        writer.write_graph(rounds - 1, torch.eye(2))
        writer.save(rounds, flatten(state()))
    writer.flush()
    (writer.path / ".run.json.12ab.tmp").write_text("{")
    again = RunWriter.take_up(RunFolder(writer.path), 1, status="running")
    found = RunFolder(writer.path)
    assert [row["round"] for row in found.rows()] == [0] and again.saved == 1
    assert found.checkpoints() == [1] and list(found.graph_files()) == [0]
    assert found.listed.logs["metrics.jsonl"][0] == 1 and found.header["status"] == "running"
    assert not list(writer.path.glob(".*.tmp"))


def test_models_do_not_depend_on_metrics(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {})
    for rounds in (1, 2):
        writer.append("metrics.jsonl", line(rounds - 1))
        writer.save(rounds, flatten(state()))
    writer.flush()
    (writer.path / "metrics.jsonl").write_bytes(b"nonsense")
    last, problems = RunFolder(writer.path).last_checkpoint()
    assert last is not None and last.rounds == 2 and problems == []


def test_a_damaged_or_missing_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {})
    for rounds in (1, 2):
        writer.save(rounds, flatten(state()))
    writer.flush()
    newest = writer.path / "checkpoint-000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    last, (words,) = RunFolder(writer.path).last_checkpoint()
    assert last is not None and last.rounds == 1 and "checkpoint-000002.safetensors is" in words
    newest.unlink()
    last, (words,) = RunFolder(writer.path).last_checkpoint()
    assert last is not None and last.rounds == 1 and words.endswith("000002.safetensors is missing")
    shutil.copy(writer.path / "checkpoint-000001.safetensors", newest)
    last, (words,) = RunFolder(writer.path).last_checkpoint()
    assert last is not None and last.rounds == 1 and "not the file that was written here" in words
    (writer.path / "checkpoint-000001.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match=r"000002.*000001"):
        RunFolder(writer.path).last_checkpoint()


def test_existing_folders_are_never_overwritten(tmp_path: Path) -> None:
    taken = tmp_path / "run"
    taken.mkdir()
    RunWriter.create(taken, {"a": 1})  # an empty folder is free
    with pytest.raises(RunError, match=r"exists already.*scool resume"):
        RunWriter.create(taken, {"a": 2})
    assert RunFolder.open(taken).header["a"] == 1
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="exists already"):
        RunWriter.create(tmp_path / "file", {})
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(RunError, match="cannot make"):
        RunWriter.create(tmp_path / "file" / "below", {})
    with pytest.raises(RunError, match=r"no run\.json"):
        RunFolder.open(tmp_path / "nothing")


def test_what_a_kill_left_of_a_start_is_not_in_the_way(tmp_path: Path) -> None:
    left = tmp_path / "run"
    left.mkdir()
    (left / ".run.json.123.tmp").write_text("{")
    RunWriter.create(left, {"a": 1})
    assert not (left / ".run.json.123.tmp").exists()
    (left / "graphs").rmdir()  # killed between the header and the folder
    RunWriter.take_up(RunFolder.open(left), 0).write_graph(0, torch.eye(2))


def test_damaged_records_are_named(tmp_path: Path) -> None:
    folder = RunWriter.create(tmp_path / "run", {})
    folder.write_graph(0, torch.eye(2))
    folder.append("metrics.jsonl", line(0))
    assert torch.equal(RunFolder(folder.path).graphs()[0], torch.eye(2))
    (folder.path / "graphs" / "000000.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"000000.safetensors is damaged"):
        RunFolder(folder.path).graphs()
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\n")
    found = RunFolder(folder.path).lines("metrics.jsonl")
    assert found.rows == [line(0)] and found.flaw == "line 2: it has no checksum"
    (folder.path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run.json is damaged: Expecting .* Put a whole one"):
        RunFolder(folder.path).header  # noqa: B018
    (folder.path / "run.json").write_text('{"rounds": "x"}')
    with pytest.raises(RunError, match=r"run.json is damaged: rounds = 'x' is not a whole number"):
        RunFolder(folder.path).header  # noqa: B018


def test_json_with_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not (tmp_path / "a.json").exists()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with tiny_file_system(tmp_path / "disk", "256k") as place:
        yield place


def test_a_full_disk_keeps_what_was_there(tiny_disk: Path) -> None:
    path = tiny_disk / "file"
    write_bytes(path, b"old")
    with pytest.raises(RunError, match=r"No space left.*intact"):
        write_bytes(path, os.urandom(1 << 20))
    assert path.read_bytes() == b"old"
    assert [p.name for p in tiny_disk.iterdir()] == ["file"]


def test_a_line_that_cannot_be_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not lost: it is written with the next one."""
    writer = RunWriter.create(tmp_path / "run", {})
    path = writer.path / "metrics.jsonl"
    writer.append("metrics.jsonl", line(0))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("scool.recording.lines.os.open", full)
        with pytest.raises(RunError, match=r"cannot write .*metrics\.jsonl: No .*scool resume"):
            writer.append("metrics.jsonl", line(1))
    writer.append("metrics.jsonl", line(2))
    assert [row["round"] for row in RunFolder(writer.path).rows()] == [0, 1, 2]
    path.unlink()
    path.mkdir()
    with pytest.raises(RunError, match=r"cannot write .*metrics\.jsonl: Is a directory"):
        writer.append("metrics.jsonl", line(3))
    assert path.is_dir() and not list(writer.path.glob(".*.tmp"))


@pytest.mark.parametrize("before", [0, 1])  # lines when the file was replaced
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_log_is_never_written_through_a_link(tmp_path: Path, kind: str, before: int) -> None:
    """Nor into a pipe, which would wait for a reader: the log gets its file back."""
    writer = RunWriter.create(tmp_path / "run", {})
    path, theirs = writer.path / "metrics.jsonl", tmp_path / "theirs"
    for round in range(before):
        writer.append("metrics.jsonl", line(round))
    theirs.write_bytes(path.read_bytes() if before else b"")
    was = theirs.read_bytes()
    path.unlink(missing_ok=True)
    path.symlink_to(theirs) if kind == "link" else os.mkfifo(path)
    writer.append("metrics.jsonl", line(before))
    writer.seal()
    assert path.is_file() and not path.is_symlink() and theirs.read_bytes() == was
    assert [row["round"] for row in RunFolder(writer.path).rows()] == list(range(before + 1))


def test_a_log_that_is_deleted_or_changed_meanwhile_is_written_again(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {})
    path = writer.path / "metrics.jsonl"
    writer.append("metrics.jsonl", line(0))
    path.unlink()
    writer.append("metrics.jsonl", line(1))
    assert len(RunFolder(writer.path).rows()) == 2
    path.write_bytes(path.read_bytes() + b"more")
    writer.append("metrics.jsonl", line(2))
    found = RunFolder(writer.path).lines("metrics.jsonl")
    assert len(found.rows) == 3 and found.flaw is None


def test_what_somebody_deletes_meanwhile_is_missed(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {})
    writer.write_graph(0, torch.eye(2))
    (writer.path / "graphs" / "000000.safetensors").unlink()
    (writer.path / "run.json").unlink()
    with pytest.warns(UserWarning, match="000000.safetensors was deleted while"):
        writer.seal()
    writer.update_header(status="finished")
    assert RunFolder(writer.path).header["status"] == "finished"


@pytest.mark.parametrize("kind", ["pipe", "device", "link", "folder"])
def test_only_plain_files_are_read(tmp_path: Path, kind: str) -> None:
    writer = RunWriter.create(tmp_path / "run", {})
    path = writer.path / "run.json"
    path.rename(tmp_path / "whole.json")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        path.symlink_to(tmp_path / "whole.json")
    else:
        path.mkdir()
    with pytest.raises(RunError, match=r"run\.json cannot be read: (it is|Is a)"):
        RunFolder(writer.path).header  # noqa: B018


def test_a_folder_of_graphs_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Behind it nothing is read, written or deleted."""
    writer = RunWriter.create(tmp_path / "run", {})
    writer.write_graph(0, torch.eye(2))
    writer.seal()
    (writer.path / "graphs").rename(tmp_path / "theirs")
    (writer.path / "graphs").symlink_to(tmp_path / "theirs")
    for name in (".precious.tmp", "000500.safetensors"):
        (tmp_path / "theirs" / name).touch()
    with pytest.raises(RunError, match="graphs cannot be read: graphs is a link"):
        RunWriter.take_up(RunFolder(writer.path), 0)
    with pytest.raises(RunError, match="graphs is a link"):
        RunFolder(writer.path).read_graph(0)
    assert len(list((tmp_path / "theirs").iterdir())) == 3
    assert not verify_run(writer.path).is_whole


def test_a_damaged_graph_is_left_out_when_a_run_goes_on(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {})
    for round in (0, 1):
        writer.write_graph(round, torch.eye(2))
        writer.append("metrics.jsonl", line(round))
    writer.seal()
    path = writer.path / "graphs" / "000000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="000000.safetensors is damaged.*continues without"):
        again = RunWriter.take_up(RunFolder(writer.path), 2)
    assert not again.has("graphs/000000.safetensors") and again.has("graphs/000001.safetensors")


def test_a_sealed_checkpoint_of_another_run_is_refused_by_an_old_folder(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {"identity": {"seed": 0}})
    writer.save(1, flatten(state()))
    writer.seal()
    make_old(writer.path)
    last, _ = RunFolder(writer.path).last_checkpoint()
    assert last is not None and last.rounds == 1
    save_checkpoint(writer.path / "checkpoint-000002.safetensors", 2, flatten(state()), "f" * 32)
    last, (words,) = RunFolder(writer.path).last_checkpoint()
    assert last is not None and last.rounds == 1 and "it belongs to another run" in words


def test_parts_of_ranks_in_an_old_folder_get_checksums(tmp_path: Path) -> None:
    """All of them, also those that the rank that goes on has not read."""
    writer = RunWriter.create(tmp_path / "run", {"identity": {"seed": 0}})
    ids = [torch.tensor([0]), torch.tensor([1])]
    seals = {}
    for rank, mine in enumerate(ids):
        rows = {"theta/x": torch.randn(1, 2)}
        seals[f"shard-000001-{rank}-of-2.safetensors"] = writer.save_part(
            1, rank, 2, mine, rows
        ).result()
    writer.save(1, {"shards/holder": torch.tensor([0, 1])}, seals)
    writer.seal()
    make_old(writer.path)
    folder = RunFolder(writer.path)
    folder.load_checkpoint(1, ids[0])  # as the first of two ranks
    RunWriter.take_up(folder, 1)
    assert RunFolder(writer.path).load_checkpoint(1).tensors["theta/x"].shape == (2, 2)
    assert verify_run(writer.path).is_whole


@pytest.mark.parametrize("lost", ["tensors", "run", "format", "round"])
def test_a_sealed_description_that_lacks_a_field_is_damage(tmp_path: Path, lost: str) -> None:
    writer = RunWriter.create(tmp_path / "run", {})
    writer.write_graph(0, torch.eye(2))
    path = writer.path / "graphs" / "000000.safetensors"
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["scool"])
    del about[lost]
    save_file({"w": torch.eye(2)}, path, metadata={"scool": json.dumps(with_seal(about))})
    if lost == "round":
        assert torch.equal(RunFolder(writer.path).read_graph(0), torch.eye(2))
    else:
        with pytest.raises(RunError, match=r"000000\.safetensors is damaged"):
            RunFolder(writer.path).read_graph(0)


def test_rounds_of_checkpoints_are_read_from_their_names() -> None:
    assert state_round("checkpoint-1000000.safetensors") == 1_000_000
    assert state_round("shard-000012-1-of-2.safetensors") == 12
    assert state_round("checkpoint-abc.safetensors") is None
