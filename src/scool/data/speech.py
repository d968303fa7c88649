"""Speaking roles as clients: predict the next character of what they say."""

from collections import Counter
from typing import Any

import numpy as np
import torch

from scool.data.arrays import from_arrays
from scool.data.federation import Federation
from scool.data.row_splits import TEST, TRAIN, VAL, RowSplit
from scool.errors import DataError, need

LENGTH = 20  # characters that a model sees
STRIDE = 10  # every tenth character is predicted
FEWEST = 5_000  # characters of a role; one with fewer is left out
OFTEN = 500  # a character that is rarer than this in all roles together is RARE
RARE = "\N{REPLACEMENT CHARACTER}"
_PARTS = (("train", TRAIN), ("val", VAL), ("test", TEST))


def speech_federation(lines: Any, how: RowSplit, fewest: int = FEWEST) -> Federation:
    """A client per role of a play with enough characters, a sample per place in its speeches.

    A model sees the 20 characters before the place, as tokens; where a speech is shorter, line
    breaks stand before it. A speech is in one part only, and no sample crosses the border of two.

    Args:
        lines: a table with play, speech, role and text, a line per row.
        how: the shares of the parts and the seed.
        fewest: characters of a role; one with fewer is left out.
    """
    missing = {"play", "speech", "role", "text"} - set(lines.columns)
    if missing:
        raise DataError(f"the table of lines has no column {sorted(missing)[0]!r}")
    said = lines.groupby(["play", "role", "speech"], sort=True).text.apply("\n".join)
    size = (said.str.len() + 1).groupby(level=[0, 1]).sum() - 1  # with the breaks between speeches
    roles = list(size[size >= fewest].index)
    if not roles:
        raise DataError(f"no role has {fewest} characters or more")
    kept = {role: said.loc[role] for role in roles}
    seen = Counter(c for texts in kept.values() for text in texts for c in text)
    alphabet = sorted({c for c, count in seen.items() if count >= OFTEN} | {"\n", RARE})
    number = {character: at for at, character in enumerate(alphabet)}
    windows = [_windows(texts, number) for texts in kept.values()]
    part = _parts(windows, how)
    clients: list[dict[str, torch.Tensor]] = []
    start = 0
    for x, y, _ in windows:
        own, start = part[start : start + len(y)], start + len(y)
        clients.append({})
        for word, which in _PARTS:
            rows = torch.from_numpy(np.flatnonzero(own == which))
            clients[-1] |= {f"x_{word}": x[rows], f"y_{word}": y[rows]}
    return from_arrays(
        clients,
        name="shakespeare",
        num_classes=len(alphabet),
        tokens=True,
        client_names=[f"{role} ({play})" for play, role in roles],
        class_names=alphabet,
        test_fraction=0,
    )


def _windows(texts: Any, number: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """(n, 20) characters before a place, (n,) the one there, (n,) the speech it is of."""
    x, y, speech = [np.empty((0, LENGTH), int)], [np.empty(0, int)], [np.empty(0, int)]
    rare = number[RARE]
    for at, text in enumerate(texts):
        told = np.array([number["\n"]] * LENGTH + [number.get(c, rare) for c in text])
        place = np.arange(LENGTH + at % STRIDE, len(told), STRIDE)
        x.append(told[place[:, None] + np.arange(-LENGTH, 0)])
        y.append(told[place])
        speech.append(np.full(len(place), at))
    return (
        torch.from_numpy(np.concatenate(x)),
        torch.from_numpy(np.concatenate(y)),
        np.concatenate(speech),
    )


def _parts(windows: list[Any], how: RowSplit) -> np.ndarray:
    """The part of every sample, role after role."""
    client = np.repeat(np.arange(len(windows)), [len(y) for _, y, _ in windows])
    speech = np.concatenate([speech for _, _, speech in windows])
    frame = need("pandas", "a table").DataFrame({"speech": speech})
    by_speech = RowSplit(how.test_fraction, how.val_fraction, how.seed, group="speech")
    return by_speech.parts(frame, client, None)
