"""Warnings about your own data: what is possible but seldom intended, with the remedy."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from scool.data.federation import Task
from scool.data.tables import quoted
from scool.errors import first_few

Parts = Mapping[str, tuple[Tensor, Tensor]]  # of one client: inputs and targets of each part

CHANCE = 0.02
"""Share of test rows that may be equal to a training row by chance."""
LARGE = 100.0
"""Mean or standard deviation of targets from which on plain gradient steps diverge."""


def warn_doubts(clients: Sequence[Parts], task: Task, names: Sequence[str] | None) -> None:
    """Missing test samples and numbers, test rows that are also training rows, odd targets."""
    _warn_constant(clients, task, names)
    _warn_untested(clients, names)
    _warn_gaps(clients, names)
    _warn_duplicates(clients, names)
    if task == "regression":
        _warn_targets(clients, names)


def _who(numbers: Sequence[int], names: Sequence[str] | None) -> str:
    """Clients in a sentence, by name where they have names."""
    return f"clients {quoted([names[n] for n in numbers]) if names else first_few(numbers)}"


def _warn(words: str) -> None:
    warnings.warn(words, stacklevel=5)  # where `from_arrays` was called


def _warn_constant(clients: Sequence[Parts], task: Task, names: Sequence[str] | None) -> None:
    same = [n for n, parts in enumerate(clients) if len(parts["train"][1].unique(dim=0)) == 1]
    if same:
        is_class = task == "classification"
        what = "training rows of one class only" if is_class else "one target in all training rows"
        _warn(
            f"{len(same)} of {len(clients)} clients have {what} ({_who(same, names)}): alone they "
            "learn a constant; give them more rows, or read their scores with care"
        )


def _warn_untested(clients: Sequence[Parts], names: Sequence[str] | None) -> None:
    none = [number for number, parts in enumerate(clients) if not len(parts["test"][1])]
    if none:
        _warn(
            f"{len(none)} of {len(clients)} clients have no test samples ({_who(none, names)}): "
            "they get no score. Raise test_fraction, or bring test data"
        )


def _warn_gaps(clients: Sequence[Parts], names: Sequence[str] | None) -> None:
    for number, parts in enumerate(clients):
        good = torch.stack([_finite_rows(side) for side in parts["train"]]).all(dim=0)
        rows = (~good).nonzero().flatten().tolist()
        name = f"{number} ({names[number]})" if names else str(number)
        if rows:
            _warn(
                f"client {name} is left out of every run, because {len(rows)} of its "
                f"{len(good)} training rows hold numbers that are not finite (rows "
                f"{first_few(rows)}): leave these rows out, or fill them; scool.from_frame does "
                "either (missing=)"
            )


def _finite_rows(values: Tensor) -> Tensor:
    """(n,) bool."""
    return values.isfinite()[:, None].flatten(1).all(dim=1)


def _warn_duplicates(clients: Sequence[Parts], names: Sequence[str] | None) -> None:
    """Test rows that are also training rows, targets included: of the client itself, or of others,
    from whom it may learn."""
    train, test = ([_digests(parts[part]) for parts in clients] for part in ("train", "test"))
    holders = Counter(digest for own in train for digest in set(own))
    tested = sum(map(len, test))
    own = [
        sum(digest in held for digest in rows) if _is_varied(mine) else 0
        for rows, mine, held in zip(test, train, map(set, train), strict=True)
    ]
    others = [0] * len(clients)
    if _is_varied([digest for mine in train for digest in mine]):
        others = [
            sum(digest in holders and digest not in held for digest in rows)
            for rows, held in zip(test, map(set, train), strict=True)
        ]
    for counts, whose, remedy in (
        (own, "the same client", "or keep such rows together (group= of scool.from_frame)"),
        (others, "other clients", "or give them to one client alone"),
    ):
        who = [number for number, count in enumerate(counts) if count]
        if sum(counts) > max(2, CHANCE * tested):
            _warn(
                f"{sum(counts)} of {tested} test rows are also training rows of {whose} "
                f"({_who(who, names)}): scores count what was memorised. Remove them, "
                f"{remedy}"
            )


def _is_varied(digests: Sequence[int]) -> bool:
    """Whether rows that are equal are so for a reason: with hardly any different ones it is
    chance."""
    return len(set(digests)) > len(digests) // 2


def _digests(part: tuple[Tensor, Tensor]) -> list[int]:
    """A number for each row, the same for the same bytes."""
    x, y = (side[:, None].flatten(1).numpy() for side in part)
    return [hash((a.tobytes(), b.tobytes())) for a, b in zip(x, y, strict=True)]


def _warn_targets(clients: Sequence[Parts], names: Sequence[str] | None) -> None:
    y = torch.cat([parts["train"][1] for parts in clients])
    y = y[_finite_rows(y)]
    mean, spread = float(y.mean().abs()), float(y.std(correction=0))
    if len(y) and max(mean, spread) > LARGE:
        _warn(
            f"targets are large (mean {float(y.mean()):.4g}, standard deviation {spread:.4g}), "
            "and training would diverge: standardise them, (y - mean) / deviation by the training "
            "samples, or let scool.from_frame do it (scale='common'), whose answers are in their "
            "own unit"
        )
    same = [
        number
        for number, parts in enumerate(clients)
        if len(parts["test"][1]) and len(parts["test"][1].unique(dim=0)) == 1
    ]
    if same:
        _warn(
            f"{len(same)} of {len(clients)} clients have the same target in all test samples "
            f"({_who(same, names)}): R^2 is not defined for them; judge by metrics=('rmse',)"
        )
