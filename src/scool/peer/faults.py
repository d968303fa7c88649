"""Faults of a simulated run, as a person writes them: who, from which round on, for how long."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scool.errors import ConfigError

Kind = Literal["kill", "replace", "stop", "cut"]
FORMS: dict[Kind, tuple[str, str]] = {
    "kill": (r"(\d+)@(\d+)\+([\d.]+)", "PEER@ROUND+SECONDS, e.g. 3@6+3"),
    "replace": (r"(\d+)@(\d+)\+([\d.]+)", "PEER@ROUND+SECONDS, e.g. 3@6+3"),
    "stop": (r"(\d+)@(\d+)\+([\d.]+)", "PEER@ROUND+SECONDS, e.g. 2@6+10"),
    "cut": (r"([\d,-]+)/([\d,-]+)@(\d+)\+([\d.]+)", "PEERS/PEERS@ROUND+SECONDS, e.g. 0-3/4-7@8+10"),
}


class Fault(NamedTuple):
    """Something that happens when most have begun a round, and ends some seconds later."""

    kind: Kind
    peers: tuple[int, ...]
    others: tuple[int, ...]  # cut: the other side
    round: int
    seconds: float


def read_fault(kind: Kind, text: str, count: int) -> Fault:
    """A fault of `count` peers.

    >>> read_fault("cut", "0-2/3,4@8+10", 5)
    Fault(kind='cut', peers=(0, 1, 2), others=(3, 4), round=8, seconds=10.0)

    Raises:
        ConfigError: it is written in another way, or names a peer that is not there.
    """
    pattern, form = FORMS[kind]
    try:
        *sides, round_, seconds = re.findall(rf"^{pattern}$", text)[0]
        others = _peers(sides[1]) if len(sides) > 1 else ()
        fault = Fault(kind, _peers(sides[0]), others, int(round_), float(seconds))
    except (ValueError, IndexError):
        raise ConfigError(f"--{kind} {text} is not possible: give {form}") from None
    named = (*fault.peers, *fault.others)
    if not all(peer < count for peer in named) or len(set(named)) < len(named):
        raise ConfigError(
            f"--{kind} {text} is not possible: name peers 0 to {count - 1}, once each"
        )
    return fault


def _peers(text: str) -> tuple[int, ...]:
    """`0-2,5` -> (0, 1, 2, 5)."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def read_faults(named: dict[Kind, Sequence[str]], count: int) -> list[Fault]:
    """All faults in the order of their rounds."""
    found = [read_fault(kind, text, count) for kind, texts in named.items() for text in texts]
    return sorted(found, key=lambda fault: fault.round)
