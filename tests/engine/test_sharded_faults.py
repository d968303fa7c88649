"""Ranks that die, hang or cannot write; and checkpoints that other numbers of ranks take up.

Each test starts one real group of processes with the command line, on the loopback address.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from engine.kill_ranks import differences, has_moved, run_words
from scool.errors import RunError
from scool.recording.checkpoint import Checkpoint, forget_parts
from scool.recording.folder import RunFolder
from scool.run.config import RunConfig, config_of, execute

OPTIONS = (
    "scool-sbm --dataset synthetic --clients 9 --model linear --device cpu --sparsify-round 3 "
    "--fraction 0.3 --checkpoint-every 2 --eval-every 4 --quiet --json"
).split()
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "SCOOL_RANK_TIMEOUT": "60"}


def scool(
    *words: object, launcher: tuple[str, ...] = (), patience: int = 60
) -> subprocess.Popen[str]:
    program = [sys.executable, *launcher, "-m", "scool", *map(str, words)]
    environment = ENVIRONMENT | {"SCOOL_RANK_TIMEOUT": str(patience)}
    return subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str], seconds: float = 60) -> tuple[int, str, str]:
    try:
        out, errors = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out, errors


def after_round(process: subprocess.Popen[str], folder: Path, rounds: int) -> list[int]:
    """Wait until a run has recorded so many rounds; the processes that it has started."""
    metrics, until = folder / "metrics.jsonl", time.monotonic() + 120
    while not metrics.exists() or len(metrics.read_text().splitlines()) < rounds:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)
    return children(process)


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes that it has started."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    )
    return [int(word) for word in listed.stdout.split()]


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def resume(folder: Path) -> None:
    """Go on in this process, which holds all clients."""
    config = config_of(RunFolder.open(folder).header, folder)
    execute(config, out=folder, resume=True)


def newest(folder: Path) -> Checkpoint:
    """The newest checkpoint, which must be whole."""
    checkpoint, problems = RunFolder.open(folder).last_checkpoint()
    assert checkpoint is not None and not problems
    return checkpoint


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in one process, to the end."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    code, _, errors = finish(scool("run", *OPTIONS, "--rounds", 40, "--out", folder))
    assert code == 0, errors
    return folder


def assert_same_run(folder: Path, unbroken: Path) -> None:
    """Float32 sums in another order: 1e-4; who learns from whom and the traffic are equal."""
    found, expected = RunFolder.open(folder), RunFolder.open(unbroken)
    assert len(found.rows()) == len(expected.rows()) == 40
    for mine, other in zip(found.rows(), expected.rows(), strict=True):
        assert mine["train_loss"] == pytest.approx(other["train_loss"], abs=1e-4)
        for name in ("round", "traffic", "messages", "epochs", "quarantined"):
            assert mine[name] == other[name]
    graphs, others = found.graphs(), expected.graphs()
    for t, graph in others.items():
        assert torch.equal(graphs[t] != 0, graph != 0)
        torch.testing.assert_close(graphs[t], graph, rtol=0, atol=1e-4)
    mine, whole = newest(folder).tensors, newest(unbroken).tensors
    assert {name for name in mine if not name.startswith("shards/")} == set(whole)
    for name in whole:
        if name.startswith("theta/"):
            torch.testing.assert_close(mine[name], whole[name], rtol=0, atol=1e-3)


def test_a_killed_rank_ends_the_others_and_any_number_takes_up_the_run(
    unbroken: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run = scool("run", *OPTIONS, "--rounds", 40, "--out", folder, "--ranks", 4)
    followers = after_round(run, folder, 7)  # the checkpoint of round 4 is there
    assert len(followers) == 3
    os.kill(followers[1], signal.SIGKILL)
    began = time.monotonic()
    code, _, errors = finish(run)
    assert code == 2 and time.monotonic() - began < 50  # not by the time-out
    assert not any(map(is_running, followers))
    told = re.search(r"rank 0 of 4 ends: another rank is gone .* round (\d+) is saved", errors)
    assert told and f"`scool resume {folder}`" in errors and "Traceback" not in errors
    saved = int(told.group(1))
    assert len(list(folder.glob(f"shard-{saved:06d}-?-of-4.safetensors"))) == 4
    alone, broken, refused = tmp_path / "alone", tmp_path / "broken", tmp_path / "refused"
    for copy in (alone, broken, refused):
        shutil.copytree(folder, copy)
    code, out, errors = finish(scool("resume", folder, "--ranks", 2, "--json", "--quiet"))
    assert code == 0, errors
    assert json.loads(out)["rounds"] == 40
    assert_same_run(folder, unbroken)
    assert {file.name[-11:] for file in folder.glob("shard-*")} == {"safetensors"}
    assert len(list(folder.glob("shard-000040-?-of-2.safetensors"))) == 2
    resume(alone)
    assert_same_run(alone, unbroken)
    assert not list(alone.glob("shard-000040-*"))
    a_lost_part_is_told(broken, saved)
    assert_same_run(broken, unbroken)
    lost_parts_are_refused(refused, saved)


def a_lost_part_is_told(folder: Path, saved: int) -> None:
    """A foreign part: the run goes on from the checkpoint before, and says so."""
    lost = folder / f"shard-{saved:06d}-2-of-4.safetensors"
    shutil.copy(folder / f"shard-{saved:06d}-1-of-4.safetensors", lost)
    told = f"{lost.name} is damaged: it is not the file .* continues from round {saved - 2}"
    with pytest.warns(UserWarning, match=told):
        resume(folder)


def lost_parts_are_refused(folder: Path, saved: int) -> None:
    """No checkpoint is left: an error that names the parts, and no file is changed."""
    lost = [folder / f"shard-{rounds:06d}-2-of-4.safetensors" for rounds in (saved, saved - 2)]
    for file in lost:
        file.unlink()
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    told = f"{lost[0].name} is missing; .*{lost[1].name} is missing. No checkpoint is left"
    with pytest.raises(RunError, match=told):
        resume(folder)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    (folder / f"checkpoint-{saved:06d}.safetensors").unlink()
    forget_parts(folder)
    assert not list(folder.glob(f"shard-{saved:06d}-*"))
    assert len(list(folder.glob("shard-*"))) == 3  # those of the checkpoint before


def test_all_ranks_killed_at_once_go_on_to_the_same_bytes(tmp_path: Path) -> None:
    """Clients have moved between ranks; with as many ranks each is where it was. `kill_ranks.py`
    tries more of this kind."""
    unbroken, folder = tmp_path / "unbroken", tmp_path / "run"
    words = [*run_words("scool-sbm", rounds=30), "--ranks", 2, "--out"]
    run = scool(*words, folder)
    followers = after_round(run, folder, 13)  # the checkpoint of round 6 is there
    for process in (*followers, run.pid):
        os.kill(process, signal.SIGKILL)
    assert finish(run)[0] == -signal.SIGKILL
    killed = newest(folder)
    assert 6 <= killed.rounds < 30 and has_moved(killed.tensors)
    for again in (scool(*words, unbroken), scool("resume", folder, "--ranks", 2, "--quiet")):
        code, _, errors = finish(again)
        assert code == 0, errors
    assert differences(folder, unbroken) == []


def test_ranks_that_are_starting_end_with_the_first(tmp_path: Path) -> None:
    run = scool("run", *OPTIONS, "--rounds", 40, "--out", tmp_path / "run", "--ranks", 3)
    while len(children(run)) < 2:
        assert run.poll() is None
        time.sleep(0.005)
    run.kill()
    _, _, errors = finish(run, 60)  # over when no process holds the pipe any more
    assert errors.count("the first rank is gone") == 2 and "Traceback" not in errors


def test_torchrun_restarts_and_the_run_goes_on_to_the_same_result(
    unbroken: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2")
    run = scool("run", *OPTIONS, "--rounds", 40, "--out", folder, launcher=launcher)
    ranks = after_round(run, folder, 5)
    os.kill(ranks[-1], signal.SIGKILL)
    code, out, errors = finish(run, 90)
    assert code == 0, errors
    assert json.loads(out.splitlines()[-1])["rounds"] == 40
    assert "rank 0 of 2 ends: another rank is gone" in errors or "SIGTERM" in errors
    assert_same_run(folder, unbroken)


def test_a_scheduler_stops_all_ranks_of_torchrun_after_the_round(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    run = scool("run", *OPTIONS, "--rounds", 400, "--out", folder, launcher=launcher)
    after_round(run, folder, 3)
    run.send_signal(signal.SIGTERM)  # which torchrun passes on to every rank
    _, _, errors = finish(run, 60)
    assert "the state is saved" in errors and "ends: another rank" not in errors
    header = RunFolder.open(folder).header
    assert header["status"] == "interrupted"
    assert newest(folder).rounds == header["rounds_done"] >= 3


def test_a_hanging_rank_is_found_by_the_time_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = scool("run", *OPTIONS, "--rounds", 4000, "--out", folder, "--ranks", 2, patience=10)
    (follower,) = after_round(run, folder, 3)
    os.kill(follower, signal.SIGSTOP)
    code, _, errors = finish(run, 60)
    assert code == 2 and "another rank did not answer in time" in errors
    assert not is_running(follower)


def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(tmp_path: Path) -> None:
    """The limit of a file's size stands for the end of the disk: a part does not fit, all else
    does."""
    folder = tmp_path / "run"
    words = ["run", *OPTIONS, "--rounds", "4", "--out", str(folder), "--ranks", "2"]
    words[words.index("linear")] = "mlp"
    limited = f"ulimit -f 12; exec {sys.executable} -m scool {' '.join(words)}"
    process = subprocess.run(
        ["bash", "-c", limited], env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 2
    assert "cannot write" in process.stderr and "shard-000002" in process.stderr
    assert "Traceback" not in process.stderr
    assert not list(folder.glob("checkpoint-*")) and not list(folder.glob("*.tmp"))


def test_a_person_stops_all_ranks_after_the_round(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = scool("run", *OPTIONS, "--rounds", 400, "--out", folder, "--ranks", 2)
    after_round(run, folder, 3)
    run.send_signal(signal.SIGINT)
    code, _, errors = finish(run)
    assert code == 130 and "the state is saved" in errors
    header = RunFolder.open(folder).header
    done = header["rounds_done"]
    assert header["status"] == "interrupted" and done == len(RunFolder.open(folder).rows())
    assert newest(folder).rounds == done
    assert RunConfig.from_dict(header["config"]).settings.rounds == 400
