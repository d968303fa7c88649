"""Who is at which run, so that several processes can share one plan.

A lock beside the folder of a run is held while the run lasts, and by nobody when its process has
died, however it died.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from scool.recording.folder import make_folder


@contextmanager
def claim(folder: Path) -> Iterator[bool]:
    """Whether the run is ours for the time being; not where another process is at it."""
    make_folder(folder.parent)
    lock = FileLock(f"{folder}.lock", blocking=False)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def forget(folder: Path) -> None:
    """Tidy up the lock of a run that is over: whoever still waits for it finds it over."""
    Path(f"{folder}.lock").unlink(missing_ok=True)
