"""Who takes part in a run: which clients are healthy, in quarantine (and why) or absent, and which
take part in a round: a function of (seed, round, client), so that every process and a resumed run
agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from scool.errors import QuarantineError
from scool.randomness import derive, generator, uniform

Code = Literal["data", "training", "unknown"]


class Reason(NamedTuple):
    """Why a client is in quarantine: a code for programs, words for people and records."""

    code: Code
    words: str

    @staticmethod
    def read(words: str) -> "Reason":
        """The reason that a record gives.

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
    """The health of K clients. A quarantine is permanent; an absence ends.

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
        """The health that the row of a round records (`quarantined`)."""
        return cls(num_clients, {int(client): Reason.read(why) for client, why in words.items()})

    @property
    def active(self) -> Tensor:
        """(K,) bool: neither in quarantine nor absent."""
        return self.healthy & ~self.absent

    @property
    def healthy(self) -> Tensor:
        """(K,) bool: not in quarantine, absent or not."""
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
        """Leave these clients out from now on; one that is out already keeps its first reason.

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
    """The error that ends a strict run."""
    return QuarantineError(
        f"client {client} has non-finite {reason}, and the run is strict. Clean its data, lower "
        "--lr, or run without --strict to leave the client out"
    )


class Pace(NamedTuple):
    """How the clients of an engine do their local steps in a round."""

    share: Tensor | None = None  # (n,) share of its steps that each does; None: all do all
    factors: Tensor | None = None  # (n,) by which each multiplies its learning rate; None: 1


@final
@dataclass(frozen=True)
class Attendance:
    """Who takes part when. The defaults: all clients, always, at the same pace."""

    num_clients: int
    seed: int
    participation: float = 1.0
    """Share of the present clients that take part in a round, drawn for every round."""
    table: Tensor | None = None
    """(rounds, K) bool: which clients are there; None: all."""
    stragglers: float = 0.0
    """Chance of a client to be slow in a round."""
    straggler_steps: float = 0.5
    """Share of its local steps that a slow client does."""
    factors: Tensor | None = None
    """(K,) by which each client multiplies the learning rate; None: 1."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What records keep, and a resumed run must agree with; empty for the defaults."""

    def absent(self, round: int) -> Tensor:
        """(K,) bool: who takes no part in a round."""
        there = torch.ones(self.num_clients, dtype=torch.bool)
        if self.table is not None:
            there = self.table[min(round, len(self.table) - 1)]
        if self.participation == 1:
            return ~there
        count = max(1, int(int(there.sum()) * self.participation + 1e-9))
        order = torch.randperm(
            self.num_clients, generator=generator(self.seed, "participants", round)
        )
        chosen = order[there[order]][:count]
        absent = torch.ones(self.num_clients, dtype=torch.bool)
        absent[chosen] = False
        return absent

    @cached_property
    def _joins(self) -> Mapping[int, list[int]]:
        """By round: the clients that were not there from the start and take part for the first
        time."""
        if self.table is None:
            return {}
        found: dict[int, list[int]] = {}
        late = (~self.table[0]).nonzero()[:, 0].tolist()
        for round in range(1, len(self.table) if late else 0):
            absent = self.absent(round)
            if new := [client for client in late if not absent[client]]:
                found[round] = new
                late = [client for client in late if absent[client]]
        return found

    def newcomers(self, round: int) -> Tensor:
        """The ids of the clients that join in a round."""
        return torch.tensor(self._joins.get(round, []), dtype=torch.int64)

    def pace(self, round: int, clients: Tensor) -> Pace:
        """How fast these clients (n,) are in a round."""
        share = None
        if self.stragglers:
            key = derive(self.seed, "stragglers", round)
            slow = uniform(key, clients.cpu(), (1,))[:, 0] < self.stragglers
            share = torch.where(slow, self.straggler_steps, 1.0)
        return Pace(share, None if self.factors is None else self.factors[clients.cpu()])

    def remarks(self, rounds: int, names: Sequence[str] | None = None) -> list[str]:
        """What was asked for and has no effect within this many rounds."""
        late = {int(c): t for c, t in self.about.get("joins", {}).items() if t >= rounds}
        return [
            f"client {names[c] if names else c} joins in round {t}, and {rounds} are run"
            for c, t in late.items()
        ]

    def slow(self, round: int) -> list[int]:
        """The clients that do fewer steps in a round."""
        share = self.pace(round, torch.arange(self.num_clients)).share
        return [] if share is None else (share < 1).nonzero()[:, 0].tolist()
