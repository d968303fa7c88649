"""How one peer meets the others within a round: a slot for each verb, models by their digests, and
what has met already."""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar, final

from torch import Tensor

from scool.health import Health, Reason
from scool.peer.post import PeerError, Post
from scool.peer.view import View
from scool.peer.words import UNREADABLE, Ready, older_row, read_row, row_body
from scool.types import Params, Tree

T = TypeVar("T")


class _Shown(NamedTuple):
    """A tree whose rows the peers have laid out in this round."""

    tensors: tuple[Tensor, ...]  # held, so that no other tensor takes their place in memory
    versions: tuple[int, ...]
    ready: Mapping[int, Ready]


@final
class Exchange:
    """Verbs come in the same order everywhere, so a slot is a number; what a peer does in one never
    depends on whom it sees. Engines of the same peer that go about their own business have slots
    under a name of their own."""

    def __init__(
        self, post: Post, view: View, health: Health, is_severe: bool, name: str = ""
    ) -> None:
        self.post, self.view = post, view
        self._health, self._is_severe = health, is_severe
        self._prefix = re.sub(r"\W", "-", name) + "." * bool(name)
        self.round, self._slot = 0, 0
        self.last_slot = ""
        self._shown: list[_Shown] = []
        self._met: set[int] = set()  # whose models are here

    def begin(self, round: int) -> None:
        self.round, self._slot = round, 0
        self._shown, self._met = [], set()

    def meet(
        self, verb: str, body: Mapping[str, Any], peers: Collection[int], read: Callable[[Any], T]
    ) -> dict[int, T]:
        """Say something in the next slot of the round, and hear what these peers say in it.

        Raises:
            PeerError: one says what nobody can read, and nobody may be missing.
        """
        slot = self.last_slot = f"{self._prefix}{self._slot}-{verb}"
        self._slot += 1
        health, news = self._health.words.get(self.post.place), self.view.news()
        self.post.say(self.round, slot, {**body, **news, **({"health": health} if health else {})})
        if news:
            everybody = [p for p in range(self.post.places) if p != self.post.place]
            self.view.compare(self.post.hear(self.round, slot, everybody, self.view.until))
        heard = self.post.hear(self.round, slot, peers, self.view.until)
        found: dict[int, T] = {}
        for peer, message in heard.items():
            if words := message.body.get("health"):
                self._health.quarantine({peer: Reason.read(str(words)[:200])}, self._is_severe)
            try:
                found[peer] = read(message.body)
            except UNREADABLE as error:
                self.post.note(f"peer {peer} says in {slot} what nobody can read ({error!r})")
                if self.view.is_strict:
                    raise PeerError(f"the round cannot go on: {self.post.problems[-1]}") from error
        self.view.miss(set(peers) - found.keys())
        return found

    def tell(self, row: Tensor, peers: Collection[int]) -> dict[int, Tensor]:
        """Tell some numbers about oneself, and hear those of these peers; of who may be missing and
        is, what it told last."""
        found = self.meet("row", row_body(row), peers, partial(read_row, like=row))
        for peer in set(peers) - found.keys():
            if (older := older_row(self.post, peer, self.round, self.last_slot, row)) is not None:
                found[peer] = older
        return found

    def show(
        self, verb: str, tree: Tree, peers: Collection[int], wants: frozenset[int] = frozenset()
    ) -> Mapping[int, Ready]:
        """Lay out the own row of a tree, and hear which models these peers have laid out."""
        digest = self.post.lay_out(self.round, single(tree))
        ready = self.meet(verb, Ready(digest, wants).body, peers, Ready.read)
        tensors = tuple(tree.values())
        self._shown.append(_Shown(tensors, tuple(t._version for t in tensors), ready))
        return ready

    def shown(self, verb: str, tree: Tree, peers: Collection[int]) -> Mapping[int, Ready]:
        """The same; where this very tree was laid out before in this round, all know its models."""
        for tensors, versions, ready in self._shown:
            same = [
                t is s and t._version == v
                for t, s, v in zip(tree.values(), tensors, versions, strict=False)
            ]
            if len(tree) == len(tensors) and all(same):
                return {peer: ready[peer] for peer in peers if peer in ready}
        return self.show(verb, tree, peers)

    def pull(self, tree: Tree, ready: Mapping[int, Ready]) -> dict[int, Params]:
        """The models of these peers, like the one that is here.

        Raises:
            PeerError: one is no such model, and nobody may be missing.
        """
        digests = {peer: said.model for peer, said in ready.items()}
        found = dict(self.post.models(self.round, single(tree), digests, self.view.until))
        self.view.miss(digests.keys() - found.keys())
        self._met |= found.keys()
        if self.view.is_strict and len(found) < len(digests):
            raise PeerError(f"round {self.round} cannot go on: {self.post.problems[-1]}")
        return found

    def met(self, verb: str, tree: Tree, peers: Collection[int]) -> dict[int, Params]:
        """The rows of a tree that belong to peers whose models came here in this round."""
        ready = self.shown(verb, tree, peers)
        return self.pull(tree, {peer: said for peer, said in ready.items() if peer in self._met})


def single(tree: Tree) -> Params:
    """The model of the one client that is here."""
    return {name: t[0].detach().cpu() for name, t in tree.items()}
