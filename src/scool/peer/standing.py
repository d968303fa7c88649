"""How a peer is doing, in words and numbers for a person: what the terminal and the page show."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from scool.columns import human_bytes
from scool.display.live import duration
from scool.peer.status import NAME, read_status
from scool.recording.disk import is_written

RUNS = ("connecting", "running")
OVER = ("finished", "left")


class Neighbour(NamedTuple):
    """One member, as a peer sees it."""

    name: str
    weight: float | None  # its part in the peer's own model; None before the first round
    where: str  # here, away, left for good; empty: the peer does not run, and cannot know


@dataclass(frozen=True)
class Standing:
    """One peer, as its folder shows it."""

    folder: Path
    told: Mapping[str, Any]  # status.json
    is_alive: bool  # whether its process runs

    @classmethod
    def read(cls, folder: Path) -> "Standing":
        """Raises:
        RunError: no peer ever ran there, or its file is damaged.
        """
        return cls(folder, read_status(folder), is_written(folder))

    @property
    def name(self) -> str:
        return self.told["name"]

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come, ever."""
        return self.told["state"] in OVER and not self.is_alive

    @property
    def state(self) -> str:
        """In one or two words."""
        state = self.told["state"]
        return "ended without a word" if state in RUNS and not self.is_alive else state

    @property
    def title(self) -> str:
        told = self.told
        return f"{self.name}: {told['method']}, {told['mode']}, run {told['run'][:8]}"

    @property
    def progress(self) -> str:
        """How far it is, and how long it will take."""
        told = self.told
        words = f"round {told['round']} of {told['rounds']}"
        mine = told["round"] - told.get("first_round", 0)
        if self.is_alive and self.state == "running" and mine > 0:
            a_round = (told["time"] - told["since"]) / mine
            left = a_round * (told["rounds"] - told["round"])
            words += f", {a_round:.1f} s a round, {duration(left)} left"
        return words

    @property
    def sentence(self) -> str:
        """What a person should know or do now; empty where all is well."""
        told, waits = self.told, self.told.get("waiting_for") or []
        again = f"`scool peer run {self.folder}` goes on"
        if self.state == "ended without a word":
            ago = duration(max(0.0, time.time() - told["time"]))
            return f"no process runs: killed, or the machine was off. Last word {ago} ago; {again}"
        if self.state == "stopped":
            return f"stopped by a person, everything is saved; {again}"
        if self.state == "failed":
            return str(told.get("why"))
        if waits and self.is_alive:
            return f"waiting for {', '.join(waits)}"
        return ""

    @property
    def neighbours(self) -> list[Neighbour]:
        """All members, the peer itself first, then those from whom it learns most."""
        told = self.told
        weights = told.get("weights") or []

        def where(name: str) -> str:
            if name in told["left"]:
                return "left for good"
            if not self.is_alive:
                return ""
            return "here" if name in told["here"] else "away"

        found = [
            Neighbour(name, weights[i] if i < len(weights) else None, where(name))
            for i, name in enumerate(told["members"])
        ]
        return sorted(found, key=lambda n: (n.name != self.name, -(n.weight or 0.0), n.name))

    @property
    def attendance(self) -> str:
        """How many are here."""
        here = sum(name in self.told["here"] for name in self.told["members"])
        return f"{here} of {len(self.told['members'])} here" if self.is_alive else ""

    @property
    def scores(self) -> list[float | None]:
        """Of the own model on the own test data, after each round."""
        return list(self.told.get("scores") or [])

    @property
    def alone(self) -> list[float]:
        """The same of training alone, for as many rounds at most; empty where nobody tried."""
        return list(self.told.get("alone") or [])[: len(self.scores) or None]

    @property
    def alone_after(self) -> str:
        """After how many rounds."""
        is_short = len(self.alone) < len(self.scores)
        return f"after {len(self.alone)} rounds" if is_short else "after as many rounds"

    def words_of(self, score: float | None) -> str:
        if score is None:
            return "none"
        return f"{score:.1f} %" if self.told["measure"] == "accuracy" else f"{score:.3f}"

    @property
    def gain(self) -> str:
        """The own score against that of training alone."""
        if not self.scores or self.scores[-1] is None or not self.alone:
            return ""
        gain = self.scores[-1] - self.alone[-1]
        if self.told["measure"] == "accuracy":
            return f"{gain:+.1f} points"
        return f"{gain:+.3f}"

    @property
    def traffic(self) -> str:
        sent, received = (human_bytes(self.told[f"bytes_{way}"]) for way in ("sent", "received"))
        return f"{sent} sent, {received} received since its last start"

    @property
    def faults(self) -> list[str]:
        """The newest first."""
        return list(reversed(self.told["problems"]))


def find_peers(folders: list[Path]) -> list[Path]:
    """Owners' folders: those that are given, and for others those in them that hold a status."""
    found: list[Path] = []
    for folder in folders:
        below = sorted(file.parent for file in folder.glob(f"*/{NAME}"))
        found += [folder] if (folder / NAME).exists() or not below else below
    return found
