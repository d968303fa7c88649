"""Who takes part in a run: healthy clients, those in quarantine and why, those that are absent."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from scool.errors import QuarantineError

Code = Literal["data", "training", "unknown"]


class Reason(NamedTuple):
    """Why a client is in quarantine: a code for programs, words for people and records."""

    code: Code
    words: str

    @staticmethod
    def read(words: str) -> "Reason":
        """The reason that a record tells.

        >>> Reason.read("loss or model in round 0, step 3").code
        'training'
        """
        if words.startswith(_TRAINING):
            return Reason("training", words)
        return BROKEN_DATA if words == BROKEN_DATA.words else Reason("unknown", words)


_TRAINING = "loss or model in round "
BROKEN_DATA = Reason("data", "inputs or targets")
"""Its data are not finite: it is in quarantine from the start."""


def broke_in(round: int, step: int) -> Reason:
    """Its loss or model stopped being finite."""
    return Reason("training", f"{_TRAINING}{round}, step {step}")


@final
class Health:
    """The health of K clients. A quarantine is for good; an absence ends.

    >>> health = Health(3)
    >>> health.quarantine({1: BROKEN_DATA})
    >>> health.absent[2] = True
    >>> [health.of(client) for client in range(3)]
    ['healthy', 'quarantined', 'absent']
    """

    def __init__(self, num_clients: int, reasons: Mapping[int, Reason] | None = None) -> None:
        self.reasons: dict[int, Reason] = {}  # of those in quarantine
        self.absent = torch.zeros(num_clients, dtype=torch.bool)  # (K,) in this round
        self.quarantine(reasons or {})

    @classmethod
    def read(cls, num_clients: int, words: Mapping[str, str]) -> "Health":
        """What the row of a round tells (`quarantined`)."""
        return cls(num_clients, {int(client): Reason.read(why) for client, why in words.items()})

    @property
    def active(self) -> Tensor:
        """(K,) bool: neither in quarantine nor absent."""
        return self.healthy & ~self.absent

    @property
    def healthy(self) -> Tensor:
        """(K,) bool: not in quarantine, be they absent or not."""
        mask = torch.ones_like(self.absent)
        mask[list(self.reasons)] = False
        return mask

    @property
    def words(self) -> dict[int, str]:
        """Why each client in quarantine is there, by client in their order."""
        return {client: why.words for client, why in sorted(self.reasons.items())}

    def of(self, client: int) -> Literal["healthy", "quarantined", "absent"]:
        if client in self.reasons:
            return "quarantined"
        return "absent" if bool(self.absent[client]) else "healthy"

    def quarantine(self, reasons: Mapping[int, Reason], strict: bool = False) -> None:
        """Leave these clients out from now on; who is out already keeps its first reason.

        Raises:
            QuarantineError: there is a new one, and the run is strict.
        """
        new = {client: why for client, why in reasons.items() if client not in self.reasons}
        if new and strict:
            raise not_finite(min(new), new[min(new)].words)
        self.reasons |= new

    def lost(self, code: Code) -> list[int]:
        """The clients that are in quarantine for a reason."""
        return [client for client, why in sorted(self.reasons.items()) if why.code == code]


def not_finite(client: int, reason: str) -> QuarantineError:
    """What a strict run ends with."""
    return QuarantineError(
        f"client {client} has non-finite {reason}, and the run is strict. Clean its data, lower "
        "--lr, or run without --strict to leave the client out"
    )
