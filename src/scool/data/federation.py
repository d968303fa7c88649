"""The data of K clients, as one shared pool and indices into it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from scool.data.client import Client, client_of
from scool.data.preprocessing import Preprocessing
from scool.data.transform import ImageTransform
from scool.errors import DataError

if TYPE_CHECKING:
    from scool.display.style import Picture

Task = Literal["classification", "regression"]
Part = Literal["train", "val", "test"]
PARTS = ("train", "val", "test")
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
        """A short table of how many samples each client has."""
        from scool.display.federation import words_of

        return words_of(self)

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
        """A matplotlib figure of how many samples of which class each client has."""
        from scool.display.federation import picture_of

        return picture_of(self, part)

    def to_pandas(self) -> Any:
        """A pandas table, one row per client: its group, its samples, its classes."""
        from scool.display.federation import frame_of

        return frame_of(self)

    def _repr_html_(self) -> str:
        from scool.display.federation import html_of

        return html_of(self)


# ---------------------------------------------------------------------- what is refused


def check(federation: Federation) -> None:
    """Refuse data that no method could learn from; NaN inputs are left to the engine.

    Raises:
        DataError: shapes disagree, a client has no training sample, a label or an index is out of
            range or outside the client's task, a class of a client has no training sample
            anywhere, or the true graph is none.
    """
    for part in PARTS:
        _check_shapes(federation, part, getattr(federation, part))
    empty = (federation.train.sizes == 0).nonzero().flatten().tolist()
    if empty:
        raise DataError(
            f"client {federation.client_name(empty[0])} has no training sample "
            f"({len(empty)} such clients): give it data or leave it out"
        )
    if federation.task == "classification":
        for part in PARTS:
            _check_labels(federation, part, getattr(federation, part))
        _check_held(federation)
    _check_graph(federation)


def _check_shapes(federation: Federation, part: str, split: Split) -> None:
    clients, outputs = federation.classes.shape
    shape = tuple(split.index.shape)
    target = shape if federation.task == "classification" else (*shape, outputs)
    problem = None
    if len(shape) != 2 or shape[0] != clients or shape[1] == 0:
        problem = f"index has shape {shape}, not ({clients}, N) with N >= 1"
    elif tuple(split.mask.shape) != shape or split.mask.dtype != torch.bool:
        problem = f"mask is {split.mask.dtype} {tuple(split.mask.shape)}, not bool {shape}"
    elif tuple(split.y.shape) != target:
        problem = f"y has shape {tuple(split.y.shape)}, not {target}"
    elif split.x.shape[1:] != federation.train.x.shape[1:]:
        problem = f"inputs have shape {tuple(split.x.shape[1:])}, not {federation.input_shape}"
    elif split.x.dtype == torch.uint8 and federation.transform is None:
        problem = "inputs are uint8 and there is no transform; pass one, or float inputs"
    elif len(split.x) <= int(split.index.max()) or int(split.index.min()) < 0:
        low, high = int(split.index.min()), int(split.index.max())
        problem = f"index holds rows {low} to {high} of a pool of {len(split.x)} samples"
    if problem:
        raise DataError(f"{part} data of federation {federation.name!r}: {problem}")


def _check_labels(federation: Federation, part: str, split: Split) -> None:
    high = federation.num_outputs
    wrong = (split.y < 0) | (split.y >= high)
    if wrong.any():
        client, column = wrong.nonzero()[0].tolist()
        label = int(split.y[client, column])
        known = "0, 1, ..." if label < 0 else f"0 to {high - 1}"
        raise DataError(
            f"client {federation.client_name(client)} has {part} label {label}: labels are {known}"
        )
    foreign = ~federation.classes.gather(1, split.y) & split.mask
    if foreign.any():
        client, column = foreign.nonzero()[0].tolist()
        raise DataError(
            f"client {federation.client_name(client)} has {part} label "
            f"{int(split.y[client, column])}, which is not among its classes: "
            "add it to `classes` or drop the sample"
        )


def _check_held(federation: Federation) -> None:
    train = federation.train
    held = torch.zeros(federation.num_outputs, dtype=torch.bool, device=train.y.device)
    held[train.y[train.mask]] = True
    lost = (federation.classes & ~held).nonzero().tolist()
    if lost:
        client, label = lost[0]
        raise DataError(
            f"client {federation.client_name(client)} has class {label} in its task, but nobody "
            "holds a training sample of it: add samples, or take the class out of `classes`"
        )


def check_names(names: Sequence[str] | None, clients: int) -> None:
    """One name for each client, and no name twice.

    Raises:
        DataError: there are too few or too many, or two are the same.
    """
    if names is None:
        return
    if len(names) != clients:
        raise DataError(f"{len(names)} client_names for {clients} clients: give a name per client")
    if twice := sorted({str(name) for name in names if names.count(name) > 1}):
        raise DataError(
            f"client_names has {twice[0]!r} {names.count(twice[0])} times: give each client a name "
            "of its own"
        )


def _check_graph(federation: Federation) -> None:
    clients, truth, groups = federation.num_clients, federation.truth, federation.groups
    if groups is not None and tuple(groups.shape) != (clients,):
        raise DataError(f"groups has shape {tuple(groups.shape)}: give one number per client")
    check_names(federation.client_names, clients)
    if truth is None:
        return
    if tuple(truth.shape) != (clients, clients):
        raise DataError(f"truth has shape {tuple(truth.shape)}, not ({clients}, {clients})")
    wrong = ~((truth >= 0) & truth.isfinite())
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise DataError(
            f"truth[{row}, {column}] = {float(truth[row, column])}: give a weight of 0 or more"
        )
    sums = truth.sum(dim=1)
    if bool(((sums - 1).abs() > 1e-6).any()):
        row = int((sums - 1).abs().argmax())
        raise DataError(
            f"truth is not a graph with rows that sum to one (row {row} sums to "
            f"{float(sums[row]):.6g}): divide each row by its sum"
        )
