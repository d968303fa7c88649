"""What peers need of a network: a few verbs. Bytes go in and come out; who signed them and what
they mean is the business of `post`."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, Protocol


class Arrival(NamedTuple):
    """Something that another peer pushed."""

    sender: int
    key: str
    data: bytes


class Answer(NamedTuple):
    """What a fetch gave: the data, or None where the peer did not answer or has no such thing."""

    sender: int
    key: str
    data: bytes | None


Leaving = Callable[[Collection[int], str, bytes], None]
"""Called before something leaves: to whom, under which key. It stays here if this raises."""


def unrecorded(to: Collection[int], key: str, data: bytes) -> None:
    """Nobody keeps a record of what leaves."""


class Transport(Protocol):
    """One peer's end of the network. Times are seconds of a clock that only goes forward."""

    leaving: Leaving

    @property
    def place(self) -> int:
        """The number of this peer in the roster."""
        ...

    def now(self) -> float: ...
    def offer(self, key: str, data: bytes, push: bool = False) -> None:
        """Others may fetch this until it is withdrawn. `push` also sends it to all who are here;
        what is pushed may get lost on the way, so whoever misses it fetches it."""
        ...

    def withdraw(self, key: str) -> None: ...
    def fetch(self, wanted: Sequence[tuple[int, str]], until: float) -> Iterator[Answer]:
        """Ask other peers for what they offer; an answer for each wanted (peer, key), in any
        order, at the latest at `until`."""
        ...

    def arrivals(self) -> list[Arrival]:
        """What others pushed since the last call."""
        ...

    def members(self) -> frozenset[int]:
        """The peers that seem to be there, this one included."""
        ...

    def wait(self, until: float) -> None:
        """Return when something arrived or the members changed, at the latest at `until`."""
        ...

    def trouble(self, peer: int) -> str:
        """Why a peer cannot be reached, in words; empty where that is not known. May take seconds,
        and is called by another thread."""
        ...

    def close(self) -> None: ...
