"""Killed, stopped, or out of disk: `scool resume` goes on to the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from records import tiny_file_system

WORDS = ["--clients", "8", "--groups", "2", "--rounds", "24", "--checkpoint-every", "3"]
WORDS += ["--epochs", "3", "--device", "cpu", "--seed", "9", "--json"]


SLOWLY = str(Path(__file__).parents[1] / "slowly.py")


def scool(*words: str, slowly: float = 0.0) -> subprocess.Popen[str]:
    command = [SLOWLY, str(slowly)] if slowly else ["-m", "scool"]
    return subprocess.Popen(
        [sys.executable, *command, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finish(*words: str, code: int = 0) -> tuple[str, str]:
    process = scool(*words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out, err


def rounds_of(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_lines(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    """Until metrics.jsonl has that many lines."""
    for _ in range(6000):
        if rounds_of(folder) >= count:
            return
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.005)
    raise AssertionError("no lines")


def records(folder: Path) -> dict[str, bytes]:
    """Everything that must not depend on the clock."""
    names = ["metrics.jsonl", "checkpoint-000024.safetensors"]
    names += [f"graphs/{t:06d}.safetensors" for t in range(24)]
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    out, _ = finish("run", "scool-sbm", "--out", str(folder), *WORDS)
    return folder, json.loads(out)


def same_result(text: str, expected: dict[str, object]) -> None:
    differ = ("seconds", "run_dir")
    found = json.loads(text)
    assert {k: v for k, v in found.items() if k not in differ} == {
        k: v for k, v in expected.items() if k not in differ
    }


def test_stopped_and_killed_then_resumed_to_identical_bytes(
    tmp_path: Path, unbroken: tuple[Path, dict[str, object]]
) -> None:
    """A stop by a person or a scheduler loses nothing, a kill what came after the checkpoint."""
    whole, summary = unbroken
    folder = tmp_path / "stopped"
    for number, sign in enumerate((signal.SIGKILL, signal.SIGINT, signal.SIGTERM)):
        words = ["resume", str(folder)] if number else ["run", "scool-sbm", "--out", str(folder)]
        before = rounds_of(folder)
        process = scool(*words, *([] if number else WORDS), slowly=0.2)
        wait_for_lines(process, folder, before + 4)
        process.send_signal(sign)
        _, err = process.communicate(timeout=60)
        assert rounds_of(folder) < 24 and "Traceback" not in err
        if sign is signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
            continue
        assert process.returncode == 130 and "scool resume" in err
        header = json.loads((folder / "run.json").read_text())
        done = header["rounds_done"]
        assert header["status"] == "interrupted" and 0 < done < 24
        assert (folder / f"checkpoint-{done:06d}.safetensors").exists()  # nothing is lost
    out, _ = finish("resume", str(folder), "--json")
    same_result(out, summary)
    assert records(folder) == records(whole)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with tiny_file_system(tmp_path / "disk", "1m") as place:
        yield place


def test_a_full_disk_stops_with_2_and_resume_goes_on_when_there_is_room(
    tiny_disk: Path, unbroken: tuple[Path, dict[str, object]]
) -> None:
    whole, summary = unbroken
    (tiny_disk / "ballast").write_bytes(bytes(500_000))
    folder = tiny_disk / "run"
    _, err = finish("run", "scool-sbm", "--out", str(folder), *WORDS, code=2)
    assert "No space left" in err
    finish("resume", str(folder), code=2)  # still full; still no trace
    (tiny_disk / "ballast").unlink()
    out, _ = finish("resume", str(folder), "--json")
    same_result(out, summary)
    assert records(folder) == records(whole)
