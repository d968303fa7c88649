"""One client of a federation, by number or by name."""

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from scool.errors import require, unknown

if TYPE_CHECKING:
    from scool.data.federation import Federation, Split


class Samples(NamedTuple):
    """The samples of one client, as a model's `predict` takes them."""

    x: Tensor  # (n, ...)
    y: Tensor  # (n,) class ids, or (n, outputs) targets

    def __repr__(self) -> str:
        return f"Samples({len(self.y)} of shape {tuple(self.x.shape[1:])})"


class Client(NamedTuple):
    """The data of one client."""

    number: int
    name: str  # its number if it has no name
    train: Samples
    val: Samples
    test: Samples


def find_client(which: int | str | None, count: int, names: Sequence[str] | None) -> int:
    """The number of a client that is given by number or by name.

    >>> find_client("Bern", 2, ["Ulm", "Bern"]), find_client(1, 2, None)
    (1, 1)
    """
    if isinstance(which, str):
        remedy = f"the clients have no names; give a number from 0 to {count - 1}"
        require(bool(names), "client", which, remedy)
        assert names is not None
        return list(names).index(which) if which in names else unknown("client", which, names)
    remedy = f"give a number from 0 to {count - 1}{' or a name' if names else ''}"
    is_number = isinstance(which, Integral) and not isinstance(which, bool)
    require(is_number and which in range(count), "client", which, remedy)
    assert isinstance(which, Integral)
    return int(which)


def client_of(federation: "Federation", which: int | str) -> Client:
    """The name and the samples of one client."""
    names = federation.client_names
    k = find_client(which, federation.num_clients, names)

    def samples(split: "Split") -> Samples:
        there = split.mask[k]
        return Samples(split.x[split.index[k][there]], split.y[k][there])

    parts = (samples(split) for split in (federation.train, federation.val, federation.test))
    return Client(k, names[k] if names else str(k), *parts)
