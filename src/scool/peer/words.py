"""What peers say in the records of a round, read with care: the body of a record is whatever its
sender put there."""

import base64
import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from scool.engine.ledger import PairList
from scool.peer.data import PARTS, About, pooled_variance
from scool.peer.post import HELLO, PeerError, Post, Until, forever

MOST = 10_000_000  # samples that a member may claim: data are padded to the largest
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
_LOSS = np.dtype([("peer", "<u4"), ("loss", "<f8")])
STALE = 2  # rounds for which the losses that a peer told last stand for those it does not tell


class Ready(NamedTuple):
    """What a peer says when its model can be fetched."""

    model: str  # its digest
    wants: frozenset[int] = frozenset()  # by whom it wants to be tried

    @property
    def body(self) -> dict[str, Any]:
        return {"model": self.model, **({"wants": sorted(self.wants)} if self.wants else {})}

    @staticmethod
    def read(body: Any) -> "Ready":
        model, wants = body["model"], frozenset(body.get("wants", ()))
        if not isinstance(model, str) or not all(type(peer) is int for peer in wants):
            raise ValueError("not a digest and a list of peers")
        return Ready(model, wants)


def losses_body(losses: dict[int, float]) -> dict[str, Any]:
    """Exactly these numbers: JSON would round them."""
    table = np.array(list(losses.items()), dtype=_LOSS)
    return {"losses": base64.b64encode(table.tobytes()).decode()}


def read_losses(body: Any) -> dict[int, float]:
    table = np.frombuffer(base64.b64decode(body["losses"], validate=True), dtype=_LOSS)
    return dict(table.tolist())


def row_body(row: Tensor) -> dict[str, Any]:
    """Exactly these numbers, of one owner."""
    numbers = row.double().flatten().numpy().astype("<f8")
    return {"row": base64.b64encode(numbers.tobytes()).decode()}


def read_row(body: Any, like: Tensor) -> Tensor:
    """The numbers of an owner, as many as there are in `like`; NaN for what it does not know."""
    numbers = np.frombuffer(base64.b64decode(body["row"], validate=True), dtype="<f8")
    if len(numbers) != like.numel() or np.isinf(numbers).any():
        raise ValueError("not so many numbers that are finite")
    return torch.tensor(numbers.tolist(), dtype=torch.float64).view(like.shape).to(like.dtype)


def older_row(post: Post, peer: int, round: int, slot: str, like: Tensor) -> Tensor | None:
    """What an owner told last in this slot, up to two rounds before."""
    for back in range(1, STALE + 1):
        if message := post.heard(round - back, slot).get(peer):
            with contextlib.suppress(*UNREADABLE):
                return read_row(message.body, like)
    return None


def with_older(losses: Tensor, edges: PairList, post: Post, round: int, slot: str) -> Tensor:
    """The losses (E,) of a round; what was not told is as it was up to two rounds before."""
    for back in range(1, STALE + 1):
        missing = losses.isnan().nonzero()[:, 0].tolist()
        if not missing:
            break
        said = post.heard(round - back, slot)
        for e in missing:
            if message := said.get(int(edges.j[e])):
                with contextlib.suppress(*UNREADABLE):
                    losses[e] = read_losses(message.body)[int(edges.i[e])]
    return losses


def say_hello(post: Post, mine: About, signature: str = "") -> None:
    """Tell once what others must know of the own data, and show the signature under the agreement.
    Post drops the hello of a member that has not signed."""
    told = {"sizes": dict(mine.sizes), "targets": mine.targets, "held_out": mine.held_out}
    post.say(HELLO, "hello", {**told, "signature": signature})


def hear_hello(post: Post, names: Sequence[str], until: Until = forever) -> dict[int, About]:
    """What all other members tell of their data.

    Raises:
        PeerError: a member tells what cannot be.
    """
    others = [peer for peer in range(post.places) if peer != post.place]
    heard = post.hear(HELLO, "hello", others, until)
    return {peer: read_hello(message.body, names[peer]) for peer, message in heard.items()}


def read_hello(body: Mapping[str, Any], name: str) -> About:
    """Raises:
    PeerError: it cannot be.
    """
    told, targets = body.get("sizes"), body.get("targets")
    sizes = {part: told.get(part) for part in PARTS} if isinstance(told, dict) else {}
    counts = {p: n for p, n in sizes.items() if type(n) is int and 0 <= n <= MOST}
    if len(counts) < len(PARTS) or not counts["train"]:
        raise PeerError(f"{name} tells sizes of its data that cannot be: {str(told)[:100]}")
    return About(counts, _read_targets(targets, name), _read_targets(body.get("held_out"), name))


def _read_targets(told: Any, name: str) -> tuple[list[float], list[float]] | None:
    if told is None:
        return None
    try:
        mean, squares = ([float(x) for x in numbers] for numbers in told)
    except (TypeError, ValueError) as error:
        raise PeerError(f"{name} tells targets that cannot be: {str(told)[:100]}") from error
    return mean, squares


@final
class Members:
    """What this peer knows of the data of others, by place."""

    def __init__(self, known: Mapping[int, About], places: int) -> None:
        self._known, self._places = dict(known), places
        self._are_joined = False  # validation samples are among the training samples

    def joined(self) -> "Members":
        """The same, with their validation samples among the training samples."""
        found = copy.copy(self)  # who becomes known there is known here
        found._are_joined = True
        return found

    def unknown(self, peers: Sequence[int]) -> list[int]:
        return [peer for peer in peers if peer not in self._known]

    def ask(self, strangers: Sequence[int], post: Post, until: Until) -> list[int]:
        """Ask newcomers about their data; returns those who do not tell."""
        heard = post.hear(HELLO, "hello", strangers, until)
        for peer, message in heard.items():
            try:
                self._known[peer] = read_hello(message.body, f"peer {peer}")
            except PeerError as error:
                post.note(str(error))
        return self.unknown(strangers)

    def sizes(self, part: str) -> Tensor:
        """(K,) samples of each; 0 where nobody told."""
        known = [self._known.get(place) for place in range(self._places)]
        return torch.tensor([self._count(about, part) if about else 0 for about in known])

    def _count(self, about: About, part: str) -> int:
        if not self._are_joined or part == "test":
            return about.sizes[part]
        return about.sizes["train"] + about.sizes["val"] if part == "train" else 0

    def variance(self, active: Tensor) -> float:
        """Of the targets of those who are active."""
        known = [about for i, about in self._known.items() if bool(active[i])]
        return pooled_variance(known, self._are_joined)
