"""Federations drawn by a rule, for `unseen.py`: owners have fixed tasks, the seed draws samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Owner = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """The samples of each owner, and what is trained on them."""

    owners: Sequence[Owner]
    task: str = "classification"
    model: Any = "mlp"
    rounds: int = 30
    is_real: bool = True  # the seed splits the same samples again
    options: dict[str, Any] = field(default_factory=dict)  # of `from_arrays`


def drawn(
    rule: Callable[[int, np.ndarray, np.random.Generator], np.ndarray],
    sizes: Sequence[int],
    seed: int,
    width: int = 10,
) -> list[Any]:
    """Owners with normal inputs and the targets of a rule (owner, inputs, rng): as many training
    samples as asked for, and a hundred to test."""
    found: list[Any] = []
    for i, size in enumerate(sizes):
        rng = np.random.default_rng([seed, i])
        x = rng.normal(size=(size + 100, width)).astype("float32")
        y = rule(i, x, rng)
        found.append((x[:size], y[:size], x[size:], y[size:]))
    return found


def same_line_tiny(seed: int) -> Case:
    """150 owners with 3 to 9 samples of one task."""
    w = np.random.default_rng(1).normal(size=10)
    rule = lambda i, x, rng: (x @ w + rng.normal(size=len(x)) > 0).astype(int)  # noqa: E731
    sizes = [3 + i % 7 for i in range(150)]
    return Case(drawn(rule, sizes, seed), model="linear", rounds=20, is_real=False)


def strangers(seed: int) -> Case:
    """Fifty owners, whose tasks have nothing in common."""
    w = np.random.default_rng(1).normal(size=(50, 10))
    rule = lambda i, x, rng: (x @ w[i] > 0).astype(int)  # noqa: E731
    return Case(drawn(rule, [40] * 50, seed), rounds=20, is_real=False)


def three_groups(seed: int) -> Case:
    """Thirty owners, whose tasks are those of their group."""
    w = np.random.default_rng(1).normal(size=(3, 10))
    rule = lambda i, x, rng: (x @ w[i % 3] > 0).astype(int)  # noqa: E731
    groups = {"groups": [i % 3 for i in range(30)]}
    return Case(drawn(rule, [20] * 30, seed), is_real=False, options=groups)


def two_opponents(seed: int) -> Case:
    """Two owners with opposite tasks, sixteen samples each."""
    w = np.random.default_rng(1).normal(size=10)
    rule = lambda i, x, rng: (x @ w * (-1) ** i > 0).astype(int)  # noqa: E731
    return Case(drawn(rule, [16] * 2, seed), is_real=False)


def two_allies(seed: int) -> Case:
    w = np.random.default_rng(1).normal(size=10)
    rule = lambda i, x, rng: (x @ w > 0).astype(int)  # noqa: E731
    return Case(drawn(rule, [16] * 2, seed), is_real=False)


def gradual(seed: int) -> Case:
    """The task turns from owner to owner, by half a circle in all."""
    angle = np.linspace(0, np.pi, 24)
    rule = lambda i, x, rng: (  # noqa: E731
        x[:, 0] * np.cos(angle[i]) + x[:, 1] * np.sin(angle[i]) > 0
    ).astype(int)
    return Case(drawn(rule, [40] * 24, seed, width=6), is_real=False)


def rare_positives(seed: int) -> Case:
    """Seven percent are positive."""
    w = np.random.default_rng(1).normal(size=10) / np.sqrt(10)
    rule = lambda i, x, rng: (x @ w + rng.normal(size=len(x)) / 3 > 1.5).astype(int)  # noqa: E731
    return Case(drawn(rule, [60] * 10, seed), rounds=20, is_real=False)


def _friedman(i: int, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    u = 1 / (1 + np.exp(-1.7 * x))
    y = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2
    return (y + 10 * u[:, 3] + 5 * u[:, 4] - 14.4 + rng.normal(size=len(x))) / 5


def friedman(seed: int) -> Case:
    return Case(drawn(_friedman, [30] * 12, seed), task="regression", is_real=False)


def friedman_groups(seed: int) -> Case:
    """Two groups with opposite targets, seven owners and three."""
    rule = lambda i, x, rng: _friedman(i, x, rng) * (-1 if i < 3 else 1)  # noqa: E731
    return Case(drawn(rule, [40] * 10, seed), task="regression", is_real=False)


def friedman_scales(seed: int) -> Case:
    """The targets of every other owner are a thirtieth of those of the others."""
    rule = lambda i, x, rng: _friedman(i, x, rng) * (1 / 30 if i % 2 else 1)  # noqa: E731
    return Case(drawn(rule, [40] * 12, seed), task="regression", is_real=False)


def one_in_other_units(seed: int) -> Case:
    """One of twelve owners measures in units a thousand times as small."""
    rule = lambda i, x, rng: _friedman(i, x, rng) * (1000 if i == 0 else 1)  # noqa: E731
    return Case(drawn(rule, [40] * 12, seed), task="regression", model="linear", is_real=False)


def large_targets(seed: int) -> Case:
    """Targets as they came, around 300 with a deviation of 200; own slopes, a common level."""
    w = np.random.default_rng(1).normal(size=(12, 10)) * 60
    rule = lambda i, x, rng: 300 + x @ w[i] + 20 * rng.normal(size=len(x))  # noqa: E731
    return Case(drawn(rule, [40] * 12, seed), task="regression", model="linear", is_real=False)


def heavy_tails(seed: int) -> Case:
    w = np.random.default_rng(1).normal(size=10) / 3
    rule = lambda i, x, rng: x @ w + rng.standard_t(1.5, size=len(x)) / 2  # noqa: E731
    return Case(drawn(rule, [30] * 15, seed), task="regression", model="linear", is_real=False)


def one_with_outliers(seed: int) -> Case:
    """Tasks of their own, a twentieth of one owner's targets fifty times too large."""
    w = np.random.default_rng(1).normal(size=(12, 10)) / 3

    def rule(i: int, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        y = x @ w[i] + rng.normal(size=len(x)) / 5
        return y * np.where((i == 0) & (rng.random(len(x)) < 0.05), 50, 1)

    return Case(drawn(rule, [50] * 12, seed), task="regression", model="linear", is_real=False)


def a_few_noisy_sensors(seed: int) -> Case:
    """One task for twelve precise owners, four others with tasks of their own and much noise."""
    w = np.random.default_rng(1).normal(size=(16, 10)) / 3

    def rule(i: int, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return x @ (w[i] if i < 12 else 20 * w[i]) / 4 + rng.normal(size=len(x)) * (0.1, 5)[i >= 12]

    return Case(drawn(rule, [25] * 16, seed), task="regression", model="linear", is_real=False)


def two_rows_each(seed: int) -> Case:
    """Two to four."""
    w = np.random.default_rng(1).normal(size=10)
    rule = lambda i, x, rng: (x @ w > 0).astype(int)  # noqa: E731
    return Case(drawn(rule, [2 + (i % 3) for i in range(30)], seed), is_real=False)


def federations_of(names: dict[str, Any]) -> dict[str, Callable[[int], Case]]:
    """The functions that take a seed and return a `Case`."""
    is_one = {"seed": int, "return": Case}
    return {n: f for n, f in names.items() if getattr(f, "__annotations__", None) == is_one}


DRAWN = federations_of(dict(globals()))
