"""Whom a peer counts on in a round. In a strict run that is everybody: a round waits for all."""

from collections.abc import Collection
from typing import Protocol, final

import torch
from torch import Tensor

from scool.peer.post import PeerError, Post, Spot, forever


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

    def begin(self, round: int, digest: str) -> Tensor:
        """Wait for all; nobody is absent.

        Raises:
            PeerError: a peer computed other numbers than this one.
        """
        post = self._post
        post.say_where(Spot(round))
        if digest:  # a peer that came back from a checkpoint has none
            post.say(round - 1, "digest", {"of": digest})
        post.say(round, "begin")
        others = [peer for peer in range(post.places) if peer != post.place]
        post.hear(round, "begin", others, self.until)
        for peer, message in post.heard(round - 1, "digest").items():
            if digest and message.body.get("of") != digest:
                raise PeerError(
                    f"peer {peer} has other losses or weights after round {round - 1} than this "
                    "one. A strict run needs the same kind of CPU, the same versions and one "
                    "thread everywhere: compare them"
                )
        return torch.zeros(post.places, dtype=torch.bool)

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
