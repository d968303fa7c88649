"""Records that are not what was written: said aloud, also where something is left to show."""

import re
import warnings


class DamageWarning(UserWarning):
    """A record is damaged, missing or of another run. What is shown is what is left; the command
    line ends with exit code 2."""


class OtherVersion(ValueError):
    """A file in a format that another version of scool writes: it need not be damaged."""


def check_format(found: object, *known: str) -> None:
    """Look whether a file says that it has a known format, the last of which is written today.

    Raises:
        OtherVersion: it is a record of the same kind, of another version.
        ValueError: it is something else.
    """
    if found in known:
        return
    kind = known[-1].rpartition("-")[0]
    is_kind = re.fullmatch(rf"{re.escape(kind)}-\d+", str(found))
    words = f"its format is {str(found)[:100]!r}, and this version of scool reads {known[-1]!r}"
    raise (OtherVersion if is_kind else ValueError)(words)


def warn_damage(words: str) -> None:
    """Say what is damaged, and what is used instead."""
    warnings.warn(words, DamageWarning, stacklevel=3)
