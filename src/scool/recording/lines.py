"""Logs of JSON lines, each line sealed together with the one before; the first builds on the
identity of the run and the name of the log. So a lost or changed line is noticed."""

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from scool.columns import LAST
from scool.errors import RunError
from scool.recording.disk import LARGEST_TEXT, open_plain, write_bytes
from scool.recording.seals import (
    COUNT,
    NUMBER,
    TEXT,
    Kind,
    check_kinds,
    list_of,
    or_null,
    sha256,
    table_of,
)

_SEALED = re.compile(rb', "seal": "([0-9a-f]{16})"}\Z')


def first_link(run: str, name: str) -> str:
    """The value that the seal of the first line of a log builds on."""
    return sha256(f"{run}/{name}".encode())[:16]


def seal_line(row: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """A row as a sealed line, and its seal, which the next line builds on."""
    text = json.dumps(row, allow_nan=False).encode()
    seal = sha256(before.encode() + text)[:16]
    return text[:-1] + f', "seal": "{seal}"}}\n'.encode(), seal


def open_line(line: bytes, before: str | None) -> tuple[bytes, str | None]:
    """The JSON text of a line (without its end), and its seal.

    Args:
        before: the seal of the line before; None: nothing is known, and nothing is checked.

    Raises:
        ValueError: the line is not what was written there.
    """
    found = _SEALED.search(line)
    if found is None:
        if before is not None:
            raise ValueError("it has no checksum")
        return line, None
    text, seal = line[: found.start()] + b"}", found.group(1).decode()
    if before is not None and seal != sha256(before.encode() + text)[:16]:
        raise ValueError("it does not match its checksum, or follows on another line")
    return text, seal


# ---------------------------------------------------------------------- reading


class Lines(NamedTuple):
    """The lines of a file up to the first that is not what it should be."""

    rows: list[dict[str, Any]]
    flaw: str | None
    """What is wrong with the line after these; None where they are all."""
    is_cut: bool
    """That line is the last and has no end: a kill cut it off."""
    seals: list[str | None]
    """The seal of each line; None in records of versions that sealed nothing."""


def read_lines(path: Path, check: Callable[[Any], None], before: str | None = None) -> Lines:
    """Parse a `.jsonl` file; one that is not there has no lines.

    Args:
        check: raises ValueError for a value that should not be there.
        before: what the seal of the first line builds on; None: seals are not checked.

    Raises:
        RunError: it cannot be opened.
    """
    rows: list[dict[str, Any]] = []
    seals: list[str | None] = []
    try:
        with open_plain(path) as file:
            while line := file.readline(LARGEST_TEXT):
                try:
                    text, seal = open_line(line.rstrip(b"\n"), before)
                    value = json.loads(text.decode())
                    check(value)
                except (ValueError, RecursionError) as error:
                    is_cut = not line.endswith(b"\n") and len(line) < LARGEST_TEXT
                    return Lines(rows, f"line {len(rows) + 1}: {error}", is_cut, seals)
                before = seal if before is not None else None
                rows.append(value)
                seals.append(seal)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    return Lines(rows, None, False, seals)


_ROUND: dict[str, Kind] = {
    **dict.fromkeys(("round", "messages", "bytes"), COUNT),
    **dict.fromkeys(("epochs", "seconds"), NUMBER),
    **dict.fromkeys((*LAST.values(), "edges", "fallback", "diverged"), or_null(NUMBER)),
    "scores": or_null(list_of(or_null(NUMBER), "a list of finite numbers and nulls")),
    "blocks": or_null(list_of(or_null(COUNT), "a list of whole numbers and nulls")),
    "traffic": table_of(NUMBER, "a table of numbers"),
    "quarantined": table_of(TEXT, "a table of texts"),
}


def read_rounds(path: Path, needs: Iterable[str], before: str | None = None) -> Lines:
    """The lines of a file that has one per round, or one for some rounds, in their order. Scores
    are those of as many clients as before, or more."""
    last, clients, optional = -1, 0, set(_ROUND) - {"round", *needs}

    def check(row: Any) -> None:
        nonlocal last, clients
        check_kinds(row, _ROUND, optional)
        means = {name: or_null(NUMBER) for name in row if name.endswith(("_mean", "_std"))}
        check_kinds(row, means)
        if row["round"] <= last:
            raise ValueError(f"round = {row['round']} comes after round {last}")
        last = row["round"]
        if row.get("scores") is not None:
            count = len(row["scores"])
            if count < clients:
                raise ValueError(f"scores has {count} clients, those before have {clients}")
            clients = count

    return read_lines(path, check, before)


# ---------------------------------------------------------------------- writing


@final
class Log:
    """Appends to one `.jsonl` file. It keeps the rows: if somebody deletes, changes or replaces the
    file while the run goes on, it is written again from them."""

    def __init__(self, path: Path, run: str, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """A log that holds these rows. The file is not touched before `rewrite` or `append`."""
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.seal = first_link(run, path.name)
        self._run, self._size = run, 0
        for row in rows:
            self._add(row)

    def _add(self, row: Mapping[str, Any]) -> bytes:
        line, self.seal = seal_line(row, self.seal)
        self.rows.append(dict(row))
        self._size += len(line)
        return line

    @property
    def state(self) -> tuple[int, str]:
        """How many lines there are, and the seal of the last: what a manifest says of a log."""
        return len(self.rows), self.seal

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line.

        Raises:
            RunError: the disk refuses.
        """
        size, line = self._size, self._add(row)
        try:
            if _size_of(self.path) != size:
                return self.rewrite()
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
            descriptor = os.open(self.path, flags, 0o666)
            with os.fdopen(descriptor, "ab") as file:
                file.write(line)
        except OSError as error:
            raise RunError(
                f"cannot write {self.path}: {error.strerror}. Free some space, then "
                f"`scool resume {self.path.parent}`"
            ) from error

    def rewrite(self) -> None:
        """Write the whole file, unless it holds exactly these rows already."""
        seal, lines = first_link(self._run, self.path.name), []
        for row in self.rows:
            line, seal = seal_line(row, seal)
            lines.append(line)
        content = b"".join(lines)
        if not _holds(self.path, content):
            write_bytes(self.path, content)


def _size_of(path: Path) -> int:
    """The size of a plain file; -1 where something else has its name."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _holds(path: Path, content: bytes) -> bool:
    """Whether a file has exactly this content. An empty log need not be there."""
    return _size_of(path) == len(content) and (not content or path.read_bytes() == content)
