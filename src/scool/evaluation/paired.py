"""Two methods on the same clients with the same seeds: how much better one is, and for whom.

A difference has two spreads, and they answer different questions. The interval *over seeds* says
how much the mean over these clients would move if everything were run again with other seeds. The
interval *over clients* says how much it would move with other clients of the same kind. Both are
intervals of Student's t for a mean, at 95 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

LEVEL = 0.95
ROUND_OFF = 1e-9
"""Differences of this size are none: a mean of equal numbers may be off by it."""


class Interval(NamedTuple):
    """Where a mean lies, by 95 % of such intervals."""

    low: float
    high: float
    count: int  # pyright: ignore[reportIncompatibleMethodOverride] # of how many numbers


@dataclass(frozen=True)
class Paired:
    """How much better off each client is with one method than with another."""

    differences: Tensor  # (S, K) float64, positive: better; NaN where one of the two has no number
    same_clients: bool = True
    """Whether client k is the same one in every seed. Otherwise each seed has clients of its own,
    as in benchmarks that deal out their data by the seed."""
    seeds: Sequence[int] | None = None
    """(S,) to name clients by, where each seed has its own."""
    names: Sequence[str] | None = None
    """(K,) of the clients, or (S * K,) where each seed has its own; None: their numbers."""
    split_ratio: float = 0.0
    """Test samples of a client over its training samples, where seeds deal out the same samples
    again; 0: every seed has samples of its own."""

    @property
    def by_client(self) -> Tensor:
        """The mean difference of each client over the seeds: (K,), or (S * K,) if each seed has
        clients of its own."""
        return self.differences.nanmean(dim=0) if self.same_clients else self.differences.flatten()

    @property
    def mean(self) -> float:
        """The mean over clients, and over seeds of that; NaN where nothing can be compared."""
        return float(self.differences.nanmean(dim=1).nanmean())

    @property
    def over_seeds(self) -> Interval | None:
        """The interval of the mean, given these clients; None for fewer than two seeds."""
        return interval(self.differences.nanmean(dim=1))

    @property
    def over_clients(self) -> Interval | None:
        """The interval of the mean for clients like these, given these seeds."""
        return interval(self.by_client)

    @property
    def compared(self) -> int:
        """Clients that have a number with both methods."""
        return int((~self.by_client.isnan()).sum())

    @property
    def worse(self) -> list[int]:
        """Clients that are worse off in the mean over the seeds, the worst first: their places in
        `by_client`."""
        order = self.by_client.nan_to_num(nan=math.inf).argsort(stable=True).tolist()
        return [k for k in order if float(self.by_client[k]) < -ROUND_OFF]

    @property
    def share_worse(self) -> float:
        """The share of clients that are worse off; NaN where nothing can be compared."""
        return len(self.worse) / self.compared if self.compared else math.nan

    @property
    def clearly_worse(self) -> list[int]:
        """Clients that are worse off by more than their own noise: the 95 % interval of their
        differences over the seeds lies below 0, with the split ratio in its width. It needs two
        seeds and the same clients in each."""
        return [k for k, own in enumerate(self.own_noise) if own and own.high < -ROUND_OFF]

    @property
    def own_noise(self) -> list[Interval | None]:
        """Where the mean difference of each client lies by its own seeds, with the split ratio in
        the width; None where that is not known. Empty if each seed has clients of its own."""
        each = self.differences.T if self.same_clients else ()
        return [interval(own, split_ratio=self.split_ratio) for own in each]

    @property
    def names_worse(self) -> list[str]:
        """The clients that are worse off by name, or else number; the worst first."""
        clients = self.differences.shape[1]
        words = self.names or range(clients)
        if self.same_clients:
            return [str(words[k]) for k in self.worse]
        seeds = self.seeds or range(1, len(self.differences) + 1)
        return [f"{words[k % len(words)]} of seed {seeds[k // clients]}" for k in self.worse]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: None where a number is not defined."""
        return {
            "mean": _finite(self.mean),
            "over_seeds": _ends(self.over_seeds),
            "over_clients": _ends(self.over_clients),
            "clients": self.compared,
            "worse": len(self.worse),
            "share_worse": _finite(self.share_worse),
            "names_worse": self.names_worse,
        }

    def words(self, digits: int = 2) -> str:
        """One line for a person.

        >>> paired_difference([[3.0, 1.0, 2.0]], [[1.0, 2.0, 2.0]]).words(1)
        '+0.3; 95 %: -3.5 to +4.1 over 3 clients, over seeds unknown; 1 of 3 clients worse off'
        """
        if not self.compared:
            return "no client has a number with both methods"
        parts = [f"{self.mean:+.{digits}f}", f"95 %: {self._spreads(digits)}"]
        who = f": {listed(self.names_worse)}" if self.worse and self.names else ""
        return "; ".join([*parts, f"{len(self.worse)} of {self.compared} clients worse off{who}"])

    def _spreads(self, digits: int) -> str:
        both = (("seeds", self.over_seeds), ("clients", self.over_clients))
        ranked = sorted(both, key=lambda pair: pair[1] is None)  # what is known comes first
        return ", ".join(
            f"over {what} unknown"
            if ends is None
            else f"{ends.low:+.{digits}f} to {ends.high:+.{digits}f} over {ends.count} {what}"
            for what, ends in ranked
        )


def paired_difference(
    ours: Tensor | Sequence[Sequence[float]],
    theirs: Tensor | Sequence[Sequence[float]],
    *,
    higher_is_better: bool = True,
    same_clients: bool = True,
    seeds: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    split_ratio: float = 0.0,
) -> Paired:
    """What each client gains with the first method over the second.

    Args:
        ours: (S, K) a number of each seed and client, or (K,) of one seed; NaN: it has none.
        theirs: the same of the method to compare with, on the same clients and seeds.
        higher_is_better: False for losses and errors: what falls is a gain.
        same_clients: whether client k is the same one in every seed.
        seeds: (S,) to name clients by, where each seed has its own.
        names: of the clients, (K,), or (S * K,) where each seed has its own.
        split_ratio: test samples over training samples, where seeds split the same samples again.

    >>> ours, theirs = [[80.0, 60.0], [84.0, 62.0]], [[75.0, 63.0], [75.0, 63.0]]
    >>> gain = paired_difference(ours, theirs, names=["Bern", "Ulm"])
    >>> gain.mean, gain.by_client.tolist(), gain.names_worse
    (2.5, [7.0, -2.0], ['Ulm'])
    """
    a, b = (torch.atleast_2d(torch.as_tensor(x, dtype=torch.float64).cpu()) for x in (ours, theirs))
    if a.shape != b.shape:
        raise ValueError(f"{tuple(a.shape)} and {tuple(b.shape)} numbers are not of the same runs")
    gains = a - b if higher_is_better else b - a
    return Paired(gains, same_clients, seeds, names, split_ratio)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in one line, and the number of those left out.

    >>> listed(["Bern", "Ulm", "Lyon"], most=2)
    'Bern, Ulm and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def interval(values: Tensor, level: float = LEVEL, split_ratio: float = 0.0) -> Interval | None:
    """Student's t: mean ± t_{n-1} s sqrt(1 / n + r) of the values that are there; None for fewer
    than two.

    r, the split ratio, is 0 for independent values. Scores of several splits of the same samples
    are not: r = test samples / training samples corrects for it (Nadeau and Bengio, Machine
    Learning 52, 2003).

    >>> low, high, count = interval(torch.tensor([1.0, 2.0, 3.0]))
    >>> round(low, 3), round(high, 3), count
    (-0.484, 4.484, 3)
    """
    from scipy.special import stdtrit

    there = values[~values.isnan()].double()
    count = len(there)
    if count < 2:
        return None
    middle = float(there.mean())
    width = float(there.std()) * math.sqrt(1 / count + split_ratio)
    reach = float(stdtrit(count - 1, (1 + level) / 2)) * width
    return Interval(middle - reach, middle + reach, count)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ends(ends: Interval | None) -> list[float] | None:
    return None if ends is None else [ends.low, ends.high]
