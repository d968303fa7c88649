"""Whom a peer counts on in a round. In a strict run that is everybody: a round waits for all."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol, final

import torch
from torch import Tensor

from scool.peer.post import AGREED, PeerError, Post, Spot, forever
from scool.peer.wire import Message


class View(Protocol):
    """Whom a peer counts on in a round, and how long it waits for each."""

    @property
    def is_strict(self) -> bool:
        """Whether nobody may be missing."""
        ...

    def begin(self, round: int, digest: str) -> Tensor:
        """(K,) bool: which members are absent in this round. `digest` is of the numbers that all
        peers must have had alike in the round before; empty where there were none."""
        ...

    def news(self) -> Mapping[str, Any]:
        """What the next record says besides: the first one of a round may say more. Where it does,
        all hear it."""
        ...

    def compare(self, heard: Mapping[int, Message]) -> None:
        """Look at what all others said with theirs."""
        ...

    def until(self, peer: int) -> float: ...
    def miss(self, peers: Collection[int]) -> None:
        """A wait is over; what these have to say or to give did not come in time."""
        ...


@final
class Together:
    """All members take part in every round, and hold the same numbers."""

    is_strict = True

    def __init__(self, post: Post) -> None:
        self._post = post
        self._digest, self._is_told = "", True

    def begin(self, round: int, digest: str) -> Tensor:
        """Nobody is absent, and nobody is waited for: the first record of the round, which all
        wait for, says how the one before ended."""
        self._digest, self._is_told = digest, not digest
        self._post.say_where(Spot(round))
        return torch.zeros(self._post.places, dtype=torch.bool)

    def news(self) -> Mapping[str, Any]:
        """The digest of the round before; a peer that came back from a checkpoint has none."""
        if self._is_told:
            return {}
        self._is_told = True
        return {AGREED: self._digest}

    def compare(self, heard: Mapping[int, Message]) -> None:
        """Raises:
        PeerError: a peer computed other numbers than this one.
        """
        for peer, message in heard.items():
            if message.body.get(AGREED, self._digest) != self._digest:
                raise PeerError(
                    f"peer {peer} has other losses or weights after round {message.round - 1} than "
                    "this one. A strict run needs the same kind of CPU, the same versions and one "
                    "thread everywhere: compare them"
                )

    def until(self, peer: int) -> float:
        """Raises:
        PeerError: this peer will not come.
        """
        if peer in self._post.gone:
            raise PeerError(
                f"peer {peer} has left the run for good, and a strict run needs everybody. What "
                "was learned is saved; make a new agreement without that peer"
            )
        return forever(peer)

    def miss(self, peers: Collection[int]) -> None:
        """Nobody is missed: all are waited for."""
