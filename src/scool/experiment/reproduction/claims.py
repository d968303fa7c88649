"""Who is at which run, so that several processes can share one plan.

A lock beside the folder of a run is held while the run lasts. The system takes it away from a
process that has died, however it died.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from scool.errors import RunError
from scool.recording.folder import make_folder


@contextmanager
def claim(folder: Path) -> Iterator[bool]:
    """Whether the run is ours for the time being; not where another process is at it."""
    make_folder(folder.parent)
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise RunError(f"cannot lock {folder}: {error.strerror}; choose another --out") from error
    try:
        yield True
    finally:
        with suppress(OSError):  # some systems keep a file that is open
            Path(f"{folder}.lock").unlink()
        lock.release()
