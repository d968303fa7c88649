"""Files that are whole after a crash, readers that no odd file can block, and locks.

Written: beside the target, flushed to the disk, renamed over it, and the folder flushed, so that
    after a power cut a file is the old one or the new one. Read: plain files only; a pipe, a device
    or a link in the place of a record is refused before anything is read. Locked: one process
    writes to a run folder at a time; the system releases the lock of a process that has died,
    however it died, so that a killed run can be told from a running one.
"""

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from scool.errors import RunError

MIB = 2**20
LARGEST_TEXT = 64 * MIB  # of a JSON file or of one line
TEMPORARY = ".*.tmp"  # what a kill leaves of a file that was being written
LOCK = "run.lock"
PATIENCE = 1.0  # seconds to wait for processes that only ask

Bytes = bytes | memoryview


# ---------------------------------------------------------------------- writing


def write_bytes(path: Path, *content: Bytes, durable: bool = True) -> None:
    """Write a file: it appears whole or not at all.

    Args:
        content: its parts, one after the other.
        durable: whether it survives a power cut from now on. If not, it does after `sync`.

    Raises:
        RunError: the disk refuses; what was there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            for part in content:
                file.write(part)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}. {_remedy(error)}") from error


def _remedy(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "Was the folder moved? Bring it back; what was written before is intact"
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "Free some space, or choose another folder" if is_full else "Choose another folder"
    return f"{remedy}; what was written before is intact"


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def sync(paths: Iterable[Path]) -> None:
    """Flush files that were not flushed when written, and their folders. Files that somebody has
    deleted since, or replaced by a pipe or a link, are passed over.

    Raises:
        RunError: the disk refuses.
    """
    folders: set[Path] = set()
    for path in paths:
        try:
            with open_plain(path) as file:
                os.fsync(file.fileno())
        except (FileNotFoundError, NotPlainError):
            continue
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}. {_remedy(error)}") from error
        folders.add(path.parent)
    for folder in sorted(folders):
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut; some systems cannot be asked to."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems
            raise
    finally:
        os.close(descriptor)


def delete(path: Path) -> None:
    """Delete a file; another process may have done so already.

    Raises:
        RunError: it cannot be deleted, or a folder has its name.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"cannot delete {path}: {error.strerror}. Move it away") from error


def clean(*folders: Path) -> None:
    """Delete what killed writers left. Only for the holder of the folder's lock."""
    for folder in folders:
        for file in folder.glob(TEMPORARY):
            delete(file)


# ---------------------------------------------------------------------- reading


class NotPlainError(OSError):
    """A pipe, a device, a link or a folder has the name of a record."""


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file for reading.

    Raises:
        NotPlainError: something else has its name; `strerror` says what.
        OSError: there is none, or it cannot be opened.
    """
    if path.is_symlink():
        raise NotPlainError(errno.ELOOP, "it is a link, and records are never read through one")
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainError(errno.EINVAL, "it is not a plain file")
    return os.fdopen(descriptor, "rb")


def read_text(path: Path) -> str:
    """A text of moderate size; bytes that are not UTF-8 are replaced, and no checksum fits them.

    Raises:
        OSError: it cannot be read, or is larger than any record of this kind.
    """
    with open_plain(path) as file:
        content = file.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise OSError(errno.EFBIG, f"it is larger than {LARGEST_TEXT // MIB} MiB")
    return content.decode(errors="replace")


# ---------------------------------------------------------------------- locks


@contextmanager
def holding(file: Path, patience: float = 0.0) -> Iterator[bool]:
    """Hold a lock; yields True if it is ours, False if another process has it.

    Raises:
        RunError: the disk refuses.
    """
    lock = FileLock(file)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise RunError(f"cannot lock {file}: {error.strerror}; choose another --out") from error
    try:
        yield True
    finally:
        with suppress(OSError):  # some systems keep a file that is open
            file.unlink()
        lock.release()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to an existing run folder.

    Raises:
        RunError: another process is writing to it.
    """
    with holding(folder / LOCK, PATIENCE) as is_ours:
        if not is_ours:
            raise RunError(
                f"another process is writing to the run in {folder}: follow it with "
                f"`scool watch {folder}`, or choose another --out"
            )
        yield


def is_written(folder: Path) -> bool:
    """Whether some process is writing to the run in a folder."""
    if not (folder / LOCK).is_file():
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except (Timeout, PermissionError):  # held, most likely also if we may not ask
        return True
    except OSError:
        return False
    lock.release()
    return False
