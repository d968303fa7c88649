"""A log of JSON lines that only grows, each line sealed upon the one before."""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from scool.errors import RunError
from scool.recording.disk import write_bytes
from scool.recording.seals import first_link, seal_line


@final
class Log:
    """Appends to one `.jsonl` file. It keeps the rows: a file that somebody deletes, changes or
    puts something else in the place of while the run goes on is written again from them."""

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
        """Write the whole file, if it is not exactly these rows already."""
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
