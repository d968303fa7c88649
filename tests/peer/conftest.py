"""Folders of owners, and processes of theirs that are started fast."""

import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from peer.pilots import ADDRESSES, OPTIONS, ROUNDS
from peer.warm import take_part
from scool.peer.pilot import Trial, make_pilot
from toys import classification


@pytest.fixture(scope="session")
def start() -> Any:
    """Starts `scool peer run` of a folder in a process that has everything imported already."""
    before = os.environ.get("PYTHONPATH")
    here = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *([before] if before else [])])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["peer.warm"])
    started: list[Any] = []

    def begin(folder: Path) -> Any:
        said = str(folder) + ".err"
        started.append(context.Process(target=take_part, args=(str(folder), said), daemon=True))
        started[-1].start()
        return started[-1]

    yield begin
    for process in started:
        if process.is_alive():
            process.kill()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "pilot"
    make_pilot(folder, ADDRESSES, Trial(rounds=ROUNDS), OPTIONS, classification())
    return folder


@pytest.fixture
def pilot(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "pilot"))
