"""Checksums over records, and the identity of the run that a record belongs to.

Every file of a run carries the run's identity and a *seal*, a SHA-256 over all that it says. JSON
files have a field `seal`; each line of a log has one that also covers the line before, and the
first covers the identity and the name of the log. So a flipped bit, a lost line and a file of
another run are noticed wherever a record is read. A seal tells damage and confusion from what was
written; it is not a signature, and who means to deceive can make a new one.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

SEAL = "seal"
_SEALED_LINE = re.compile(rb', "seal": "([0-9a-f]{16})"}\Z')


def identity_seal(identity: Mapping[str, Any]) -> str:
    """The identity of a run as 32 letters: equal for runs of the same method, data and seed, which
    have equal records."""
    return _sha(_canonical(identity))[:32]


def seal_of(values: Mapping[str, Any]) -> str:
    """The checksum of a JSON object, its field `seal` left out. Order and spaces do not count."""
    return _sha(_canonical({name: v for name, v in values.items() if name != SEAL}))


def with_seal(values: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum.

    >>> check_seal(with_seal({"rounds": 3}))
    >>> check_seal(with_seal({"rounds": 3}) | {"rounds": 4})
    Traceback (most recent call last):
    ValueError: its content does not match its checksum
    """
    plain = json.loads(json.dumps(values, allow_nan=False))  # as a reader will see it
    return {**plain, SEAL: seal_of(plain)}


def check_seal(values: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: the object has a seal, and another content.
    """
    if values.get(SEAL) != seal_of(values):
        raise ValueError("its content does not match its checksum")


# ---------------------------------------------------------------------- lines of a log


def first_link(run: str, name: str) -> str:
    """What the seal of the first line of a log builds on."""
    return _sha(f"{run}/{name}".encode())[:16]


def seal_line(row: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """A row as a sealed line, and its seal, which the next line builds on."""
    text = json.dumps(row, allow_nan=False).encode()
    seal = _sha(before.encode() + text)[:16]
    return text[:-1] + f', "seal": "{seal}"}}\n'.encode(), seal


def open_line(line: bytes, before: str | None) -> tuple[bytes, str | None]:
    """The JSON text of a line (without its end), and its seal.

    Args:
        before: the seal of the line before; None: nothing is known, and nothing is checked.

    Raises:
        ValueError: the line is not what was written there.
    """
    found = _SEALED_LINE.search(line)
    if found is None:
        if before is not None:
            raise ValueError("it has no checksum")
        return line, None
    text, seal = line[: found.start()] + b"}", found.group(1).decode()
    if before is not None and seal != _sha(before.encode() + text)[:16]:
        raise ValueError("it does not match its checksum, or follows on another line")
    return text, seal


def _canonical(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
