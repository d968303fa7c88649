"""Leaving a run for good: a mark in the owner's folder, which a peer that runs finds, and which no
later start gets past."""

import json
import time
from pathlib import Path

from scool.errors import RunError
from scool.peer.owner import Owner
from scool.recording.disk import write_bytes
from scool.recording.folder import RunFolder

NAME = "left.json"


def has_left(folder: Path) -> bool:
    return (folder / NAME).exists()


def check_not_left(folder: Path) -> None:
    """Raises:
    RunError: the owner has left.
    """
    if has_left(folder):
        raise RunError(
            f"{folder} has left this run for good. Its model and row of the graph stay in "
            f"{folder}/run; for another run take a new folder"
        )


def check_open(owner: Owner) -> None:
    """Refuse to go on with a run that has ended here: the others are gone.

    Raises:
        RunError: it is finished.
    """
    if (owner.records / "run.json").exists():
        if RunFolder.open(owner.records).header.get("status") == "finished":
            raise RunError(
                f"the run in {owner.records} is finished: its model is there. For more rounds make "
                "a new agreement"
            )


def leave(owner: Owner) -> None:
    """Write the mark. A peer that runs in this folder finds it within a round, tells the others,
    saves and ends.

    Raises:
        RunError: there is nothing to leave.
    """
    check_not_left(owner.folder)
    check_open(owner)
    content = {"run": owner.agreement.run, "time": time.time()}
    write_bytes(owner.folder / NAME, json.dumps(content).encode())


def what_happens(owner: Owner) -> str:
    """To the others, in words."""
    if owner.agreement.mode == "elastic":
        return "the others go on without this peer"
    return "the run is strict, so the others cannot go on: they stop, and keep what they have"
