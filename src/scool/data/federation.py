"""Who has what: the data of K clients, as one shared pool and indices into it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from scool.data.client import Client, client_of
from scool.data.preprocessing import Preprocessing
from scool.data.transform import ImageTransform
from scool.errors import unknown

if TYPE_CHECKING:
    from scool.display.style import Picture

Task = Literal["classification", "regression"]
Part = Literal["train", "val", "test"]
Truth = Literal["identical", "overlap", "fraction", "squared"]


class Split(NamedTuple):
    """One part (train, val or test) of all clients.

    Inputs are shared by index, never copied per client; targets belong to the client, because two
    clients may name the same input differently. Row i is valid where `mask[i]` is true.
    """

    x: Tensor  # (P, ...) the pool: float, or uint8 images (P, channels, height, width)
    index: Tensor  # pyright: ignore[reportIncompatibleMethodOverride] # (K, N) rows of the pool
    mask: Tensor  # (K, N) bool
    y: Tensor  # (K, N) int64 class ids, or (K, N, outputs) float targets

    @property
    def sizes(self) -> Tensor:
        """(K,) samples of each client."""
        return self.mask.sum(dim=1)

    def is_finite(self) -> Tensor:
        """(K,) bool, on the CPU: all inputs and targets of the client are finite numbers."""
        good = torch.ones(len(self.x), dtype=torch.bool, device=self.x.device)
        if self.x.is_floating_point():
            good = torch.isfinite(self.x).flatten(1).all(dim=1)
        ok = good[self.index]
        if self.y.is_floating_point():
            ok = ok & torch.isfinite(self.y).flatten(2).all(dim=2)
        return (ok | ~self.mask).all(dim=1).cpu()

    def to(self, device: torch.device | str) -> "Split":
        return Split(*(part.to(device) for part in self))

    def __repr__(self) -> str:
        """Without the data, which are private and many."""
        inputs, samples = tuple(self.x.shape[1:]), int(self.mask.sum())
        return f"Split({len(self.mask)} clients, {samples} samples, inputs {inputs})"


def are_tokens(x: Tensor) -> bool:
    """Whether inputs are whole numbers that stay so; images and switches become floats."""
    return not (x.is_floating_point() or x.dtype in (torch.uint8, torch.bool))


@dataclass(frozen=True)
class Federation:
    """The private data of K clients, what each of them has to learn, and the truth where known."""

    name: str
    train: Split
    val: Split
    test: Split
    classes: Tensor  # (K, C) bool, the client's task; regression: (K, outputs), all true
    task: Task = "classification"
    truth: Tensor | None = None  # (K, K) true graph, rows sum to one, self included
    groups: Tensor | None = None  # (K,) planted group of each client
    transform: ImageTransform | None = None  # how uint8 images become network inputs
    client_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None  # how the rows of a table became numbers
    notes: tuple[str, ...] = ()  # what was done to the data, in sentences

    def __post_init__(self) -> None:
        from scool.data.checks import check

        check(self)

    @property
    def num_clients(self) -> int:
        return self.classes.shape[0]

    @property
    def num_outputs(self) -> int:
        """C classes, or the number of regression targets."""
        return self.classes.shape[1]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])

    @property
    def takes_tokens(self) -> bool:
        """Whether inputs are whole numbers that stay so, such as token ids."""
        return are_tokens(self.train.x)

    def to(self, device: torch.device | str) -> "Federation":
        """The same federation on another device; parts that share a pool keep sharing it."""
        pools: dict[int, Tensor] = {}

        def move(split: Split) -> Split:
            if id(split.x) not in pools:
                pools[id(split.x)] = split.x.to(device)
            return Split(pools[id(split.x)], *(part.to(device) for part in split[1:]))

        return replace(
            self,
            train=move(self.train),
            val=move(self.val),
            test=move(self.test),
            classes=self.classes.to(device),
        )

    def client(self, which: int | str) -> Client:
        """One client by number or name: its `number`, its `name`, and the samples `(x, y)` of its
        `train`, `val` and `test` parts.

        >>> from scool.data.digits import digits
        >>> digits(num_clients=4, groups=2).client(0).train.x.shape[1:]
        torch.Size([64])
        """
        return client_of(self, which)

    def in_unit(self, targets: Tensor) -> Tensor:
        """Targets or outputs of regression in the unit of the data that the federation was made
        of."""
        return self.preprocessing.in_unit(targets) if self.preprocessing else targets

    def client_name(self, client: int) -> str:
        """How messages call a client: its number, and its name where it has one."""
        return f"{client} ({self.client_names[client]})" if self.client_names else str(client)

    def describe(self) -> str:
        """A short table for a person: who has how much of what."""
        rows = [
            ("federation", self.name),
            ("task", f"{self.task}, {self.num_outputs} outputs, input {self.input_shape}"),
            ("clients", str(self.num_clients)),
            *((f"{part} samples", _spread(getattr(self, part).sizes)) for part in PARTS),
        ]
        if self.task == "classification":
            rows.append(("classes per client", _spread(self.classes.sum(dim=1))))
        if self.groups is not None:
            sizes = self.groups.unique(return_counts=True)[1]
            rows.append(("groups", f"{len(sizes)} of {_spread(sizes)} clients"))
        rows.extend(("note", words) for words in self.notes)
        return "\n".join(f"{name:<20}{value}" for name, value in rows)

    def __repr__(self) -> str:
        """Without the data, which are private and many."""
        return f"Federation({self.name!r}, {self.num_clients} clients, {self.task})"

    def counts(self, part: Part = "train") -> Tensor:
        """(K, C) samples of each client and class; regression: (K, 1) samples of each client."""
        split: Split = getattr(self, part)
        mask = split.mask.cpu()
        if self.task == "regression":
            return mask.sum(dim=1, keepdim=True).int()
        counts = torch.zeros(len(mask), self.num_outputs, dtype=torch.int32)
        return counts.scatter_add_(1, split.y.cpu(), mask.int())

    @property
    def held(self) -> Tensor:
        """(K, C) bool: the classes that a client has samples of, whatever it may answer with."""
        return torch.stack([self.counts(part) > 0 for part in PARTS]).any(dim=0)

    def plot(self, part: Part = "train") -> "Picture":
        """A matplotlib figure of who has how many samples of which class."""
        from scool.display.federation import picture_of

        return picture_of(self, part)

    def to_pandas(self) -> Any:
        """A pandas table, one row per client: its group, its samples, its classes."""
        from scool.display.federation import frame_of

        return frame_of(self)

    def _repr_html_(self) -> str:
        from scool.display.federation import html_of

        return html_of(self)


PARTS = ("train", "val", "test")


def _spread(numbers: Tensor) -> str:
    low, middle, high = (int(f(numbers)) for f in (torch.min, torch.median, torch.max))
    return str(low) if low == high else f"{low} / {middle} / {high} (min / median / max)"


def true_graph(classes: Tensor, kind: Truth) -> Tensor:
    """The graph a perfect method would find, from the class sets of the clients.

    Args:
        classes: (K, C) bool.
        kind: which clients should cooperate: `identical` class sets, any `overlap`, or in
            proportion to the `fraction` of classes they share, or to its square (`squared`).

    Returns:
        (K, K) float64, rows sum to one, self included.

    >>> true_graph(torch.tensor([[1, 1, 0], [1, 1, 0], [0, 1, 1]]).bool(), "fraction")[2].tolist()
    [0.25, 0.25, 0.5]
    """
    common = classes.double() @ classes.double().T
    if kind == "identical":
        size = classes.sum(dim=1)
        weight = ((common == size[:, None]) & (common == size[None, :])).double()
    elif kind == "overlap":
        weight = (common > 0).double()
    elif kind == "fraction":
        weight = common
    elif kind == "squared":
        weight = common**2
    else:
        unknown("truth", kind, ("identical", "overlap", "fraction", "squared"))
    return weight / weight.sum(dim=1, keepdim=True)


def group_graph(groups: Tensor) -> Tensor:
    """The true graph of planted groups: (K, K) float64, equal weights inside a group.

    >>> group_graph(torch.tensor([0, 1, 0]))[0].tolist()
    [0.5, 0.0, 0.5]
    """
    same = (groups[:, None] == groups[None, :]).double()
    return same / same.sum(dim=1, keepdim=True)
