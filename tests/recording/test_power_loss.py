"""Whenever the power goes, the run goes on to the bytes of one that was never interrupted."""

import random
import shutil
import sys
import warnings
from pathlib import Path

import pytest

import scool
from recording.power import Disk, Moment
from scool.recording.folder import RunFolder
from toys import classification

ROUNDS, EVERY = 9, 2
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which file is flushed")


def go(out: Path, resume: bool = False) -> None:
    scool.fit(
        classification(),
        "linear",
        scool.SCooL(prior=scool.SBM(num_blocks=2), sparsify_round=3),
        rounds=ROUNDS,
        checkpoint_every=EVERY,
        out=out,
        resume=resume,
    )


def records(folder: Path) -> dict[str, bytes]:
    """All that must be the same to the byte: everything but times."""
    names = ("metrics.jsonl", "clients.safetensors", "graphs/*", "checkpoint-*")
    files = [file for name in names for file in folder.glob(name)]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def go_on(folder: Path) -> None:
    """What a person does after a power cut: resume, or start again where nothing had begun."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what was lost is said
        go(folder, resume=(folder / "run.json").is_file())


def cut_points(moments: list[Moment], count: int, seed: int) -> list[tuple[int, int | None]]:
    """Some moments, and for each the dice for what is not safe; every third without dice."""
    rng = random.Random(seed)
    return [
        (rng.randrange(len(moments)), None if n % 3 == 0 else rng.randrange(2**32))
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "run"
    go(out)
    return out


@pytest.mark.parametrize("seed", range(4))
def test_fifty_power_cuts_resume_to_the_unbroken_bytes(
    seed: int, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them in a run, half in one that goes on after a power cut; thirteen for each seed."""
    expected = records(unbroken)
    first = Disk(tmp_path / "first")
    (tmp_path / "first").mkdir()
    with first.watching(monkeypatch):
        go(first.root / "run")
    assert records(first.root / "run") == expected and len(first.moments) > 40
    second = Disk(tmp_path / "second")
    dice = random.Random(1000 + seed)
    middle = first.moments[len(first.moments) // 3 + dice.randrange(len(first.moments) // 2)]
    first.after_the_cut(middle, second.root, dice)
    with second.watching(monkeypatch):
        go_on(second.root / "run")
    assert records(second.root / "run") == expected
    for disk, cuts in ((first, 7), (second, 6)):
        for number, (point, rolled) in enumerate(cut_points(disk.moments, cuts, seed)):
            place = tmp_path / f"cut-{number}"
            rng = None if rolled is None else random.Random(rolled)
            disk.after_the_cut(disk.moments[point], place, rng)
            go_on(place / "run")
            assert records(place / "run") == expected, (seed, point, rolled)
            assert RunFolder(place / "run").header["status"] == "finished"
            shutil.rmtree(place)


def test_the_disk_notices_a_writer_that_does_not_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge can say no: a log that is not flushed before its checkpoint is lost."""
    from scool.recording import writer

    monkeypatch.setattr(writer, "sync", lambda paths: None)
    disk = Disk(tmp_path)
    with disk.watching(monkeypatch):
        go(tmp_path / "run")
    last = disk.moments[-2]
    assert any(name.startswith("run/checkpoint-") for name in last.safe)
    assert not last.safe.get("run/metrics.jsonl")
