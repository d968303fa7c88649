"""Records that are not what was written: said aloud, also where something is left to show."""

import warnings


class DamageWarning(UserWarning):
    """A record is damaged, missing or of another run. What is shown is what is left; the command
    line ends with exit code 2."""


def warn_damage(words: str) -> None:
    """Say what is damaged, and what is used instead."""
    warnings.warn(words, DamageWarning, stacklevel=3)
