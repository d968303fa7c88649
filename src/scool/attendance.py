"""Options for owners that come and go, turned into the `Attendance` of a run."""

import csv
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scool.data.client import find_client
from scool.errors import ConfigError, require
from scool.health import Attendance

Availability = Callable[[int, int], bool] | Tensor | np.ndarray | str | Path
"""(client, round) -> whether it is there; a (rounds, K) table of that; or a CSV file with the
columns client, from, to: rounds from `from` to `to`, both included, in which a client is there."""


def _find(word: str, names: Sequence[str] | None, count: int) -> int:
    """The number of a client, by name, or by number if that is no client's name."""
    is_number = word.isdecimal() and word not in (names or ())
    return find_client(int(word) if is_number else word, count, names)


def as_words(field: str, values: Any) -> tuple[str, ...]:
    """A mapping of clients, a (K,) tensor, or words CLIENT=VALUE, as words that records can hold.

    >>> as_words("joins", {"city": 20}), as_words("client_lr", torch.tensor([0.5, 0.25]))
    (('city=20',), ('0=0.5', '1=0.25'))
    """
    remedy = f"give a mapping, e.g. {field}={{'a': 3}}, or words such as a=3"
    if isinstance(values, Tensor | np.ndarray):
        require(values.ndim == 1, field, values, "give one number per client, (K,)")
        values = dict(enumerate(values.tolist()))
    if isinstance(values, Mapping):
        return tuple(f"{client}={_plain(value)!r}" for client, value in values.items())
    values = [values] if isinstance(values, str) else values
    require(isinstance(values, Sequence), field, values, remedy)
    for word in values:
        require(isinstance(word, str) and "=" in word, field, word, remedy)
    return tuple(values)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic | Tensor) else value


def by_client(
    field: str, words: Sequence[str], names: Sequence[str] | None, count: int
) -> dict[int, float]:
    """Numbers by client, of words CLIENT=VALUE."""
    found: dict[int, float] = {}
    for word in words:
        name, _, text = word.rpartition("=")
        client = _find(name, names, count)
        require(client not in found, field, word, "name each client once")
        try:
            found[client] = float(text)
        except ValueError:
            require(False, field, word, "give a number behind the =")
    return found


class Asked(NamedTuple):
    """The options as given; `RunSettings` says what each means."""

    participation: float
    availability: Availability | None
    joins: tuple[str, ...]
    stragglers: float
    straggler_steps: float
    client_lr: tuple[str, ...]

    def attendance(
        self, seed: int, rounds: int, count: int, names: Sequence[str] | None, lr: float
    ) -> Attendance:
        """For a run with this many rounds and clients, of a method with this learning rate.

        Raises:
            ConfigError: a client is not known, a value is not possible, or a round has nobody.
        """
        joins = by_client("joins", self.joins, names, count)
        rates = by_client("client_lr", self.client_lr, names, count)
        about: dict[str, Any] = {}
        if self.participation != 1:
            about["participation"] = self.participation
        if self.availability is not None:
            about["availability"] = _digest(self.availability)
        if joins:
            about["joins"] = {str(client): int(joins[client]) for client in sorted(joins)}
        if self.stragglers:
            about |= {"stragglers": self.stragglers, "straggler_steps": self.straggler_steps}
        if rates:
            about["client_lr"] = {str(client): rates[client] for client in sorted(rates)}
        return Attendance(
            count,
            seed,
            self.participation,
            _presence(self.availability, joins, names, count, rounds),
            self.stragglers,
            self.straggler_steps,
            _factors(rates, lr, count),
            about,
        )


def _factors(rates: Mapping[int, float], lr: float, count: int) -> Tensor | None:
    for rate in rates.values():
        require(0 < rate < float("inf"), "client_lr", rate, "give positive learning rates")
    if not rates:
        return None
    remedy = "rates of single clients need one of the others: give lr, too"
    require(lr > 0, "lr", lr, remedy)
    found = torch.ones(count, dtype=torch.float64)
    found[list(rates)] = torch.tensor(list(rates.values()), dtype=torch.float64) / lr
    return found


def _digest(availability: Availability) -> str:
    """A digest of a table or a file; the name of a function."""
    if isinstance(availability, str | Path):
        try:
            content = Path(availability).read_bytes()
        except OSError as error:
            words = f"availability = {str(availability)!r} cannot be read: {error.strerror}"
            raise ConfigError(words) from error
    elif callable(availability):
        return getattr(availability, "__qualname__", type(availability).__name__)
    else:
        content = torch.as_tensor(availability).cpu().to(torch.uint8).contiguous().numpy().tobytes()
    return hashlib.sha256(content).hexdigest()[:32]


def _presence(
    availability: Availability | None,
    joins: Mapping[int, float],
    names: Sequence[str] | None,
    count: int,
    rounds: int,
) -> Tensor | None:
    """(rounds, K) bool: which clients are there in which round; None if all always are."""
    if availability is None and not joins:
        return None
    table = torch.ones(rounds, count, dtype=torch.bool)
    if availability is not None:
        table = _table(availability, names, count, rounds)
    for client, start in joins.items():
        require(start >= 0 and start == int(start), "joins", start, "give a round, 0 or more")
        table[: int(start), client] = False
    empty = (~table.any(dim=1)).nonzero()[:, 0].tolist()
    if empty:
        raise ConfigError(
            f"nobody is there in round {empty[0]} ({len(empty)} such rounds): give availability "
            "and joins that leave at least one client in every round"
        )
    return table


def _table(
    availability: Availability, names: Sequence[str] | None, count: int, rounds: int
) -> Tensor:
    if isinstance(availability, str | Path):
        return _read_csv(Path(availability), names, count, rounds)
    if callable(availability):
        cells = [[bool(availability(c, t)) for c in range(count)] for t in range(rounds)]
        return torch.tensor(cells)
    is_table = isinstance(availability, Tensor | np.ndarray) and availability.ndim == 2
    remedy = "give a function (client, round) -> bool, a (rounds, K) table, or a CSV file"
    require(is_table, "availability", availability, remedy)
    table = torch.as_tensor(availability).cpu().bool()
    is_fit = len(table) >= rounds and table.shape[1] == count
    words = f"give ({rounds}, {count}) or more rounds"
    require(is_fit, "availability", f"a table {tuple(table.shape)}", words)
    return table[:rounds].clone()


def _read_csv(path: Path, names: Sequence[str] | None, count: int, rounds: int) -> Tensor:
    """The rounds in which each client that the file names is there; the others always are."""
    try:
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"availability = {str(path)!r} cannot be read: {error}") from error
    table = torch.ones(rounds, count, dtype=torch.bool)
    spans: list[tuple[int, int, int]] = []
    for number, line in enumerate(lines, start=2):
        try:
            client = _find(line["client"].strip(), names, count)
            spans.append((client, int(line["from"]), int(line["to"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"availability = {str(path)!r} has no client, from, to in line {number}: give a "
                "table with these columns, whole numbers of rounds in the last two"
            ) from error
    for client in {client for client, _, _ in spans}:
        table[:, client] = False
    for client, start, end in spans:
        table[max(0, start) : end + 1, client] = True
    return table
