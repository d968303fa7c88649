"""Which state of the source made a record."""

import subprocess
from functools import cache
from pathlib import Path


@cache
def source_commit() -> str | None:
    """The commit of the clone that scool runs from, with a `+` where its files have changed since;
    None where it runs from no clone, as an installed package does."""
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # not under git, or a package that lies inside somebody else's repository
    return _git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+")


def _git(*words: str) -> str | None:
    """What git says of the folder of this file; None where it cannot."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
