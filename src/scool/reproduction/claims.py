"""Who is at which run, so that several processes can share one plan.

A lock beside the folder of a run, which need not exist yet, is held while the run lasts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scool.recording.folder import make_folder
from scool.recording.lock import holding


@contextmanager
def claim(folder: Path) -> Iterator[bool]:
    """Whether the run is ours for the time being; not where another process is at it."""
    make_folder(folder.parent)
    with holding(folder.with_name(f"{folder.name}.lock")) as is_ours:
        yield is_ours
