"""A disk that loses its power: what a folder looks like where only flushed things are left.

`Disk` watches a real folder while a run writes to it. A file's content is safe once the file was
flushed, its name once the folder was. What was not flushed may be there after a power cut or not,
each thing on its own; a file may also be there with a part of its bytes, or with zeros.
"""

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest


class Moment(NamedTuple):
    """What was safe, and what was there, at one moment."""

    safe: dict[str, bytes]  # by name below the folder
    there: dict[str, bytes]
    flushed: dict[str, bytes]  # content that is safe, though perhaps not under this name


class Disk:
    """Remembers every moment of a folder at which something was flushed, renamed or appended."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.moments: list[Moment] = []
        self._flushed: dict[Path, bytes] = {}  # content that is safe, by the name it has now
        self._safe: dict[Path, bytes] = {}  # content under a name that is safe, too
        self._lock = threading.RLock()

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Patch the two calls that make things safe; nothing of scool is replaced."""
        fsync, replace = os.fsync, os.replace

        def watched_fsync(descriptor: int) -> None:
            fsync(descriptor)
            with self._lock:
                self._note_flush(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

        def watched_replace(source: Path, target: Path) -> None:
            with self._lock:
                self._remember()  # the file is there under its temporary name
                replace(source, target)
                self._flushed.pop(Path(target), None)
                if (content := self._flushed.pop(Path(source), None)) is not None:
                    self._flushed[Path(target)] = content
                self._remember()

        self._flushed = {file: file.read_bytes() for file in self.root.rglob("*") if file.is_file()}
        self._safe = dict(self._flushed)  # what was there before
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", watched_fsync)
            patch.setattr(os, "replace", watched_replace)
            yield

    def _note_flush(self, path: Path) -> None:
        if not path.is_relative_to(self.root):
            return
        if path.is_dir():
            inside = {file for file in path.iterdir() if file.is_file()}
            gone = [p for p in self._safe if p.parent == path and p not in inside]
            for file in gone:
                del self._safe[file]
            for file in inside:  # a name without flushed content: an empty file
                self._safe[file] = self._flushed.get(file, b"")
        else:
            content = path.read_bytes()
            was = self._flushed.get(path)
            self._flushed[path] = content
            if path in self._safe and was is not None and self._safe[path] == was:
                self._safe[path] = content  # the same file has grown
        self._remember()

    def _remember(self) -> None:
        there: dict[str, bytes] = {}
        for file in self.root.rglob("*"):
            if file.is_file():
                there[str(file.relative_to(self.root))] = file.read_bytes()
        safe, flushed = (
            {str(path.relative_to(self.root)): content for path, content in found.items()}
            for found in (self._safe, self._flushed)
        )
        self.moments.append(Moment(safe, there, flushed))

    def after_the_cut(self, moment: Moment, place: Path, rng: random.Random | None) -> None:
        """The folder that a person finds: only what is safe, or, with dice, that and some of the
        rest."""
        names = set(moment.safe) | (set(moment.there) if rng else set())
        for name in sorted(names):
            content = self._found(moment, name, rng)
            if content is not None:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content)

    def _found(self, moment: Moment, name: str, rng: random.Random | None) -> bytes | None:
        safe, there = moment.safe.get(name), moment.there.get(name)
        if rng is None or safe == there:
            return safe
        choices: list[Callable[[], bytes | None]] = [lambda: safe, lambda: there]
        if there is not None and moment.flushed.get(name) != there:
            cut = rng.randrange(len(there) + 1)
            start = len(safe) if safe is not None and there.startswith(safe) else 0
            cut = max(cut, start)
            choices += [lambda: there[:cut], lambda: there[:cut] + bytes(len(there) - cut)]
        return rng.choice(choices)()
