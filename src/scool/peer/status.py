"""How one peer is doing, as a small file that another program may read at any time."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from scool.errors import RunError
from scool.peer.audit import Audit
from scool.peer.join import read_alone
from scool.peer.leaving import has_left
from scool.peer.owner import Owner
from scool.peer.post import Post
from scool.peer.probe import Doubts
from scool.recording.disk import write_bytes
from scool.recording.folder import RunFolder
from scool.types import Info

NAME = "status.json"
PATIENCE = 3.0  # seconds after which a person is told whom this peer waits for
ANEW = "a peer that runs writes it anew"
ALWAYS = set(
    "name run method mode measure rounds round state members here left time problems".split()
)
DOUBT = 8.0  # seconds after which it finds out why they do not answer
PAUSE = 0.2  # seconds between two rounds that are written: people read no faster


@final
class StatusFile:
    """Writes `status.json` after every round, of quick ones now and then, and while others are
    awaited."""

    def __init__(self, owner: Owner, post: Post, tell: Callable[[str], None], audit: Audit) -> None:
        self._owner, self._post, self._tell, self._audit = owner, post, tell, audit
        self._here: list[str] = []
        self._said: Sequence[str] = ()
        self._doubts = Doubts(post.transport.trouble)
        self._gone: list[str] = []
        self._scores: list[float | None] = []
        self._written, self._is_stale = 0.0, False
        self._known: dict[str, Any] = {"state": "connecting", "waiting_for": []}
        self._known["round"] = _rounds_done(owner.records)
        self._known["alone"] = read_alone(owner.folder)
        self._write()

    def start(self, header: Mapping[str, Any], first_round: int) -> None:
        self._known |= {"state": "running", "round": first_round, "first_round": first_round}
        self._known |= {"since": time.time()}
        if first_round:
            rows = RunFolder.open(self._owner.records).rows()[:first_round]
            self._scores = [self._score(row) for row in rows]
        self._write()

    def _score(self, row: Mapping[str, Any]) -> float | None:
        scores = row.get("scores") or []
        return scores[self._owner.place] if self._owner.place < len(scores) else None

    def round(self, row: Mapping[str, Any], info: Info) -> None:
        self._scores.append(self._score(row))
        weights = [round(float(w), 4) for w in info["graph"][self._owner.place]]
        self._known |= {"round": row["round"] + 1, "score": self._scores[-1], "weights": weights}
        self._known |= {"scores": self._scores, "waiting_for": []}
        self._said = ()
        self._is_stale = True
        if time.monotonic() >= self._written + PAUSE:
            self._write()
        self._check_left(is_last=self._known["round"] == self._owner.agreement.rounds)

    def end(self, result: Any) -> None:
        self._known |= {"state": "finished"}
        self._write()

    def stopped(self, state: str, why: str = "") -> None:
        """The peer ends before the run does."""
        self._known |= {"state": state, "why": why, "waiting_for": []}
        self._write()

    def _check_left(self, is_last: bool = False) -> None:
        """Raises:
        KeyboardInterrupt: the owner has left the run, as if by Ctrl-C.
        ConfigError: the own certificate has expired: nobody hears this peer any more. After the
            last round nobody has to.
        """
        if not is_last:
            self._owner.keys.check_time()
        if has_left(self._owner.folder) and self._known["state"] != "finished":
            raise KeyboardInterrupt

    def waiting(self, peers: Sequence[int], seconds: float) -> None:
        """Called while others are awaited, about twice a second."""
        self._check_left()
        if self._is_stale and seconds >= PAUSE:
            self._write()
        if seconds < PATIENCE:
            return
        names = self._owner.agreement.names
        found = self._doubts.about(peers) if seconds >= DOUBT else {}
        words = [f"{names[p]} ({found[p]})" if p in found else names[p] for p in peers]
        if words != self._said:
            self._said = words
            self._tell(f"waiting for {', '.join(words)}")
            self._known["waiting_for"] = words
            self._write()

    def _write(self) -> None:
        post, names = self._post, self._owner.agreement.names
        here = [names[peer] for peer in sorted(post.transport.members())]
        if here != self._here:
            self._here = here
            self._audit.write("here", members=here)
        gone = [names[peer] for peer in sorted(post.gone)]
        if gone != self._gone:
            self._tell(f"{', '.join(sorted(set(gone) - set(self._gone)))} left the run for good")
            self._gone = gone
            self._audit.write("left", members=gone)
        agreement = self._owner.agreement
        found = {
            "name": self._owner.name,
            "run": post.run,
            "method": agreement.method,
            "mode": agreement.mode,
            "measure": "accuracy" if agreement.task == "classification" else "R2",
            "rounds": agreement.rounds,
            "members": list(names),
            "here": here,
            "left": gone,
            **self._known,
            "bytes_sent": self._audit.sent,
            "bytes_received": post.received,
            "problems": [with_names(words, names) for words in list(post.problems)[-5:]],
            "audit": self._audit.head,
            "time": time.time(),
        }
        write_bytes(self._owner.folder / NAME, json.dumps(found).encode(), durable=False)
        self._written, self._is_stale = time.monotonic(), False


def _rounds_done(records: Path) -> int:
    """How far a run has come that goes on."""
    if not (records / "run.json").exists():
        return 0
    return int(RunFolder.open(records).header.get("rounds_done", 0))


def read_status(folder: Path) -> dict[str, Any]:
    """What the peer of a folder wrote last.

    Raises:
        RunError: it never ran, or the file is damaged.
    """
    path = folder / NAME
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder} has no {NAME}: start the peer with `scool peer run`") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): {ANEW}") from error
    if not isinstance(found, dict) or not found.keys() >= ALWAYS:
        raise RunError(f"{path} is damaged: {ANEW}")
    return found


def with_names(words: str, names: Sequence[str]) -> str:
    """What the protocol says of places, as a person knows them.

    >>> with_names("nothing of peer 1, 2 in 3.0 s", ("ann", "bob", "cat"))
    'nothing of bob, cat in 3.0 s'
    """

    def name(place: str) -> str:
        return names[int(place)] if int(place) < len(names) else f"peer {place}"

    return re.sub(
        r"\bpeer (\d+(?:, \d+)*)\b",
        lambda found: ", ".join(name(place) for place in found[1].split(", ")),
        words,
    )
