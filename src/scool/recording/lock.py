"""One process writes to a run folder at a time.

A lock in the folder is held while a run lasts. The system takes it away from a process that has
died, however it died, so that a killed run can be told from one that goes on.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from scool.errors import RunError

LOCK = "run.lock"
PATIENCE = 1.0  # seconds, with those who only ask


@contextmanager
def holding(file: Path, patience: float = 0.0) -> Iterator[bool]:
    """Whether the lock is ours for the time being; not where another process has it.

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
    """Keep other processes from writing to an existing folder.

    Raises:
        RunError: another one does.
    """
    with holding(folder / LOCK, PATIENCE) as is_ours:
        if not is_ours:
            raise RunError(
                f"another process is at the run in {folder}: `scool watch {folder}` follows it; or "
                "choose another --out"
            )
        yield


def is_written(folder: Path) -> bool:
    """Whether some process is at the run in a folder."""
    if not (folder / LOCK).is_file():
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except (Timeout, PermissionError):  # somebody's; where it is not ours to ask, most likely
        return True
    except OSError:
        return False
    lock.release()
    return False
