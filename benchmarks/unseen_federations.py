"""Federations that `scool` was not developed on: small, without downloads, natural and nasty.

Each function takes a seed and returns a `Case`. What owners have in common is fixed; the seed draws
their samples, or splits them where they are real. `FEDERATIONS` lists all.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from sklearn import datasets
from sklearn.cluster import KMeans
from torch import nn
from unseen_drawn import DRAWN, Case, Owner, federations_of


def real(name: str) -> Owner:
    """A table that comes with scikit-learn, inputs and targets of regression standardised."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    y = y if y.dtype.kind == "i" else scaled(y)
    return scaled(x).astype("float32"), y


def scaled(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / (x.std(0) + 1e-9)


def by_order(key: np.ndarray, parts: Sequence[int] | int) -> list[np.ndarray]:
    return np.array_split(np.argsort(key, kind="stable"), parts)


def shared_out(x: np.ndarray, y: np.ndarray, rows: Sequence[np.ndarray]) -> list[Owner]:
    return [(x[own], y[own]) for own in rows]


def dirichlet(y: np.ndarray, owners: int, alpha: float) -> list[np.ndarray]:
    """Rows of each owner, whose classes have shares drawn from a Dirichlet distribution."""
    rng = np.random.default_rng(0)
    found: list[list[int]] = [[] for _ in range(owners)]
    for label in np.unique(y):
        rows = rng.permutation((y == label).nonzero()[0])
        cuts = (rng.dirichlet([alpha] * owners).cumsum()[:-1] * len(rows)).astype(int)
        for own, part in zip(found, np.split(rows, cuts), strict=True):
            own.extend(part.tolist())
    return [np.array(own) for own in found if len(own) >= 4]


def digits(owners: int, samples: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Digits between 0 and 1, and which rows each owner has."""
    x, y = datasets.load_digits(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(y))[: owners * samples]
    return (x / 16).astype("float32"), y, np.split(rows, owners)


# -------------------------------------------------------------------------- real, divided naturally


def cancer_by_size(seed: int) -> Case:
    x, y = real("breast_cancer")
    return Case(shared_out(x, y, by_order(x[:, 0], 5)))


def cancer_of_all_sizes(seed: int) -> Case:
    """Owners of 4 to 150 rows."""
    x, y = real("breast_cancer")
    rows = np.random.default_rng(0).permutation(len(y))
    return Case(shared_out(x, y, np.split(rows, np.cumsum([4, 4, 6, 8, 15, 30, 70, 150]))[:-1]))


def wine_dirichlet(seed: int) -> Case:
    x, y = real("wine")
    return Case(shared_out(x, y, dirichlet(y, 6, 0.3)))


def iris_of_two(seed: int) -> Case:
    x, y = real("iris")
    return Case(shared_out(x, y, np.split(np.random.default_rng(0).permutation(60), 2)))


def iris_one_class_each(seed: int) -> Case:
    x, y = real("iris")
    return Case(shared_out(x, y, [(y == label).nonzero()[0] for label in range(3)]), model="linear")


def digits_by_cluster(seed: int) -> Case:
    x, y, _ = digits(1, 900)
    found = KMeans(12, n_init=1, random_state=0).fit_predict(x[:900])
    return Case(shared_out(x, y, [(found == c).nonzero()[0] for c in range(12)]))


def diabetes_by_age(seed: int) -> Case:
    x, y = real("diabetes")
    return Case(shared_out(x, y, by_order(x[:, 0], 6)), task="regression")


def linnerud_of_four(seed: int) -> Case:
    """Twenty rows, three targets."""
    x, y = real("linnerud")
    rows = np.split(np.random.default_rng(0).permutation(20), 4)
    return Case(shared_out(x, y, rows), task="regression", model="linear")


class NextCharacter(nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, 8)
        self.recurrent = nn.LSTM(8, 24, batch_first=True)
        self.head = nn.Linear(24, letters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embed(x))[0][:, -1])


def descriptions(seed: int) -> Case:
    """The next character in the descriptions of scikit-learn's datasets, an owner each."""
    names = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine")
    texts = [getattr(datasets, f"load_{name}")().DESCR.lower() for name in names]
    letters = Counter("".join(texts)).most_common(30)  # all others are one
    number = {c: n for n, (c, _) in enumerate(letters)}
    owners: list[Owner] = []
    for text in texts:
        ids = np.array([number.get(c, len(letters)) for c in text])
        at = np.arange(8, len(ids), 3)[:160]
        owners.append((np.stack([ids[t - 8 : t] for t in at]), ids[at]))
    model = lambda: NextCharacter(len(letters) + 1)  # noqa: E731
    return Case(owners, model=model, rounds=12, options={"tokens": True})


# ------------------------------------------------------------------------------- digits, made nasty


def digits_scaled_and_shifted(seed: int) -> Case:
    """Every owner has a camera of its own: contrast and brightness."""
    x, y, rows = digits(20, 80)
    rng = np.random.default_rng(1)
    owners = [(x[r] * rng.uniform(0.3, 3) + rng.normal() / 2, y[r]) for r in rows]
    return Case([(a.astype("float32"), b) for a, b in owners])


def digits_missing_pixels(seed: int) -> Case:
    x, y, rows = digits(20, 80)
    rng = np.random.default_rng(1)
    return Case([(x[r] * (rng.random(64) < 0.5).astype("float32"), y[r]) for r in rows])


def digits_one_contrarian(seed: int) -> Case:
    x, y, rows = digits(20, 80)
    return Case([(x[r], (y[r] + 3 * (i == 0)) % 10) for i, r in enumerate(rows)])


def digits_unequal_groups(seed: int) -> Case:
    x, y, rows = digits(20, 80)
    return Case(
        [(x[r], (y[r] + 3 * (i < 3)) % 10) for i, r in enumerate(rows)],
        options={"groups": [int(i < 3) for i in range(20)]},
    )


def digits_noise_owners(seed: int) -> Case:
    """The labels of five of twenty owners are random."""
    x, y, rows = digits(20, 80)
    rng = np.random.default_rng(1)
    labels = [rng.integers(0, 10, len(r)) if i < 5 else y[r] for i, r in enumerate(rows)]
    return Case([(x[r], own) for r, own in zip(rows, labels, strict=True)])


def digits_copies(seed: int) -> Case:
    """Six owners are copies of one, with the same split."""
    x, y, rows = digits(8, 80)
    order = np.random.default_rng(seed).permutation(80)
    found = [rows[0]] * 6 + rows[1:]
    cut = [(r[order[:40]], r[order[40:]]) for r in found]
    return Case([(x[a], y[a], x[b], y[b]) for a, b in cut])  # type: ignore[misc]


def digits_one_giant(seed: int) -> Case:
    x, y, rows = digits(22, 40)
    return Case(shared_out(x, y, [np.concatenate(rows[:6]), *(r[:16] for r in rows[6:18])]))


def digits_one_class_each(seed: int) -> Case:
    x, y, _ = digits(1, 900)
    return Case(shared_out(x[:900], y[:900], [(y[:900] == c).nonzero()[0] for c in range(10)]))


def small_images(seed: int) -> Case:
    """A network of one's own with batch normalisation; owners with two classes each."""
    x, y, _ = digits(1, 900)
    pairs = [(i % 10, (i + 1 + i // 10) % 10) for i in range(10)]
    rng = np.random.default_rng(0)
    rows = [rng.choice(np.isin(y[:900], pair).nonzero()[0], 40, replace=False) for pair in pairs]

    def network() -> nn.Module:
        body = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
        return nn.Sequential(*body, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10))

    return Case(shared_out(x, y, rows), model=network, rounds=20)


def fifty_classes(seed: int) -> Case:
    options = {"n_classes": 50, "n_clusters_per_class": 1, "class_sep": 2, "random_state": 0}
    x, y = datasets.make_classification(1200, 30, n_informative=20, **options)
    return Case(shared_out(x.astype("float32"), y, dirichlet(y, 12, 0.3)))


def five_rounds(seed: int) -> Case:
    x, y, rows = digits(20, 80)
    return Case([(x[r], y[r]) for r in rows], rounds=5)


FEDERATIONS = federations_of(dict(globals())) | DRAWN
