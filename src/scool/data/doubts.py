"""Warnings about your own data: what is possible but seldom intended, with the remedy."""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
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
    counts = [_duplicates(parts) for parts in clients]
    who = [number for number, count in enumerate(counts) if count]
    tested = sum(len(parts["test"][1]) for parts in clients)
    if sum(counts) > max(2, CHANCE * tested):
        _warn(
            f"{sum(counts)} of {tested} test rows are also training rows of the same client "
            f"({_who(who, names)}): scores count what was learned by heart. Remove them, "
            "or keep such rows together (group= of scool.from_frame)"
        )


def _duplicates(parts: Parts) -> int:
    """How many test rows are among the training rows, targets included; 0 where the client has
    hardly any different inputs, which are then equal by chance."""
    if not len(parts["test"][1]):
        return 0
    train, test = (_rows(parts[part]) for part in ("train", "test"))
    if len(np.unique(train)) <= len(train) // 2:
        return 0
    return int(np.isin(test, train).sum())


def _rows(part: tuple[Tensor, Tensor]) -> np.ndarray:
    """(n,) the bytes of each row."""
    x, y = part
    flat = [np.ascontiguousarray(side[:, None].flatten(1).numpy()) for side in (x, y)]
    whole = np.concatenate([side.view(np.uint8).reshape(len(side), -1) for side in flat], axis=1)
    return np.ascontiguousarray(whole).view(f"V{whole.shape[1]}")[:, 0]


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
