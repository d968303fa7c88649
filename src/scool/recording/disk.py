"""Files that are whole after a crash, and readers that no strange file can hang.

Written: beside the target, flushed to the disk, renamed over it, and the folder flushed, so that
after a power cut a file is the old one or the new one. Read: plain files only; a pipe, a device or
a link in the place of a record is refused before it is opened for good.
"""

import errno
import json
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from scool.errors import RunError

MIB = 2**20
LARGEST_TEXT = 64 * MIB  # of a JSON file or of one line
TEMPORARY = ".*.tmp"  # what a kill leaves of a file that was being written

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
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "Free some space or choose another --out" if is_full else "Choose another --out"
    return f"{remedy}; what was written before is intact"


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def sync(paths: Iterable[Path]) -> None:
    """Flush files that were written without it, and the folders that name them. What somebody has
    taken away or replaced by a pipe or a link since is passed over.

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
    """Delete what killed writers left. Only who holds the lock of a folder may do so."""
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
