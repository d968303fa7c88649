"""Means over seeds, and what a difference between them is worth."""

import math
from collections.abc import Sequence

# Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom; the last serves all beyond.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def sample_std(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample; None for fewer than two.

    >>> sample_std([1.0, 3.0]), sample_std([1.0])
    (1.4142135623730951, None)
    """
    if len(values) < 2:
        return None
    centre = sum(values) / len(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1))


def noise(values: Sequence[float], others: int | None = None) -> float | None:
    """Half the width of the 95 % interval of a mean over seeds; None for fewer than two.

    With `others` the mean is compared with another over so many seeds of equal spread.

    >>> round(noise([1.0, 2.0, 3.0]), 2)
    2.48
    """
    spread = sample_std(values)
    if spread is None:
        return None
    t = _T95[min(len(values) - 1, len(_T95)) - 1]
    return t * spread * math.sqrt(1 / len(values) + (1 / others if others else 0))


def verdict(difference: float | None, margin: float | None) -> str:
    """What a difference is worth: empty where it is beyond the noise of the seeds."""
    if difference is None:
        return ""
    if margin is None:
        return "one seed"
    return "within seed noise" if abs(difference) <= margin else ""
