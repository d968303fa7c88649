"""`audit.jsonl`: what left this machine, to whom and when, and what was refused.

Every line names the SHA-256 of the line before it, so that nobody can change, insert or take out a
line without changing all that follow: whoever keeps the newest hash can tell.
"""

import datetime
import hashlib
import json
import threading
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from scool.errors import RunError

NAME = "audit.jsonl"
FIRST = "0" * 64  # what the first line names
MOST = 1000  # refusals that are listed per start: a member could send rubbish for ever


@final
class Audit:
    """The log of one owner. What cannot be written down must not leave: `leaving` raises."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Raises:
        RunError: the log that is there is not whole.
        """
        self._path, self._names = folder / NAME, names
        self._lock, self._refusals = threading.Lock(), 0
        self._sums: deque[tuple[bytes, str]] = deque(maxlen=2)  # of what left last
        self.sent = 0  # bytes since this start, to all together
        cut = _mend(self._path)
        self.head = verify(self._path).head if self._path.exists() else FIRST
        if cut:
            self.write("cut", bytes=cut)  # of a line that a crash left unfinished

    def write(self, what: str, **facts: Any) -> None:
        """Raises:
        RunError: the disk refuses.
        """
        with self._lock:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            line = json.dumps({"before": self.head, "time": now, "what": what, **facts})
            try:
                with self._path.open("a") as file:
                    file.write(line + "\n")
            except OSError as error:
                raise RunError(
                    f"cannot write {self._path} ({error.strerror}), and nothing leaves this "
                    "machine unrecorded: free some space and start again. What was saved is whole"
                ) from error
            self.head = _hash(line)

    def leaving(self, to: Collection[int], key: str, data: bytes) -> None:
        """A record or a model is about to leave.

        Raises:
            RunError: it cannot be written down.
        """
        what = "model" if key.startswith("model/") else "record"
        facts = {"key": key, "bytes": len(data), "to": [self._names[i] for i in sorted(to)]}
        is_large = what == "model"
        sha256 = self._sum_of(data) if is_large else hashlib.sha256(data).hexdigest()
        self.write(what, **facts, sha256=sha256)
        with self._lock:
            self.sent += len(data) * len(to)

    def _sum_of(self, data: bytes) -> str:
        """SHA-256; of a model that leaves to one after the other it is computed once."""
        with self._lock:
            for known, found in self._sums:
                if known is data:
                    return found
            self._sums.append((data, hashlib.sha256(data).hexdigest()))
            return self._sums[-1][1]

    def refused(self, why: str, evidence: Sequence[bytes]) -> None:
        """Something that arrived was dropped; two records that contradict each other are kept."""
        self._refusals += 1
        if self._refusals <= MOST:
            self.write("refused", why=why, evidence=[found.hex() for found in evidence])
        elif self._refusals == MOST + 1:
            self.write("refused", why=f"more than {MOST} things; the rest is not listed")


class Verified(NamedTuple):
    """What a whole log says."""

    lines: int
    head: str
    left: Mapping[str, Mapping[str, int]]  # bytes to whom: {"bob": {"model": 5, "record": 7}}
    refused: int


def verify(path: Path, head: str = "") -> Verified:
    """Read a log from its first to its last line.

    Args:
        head: a hash that was noted before: it has to be in the log.

    Raises:
        RunError: it is missing or was changed; names the line.
    """
    before, left, number, refused = FIRST, {}, 0, 0
    seen = {FIRST}
    try:
        with path.open() as file:
            for line in file:
                number += 1
                found = json.loads(line)
                if found["before"] != before:
                    raise ValueError("it does not follow from the line before")
                before = _hash(line.rstrip("\n"))
                seen.add(before)
                refused += found["what"] == "refused"
                for name in found.get("to", ()):
                    left.setdefault(name, Counter())[found["what"]] += found["bytes"]
    except FileNotFoundError:
        raise RunError(
            f"{path} is missing: `scool peer run` writes it, from its start on"
        ) from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} was changed or is damaged at line {number or 1} ({error}): lines up to there "
            "are as they were written, the rest proves nothing"
        ) from error
    if head and head not in seen:
        raise RunError(f"{path} does not hold the line with hash {head}: it was rewritten")
    return Verified(number, before, left, refused)


def _hash(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()


def _mend(path: Path) -> int:
    """Take away an unfinished last line; how many bytes it had."""
    try:
        content = path.read_bytes()
        cut = len(content) - (content.rfind(b"\n") + 1)
        if cut:
            with path.open("r+b") as file:
                file.truncate(len(content) - cut)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    return cut
