"""The version of the package, and the state of its source."""

import os
import subprocess
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


PACKAGE = Path(__file__).parent


@cache
def source_commit() -> str | None:
    """The commit of the clone that scool runs from, with a `+` where files of the package have
    changed since or are new. None where git cannot say: an installed package, no git, a clone that
    belongs to somebody else."""
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # the package lies in no repository, or inside one of another project
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", ".")
    return commit + "+" if commit and changes else commit


def _git(*words: str) -> str | None:
    """What git says of the package; None where it cannot."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(PACKAGE), *words]
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True, env=own
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
