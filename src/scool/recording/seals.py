"""Sealed JSON: which fields a record must have, its checksum, and the run it belongs to.

Every file of a run carries the run's identity and a *seal*, a SHA-256 over all that it says. JSON
files have a field `seal`; the lines of a log are sealed in a chain (see `lines`). So a
flipped bit and a file of another run are noticed wherever a record is read. A seal reveals damage
and mix-ups; it is not a signature, and anyone who means to deceive can make a new one.
"""

import hashlib
import json
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scool.errors import KINDS, RunError
from scool.recording.disk import MIB, open_plain, read_text, write_bytes

SEAL = "seal"
FORMAT = "scool-run-2"
OLD = "scool-run-1"
"""Without identity and seal; the manifest came later, too."""
MANIFEST = "manifest.json"
MANIFEST_FORMAT = "scool-manifest-1"


# ---------------------------------------------------------------------- damage, and other versions


class DamageWarning(UserWarning):
    """A record is damaged, missing or of another run. Only what is left is shown; the command line
    ends with exit code 2."""


class OtherVersion(ValueError):
    """A file in a format that another version of scool writes: it need not be damaged."""


def warn_damage(words: str) -> None:
    """Warn about what is damaged, and what is used instead."""
    warnings.warn(words, DamageWarning, stacklevel=3)


def damaged(path: Path, error: Exception, remedy: str = "") -> RunError:
    """One sentence about a file that cannot be used, and another about what to do, if given."""
    more = f". {remedy}" if remedy else ""
    if isinstance(error, FileNotFoundError):
        return RunError(f"{path} is missing{more}")
    if isinstance(error, OSError):
        return RunError(f"{path} cannot be read: {error.strerror}{more}")
    if isinstance(error, OtherVersion):
        return RunError(f"{path} is of another version: {error}. Use that version to read it")
    return RunError(f"{path} is damaged: {error}{more}")


def check_format(found: object, *known: str) -> None:
    """Check that a file has a known format, the last of which is written today.

    Raises:
        OtherVersion: it is a record of the same kind, of another version.
        ValueError: it is something else.
    """
    if found in known:
        return
    kind = known[-1].rpartition("-")[0]
    is_kind = re.fullmatch(rf"{re.escape(kind)}-\d+", str(found))
    words = f"its format is {str(found)[:100]!r}, and this version of scool reads {known[-1]!r}"
    raise (OtherVersion if is_kind else ValueError)(words)


# ---------------------------------------------------------------------- the fields of a record

Kind = tuple[Callable[[Any], bool], str]
"""Whether a value is of a kind, and what the kind is called."""

LARGEST = 2**63
LARGEST_INPUT = 2**31  # numbers in one sample
_RUN = re.compile("(?:[0-9a-f]{32})?")


def _is_unicode(text: str) -> bool:
    """Whether a text can be written; halves of a character in JSON cannot."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def or_null(kind: Kind) -> Kind:
    return (lambda v: v is None or kind[0](v)), f"{kind[1]} or null"


def list_of(kind: Kind, words: str) -> Kind:
    return (lambda v: isinstance(v, list) and all(map(kind[0], v))), words


def table_of(kind: Kind, words: str) -> Kind:
    return (lambda v: isinstance(v, dict) and all(map(kind[0], v.values()))), words


WHOLE: Kind = KINDS[int]
COUNT: Kind = (lambda v: WHOLE[0](v) and 0 <= v < LARGEST, "a whole number from 0 on")
NUMBER: Kind = (lambda v: KINDS[float][0](v) and abs(v) <= sys.float_info.max, "a finite number")
TEXT: Kind = (lambda v: KINDS[str][0](v) and _is_unicode(v), KINDS[str][1])
RUN: Kind = (lambda v: TEXT[0](v) and bool(_RUN.fullmatch(v)), "the identity of a run")
BOOL: Kind = KINDS[bool]
OBJECT: Kind = (lambda v: isinstance(v, dict), "a JSON object")
LIST: Kind = (lambda v: isinstance(v, list), "a list")
TEXTS = list_of(TEXT, "a list of texts")
NUMBERS = list_of(NUMBER, "a list of finite numbers")
COUNTS = list_of(COUNT, "a list of whole numbers")
SHAPE: Kind = (lambda v: COUNTS[0](v) and math.prod(v) < LARGEST_INPUT, "a list of sizes")


def check_kinds(values: Any, kinds: Mapping[str, Kind], optional: Iterable[str] = ()) -> None:
    """Check that a record has its fields, and that they are of the right kinds.

    Raises:
        ValueError: it does not; says what is wrong.

    >>> check_kinds({"seed": "0"}, {"seed": WHOLE})
    Traceback (most recent call last):
    ValueError: seed = '0' is not a whole number
    """
    if not isinstance(values, dict):
        raise ValueError("it holds no JSON object")
    for name, (is_of_kind, words) in kinds.items():
        if name not in values:
            if name in optional:
                continue
            raise ValueError(f"it lacks {name!r}")
        if not is_of_kind(values[name]):
            raise ValueError(f"{name} = {values[name]!r:.100} is not {words}")


# ---------------------------------------------------------------------- seals


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _canonical(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def identity_seal(identity: Mapping[str, Any]) -> str:
    """The identity of a run as 32 letters: equal for runs of the same method, data and seed, which
    have equal records."""
    return sha256(_canonical(identity))[:32]


def seal_of(values: Mapping[str, Any]) -> str:
    """The checksum of a JSON object without its field `seal`. Order and spaces do not count."""
    return sha256(_canonical({name: v for name, v in values.items() if name != SEAL}))


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
        ValueError: the seal of the object does not fit its content.
    """
    if values.get(SEAL) != seal_of(values):
        raise ValueError("its content does not match its checksum")


def parse_json(text: str) -> Any:
    """
    Raises:
        ValueError: it is not JSON, or nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


# ---------------------------------------------------------------------- run.json

_HEADER: dict[str, Kind] = {
    **dict.fromkeys(("rounds", "rounds_done", "seed"), or_null(COUNT)),
    **dict.fromkeys(("config", "identity", "result", "model"), or_null(OBJECT)),
    **dict.fromkeys(("versions", "hardware"), or_null(OBJECT)),
    **dict.fromkeys(("method", "status", "reason", "started"), or_null(TEXT)),
    "command": or_null(TEXTS),
    "resumed": or_null(LIST),
}
_RESULT: dict[str, Kind] = {
    "method": TEXT,
    **dict.fromkeys(("rounds", "seconds", "bytes_sent", "messages"), or_null(NUMBER)),
}
_INSIDE: dict[str, dict[str, Kind]] = {
    "identity": {"algorithm": OBJECT, "federation": TEXT, "clients": WHOLE},
    "config": {"algorithm": OBJECT, "settings": OBJECT, "method": TEXT},
}


def parse_header(text: str) -> dict[str, Any]:
    """What a `run.json` says.

    Raises:
        ValueError: it is damaged, or of another version; says how.
    """
    header = parse_json(text)
    check_kinds(header, {"format": TEXT}, optional=["format"])
    check_format(header.get("format", OLD), OLD, FORMAT)
    check_kinds(header, _HEADER, optional=_HEADER)
    if header.get("format") == FORMAT or SEAL in header:
        check_kinds(header, {"run": RUN, SEAL: TEXT})
        check_seal(header)
    for name, kinds in _INSIDE.items():
        check_kinds(header.get(name) or {}, kinds, optional=kinds)
    if header.get("result"):
        check_kinds(header["result"], _RESULT)
    for part in header.get("resumed") or []:
        check_kinds(part, {"after_round": WHOLE, "versions": OBJECT})
    return header


# ---------------------------------------------------------------------- manifest.json


@dataclass
class Manifest:
    """What a folder must hold, as seals by name. Written after the files that it names.

    Every file that it names is durably on the disk; what is newer than the manifest is verified by
    its own seal. A file is taken off the list before it is deleted or replaced, so a crash at any
    moment leaves a list that is true.
    """

    run: str
    files: dict[str, str] = field(default_factory=dict)
    """The seal of each file of tensors; of files of older versions `file:` and their SHA-256."""
    logs: dict[str, tuple[int, str]] = field(default_factory=dict)
    """How many lines of each log were written, and the seal of the last."""
    older: bool = False
    """Whether the folder was begun by a version that sealed nothing."""

    def write(self, folder: Path) -> None:
        logs = {name: {"lines": lines, "seal": seal} for name, (lines, seal) in self.logs.items()}
        about = {"format": MANIFEST_FORMAT, "run": self.run, "files": self.files, "logs": logs}
        about |= {"older": True} if self.older else {}
        content = json.dumps(with_seal(about), allow_nan=False)  # thousands of lines are slower
        write_bytes(folder / MANIFEST, content.encode() + b"\n")


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where there is none.

    Raises:
        ValueError: it is damaged, or of another version; says how.
        OSError: it cannot be read.
    """
    try:
        values = parse_json(read_text(folder / MANIFEST))
    except FileNotFoundError:
        return None
    check_kinds(values, {"format": TEXT})
    check_format(values["format"], MANIFEST_FORMAT)
    kinds = {"run": RUN, "files": OBJECT, "logs": OBJECT, "older": BOOL}
    check_kinds(values, kinds, optional=["older"])
    check_seal(values)
    check_kinds(values["files"], dict.fromkeys(values["files"], TEXT))
    logs: dict[str, tuple[int, str]] = {}
    for name, log in values["logs"].items():
        check_kinds({"log": name}, {"log": TEXT})
        check_kinds(log, {"lines": COUNT, "seal": TEXT})
        logs[name] = log["lines"], log["seal"]
    return Manifest(values["run"], values["files"], logs, values.get("older", False))


def whole_file(path: Path) -> str:
    """The entry in a manifest of a file that has no seal of its own."""
    with open_plain(path) as file:
        sha = hashlib.sha256()
        while part := file.read(16 * MIB):
            sha.update(part)
    return f"file:{sha.hexdigest()}"
