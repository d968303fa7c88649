"""Rounds that go on without those who are away, and the way back for who was."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor

from scool.peer.post import ASK, ENTER, KEPT, Post, Spot
from scool.peer.wire import Message

SUSPECT = 0.5  # seconds in each wait that a peer gets which was missed in the round before
NOTICE = 2  # rounds between what a peer says it will join and that round


@final
class Elastic:
    """Whom a peer counts on in a round of which nobody knows who will be there.

    A round has one deadline, which runs while the peer waits for others. Who is there and was heard
    of lately is in view. Who was missed in the round before, or once in this one, gets half a
    second a wait, and so do all when the deadline is over; who was missed twice is not waited for
    again in the round. A peer that is behind the common round, the median of all that run, says
    with which round it begins (`ENTER`), lets the rounds until then go by, and begins with the
    graph of those who are in it.
    """

    is_strict = False

    def __init__(
        self, post: Post, rounds: int, deadline: float, min_peers: int, is_back: bool = False
    ) -> None:
        """`is_back`: it took part before, and comes back from a checkpoint."""
        self._post, self._rounds = post, rounds
        self._deadline, self._min_peers = deadline, min_peers
        self._is_back, self._is_first = is_back, True
        self._enter = -1  # the round with which it begins
        self._in_view: frozenset[int] = frozenset()
        self._missed: set[int] = set()  # in this round
        self._given_up: set[int] = set()  # of these, who was waited for in vain
        self._suspects: frozenset[int] = frozenset()  # missed in the last one
        self._waited = 0.0  # seconds in this round, before the present wait
        self._since: float | None = None  # when the present wait began
        self.is_away = False  # this round goes by without this peer
        self.newcomers: tuple[int, ...] = ()  # who is in view now, and was not before or missed
        self.source: tuple[int, ...] = ()  # of whom to take the graph: those who run this round

    # ------------------------------------------------------------------ what the engine asks

    def begin(self, round: int, digest: str) -> Tensor:
        """(K,) bool: who is absent; everybody, where the peer itself is away."""
        del digest  # numbers may differ
        post, self.newcomers, self.source = self._post, (), ()
        self._suspects, self._missed = frozenset(self._missed), set()
        self._given_up, self._waited, self._since = set(), 0.0, None
        if round >= self._enter:
            post.say_where(Spot(round, not self._is_first and round > self._enter))
            self._find_the_others(round)
        self.is_away = round < self._enter
        absent = torch.ones(post.places, dtype=torch.bool)
        if self.is_away:
            self._in_view = frozenset()
            return absent
        post.say_where(Spot(round))
        before, self._in_view = self._in_view, frozenset(self._look_around(round))
        if round == self._enter:
            self.source = tuple(sorted(p for p in self._in_view if self._runs(p, round)))
            late = [p for p in self._in_view if not post.spots[p].is_running]
            self.newcomers = tuple(sorted([*late, post.place]))
        elif not self._is_first:
            # what was missed may have been what a choice of neighbours depended on
            self.newcomers = tuple(sorted(self._in_view - (before - self._suspects)))
        self._is_first = False
        absent[[post.place, *self._in_view]] = False
        return absent

    def news(self) -> Mapping[str, Any]:
        return {}

    def compare(self, heard: Mapping[int, Message]) -> None:
        """Numbers may differ."""

    def until(self, peer: int) -> float:
        """How long to wait for a peer in this round."""
        post = self._post
        if self._since is None:
            self._since = post.transport.now()
        spot = post.spots.get(peer, Spot(post.round))
        has_left = spot.round > post.round + (KEPT if spot.is_running else 0)
        is_lost = has_left or peer in post.gone or peer in self._given_up
        if is_lost or peer not in post.transport.members():
            return 0.0
        rest = self._deadline - self._waited
        return self._since + (SUSPECT if peer in self._suspects else max(SUSPECT, rest))

    def miss(self, peers: Collection[int]) -> None:
        """A wait is over, and these did not answer in time."""
        now = self._post.transport.now()
        seconds, self._since = now - (now if self._since is None else self._since), None
        self._waited += seconds
        if peers:
            self._missed |= set(peers)
            if seconds >= SUSPECT:
                self._given_up |= set(peers)
            who = ", ".join(map(str, sorted(peers)))
            self._post.note(f"round {self._post.round}: nothing of peer {who} in {seconds:.1f} s")

    # ------------------------------------------------------------------ who is where

    @property
    def _here(self) -> set[int]:
        return set(self._post.transport.members()) - {self._post.place}

    def _runs(self, peer: int, round: int) -> bool:
        spot = self._post.spots.get(peer)
        return spot is not None and spot.is_running and spot.round >= round

    def _look_around(self, round: int) -> Iterable[int]:
        """Those who are in this round, or will be in a moment."""
        self._post.sort()
        for peer in self._here:
            spot = self._post.spots.get(peer)
            if spot is None:
                continue
            is_fresh = spot.is_running and round - 2 <= spot.round <= round + 1
            is_known = spot.is_running and peer in self._in_view and peer not in self._suspects
            is_coming = not spot.is_running and spot.round == round
            if is_fresh or is_coming or (is_known and spot.round >= round - KEPT):
                yield peer

    def _common(self, round: int) -> int:
        """The median round of all that run; where nobody does, of all that are there."""
        spots = [self._post.spots[p] for p in self._here if p in self._post.spots]
        own = [] if self._is_back or round == self._enter else [Spot(round, not self._is_first)]
        running = [spot for spot in [*spots, *own] if spot.is_running]
        rounds = sorted(spot.round for spot in running or [*spots, Spot(round)])
        return rounds[len(rounds) // 2]

    def _find_the_others(self, round: int) -> None:
        """Make sure that enough are there, and that this peer is where they are."""
        post = self._post
        if self._is_first and round != self._enter:
            self._gather(everybody=not self._is_back)
        elif round == self._enter:
            self._await(lambda: self._common(round) >= round or not self._anybody_runs())
            if not self._anybody_runs():
                self._gather()
        elif self._suspects or self._here - self._in_view or not self._has_enough(self._here):
            self._gather()
        common = self._common(round)
        is_behind = common > round + 1 or (self._is_back and self._anybody_runs())
        if is_behind:
            self._enter = min(max(common + NOTICE, round), self._rounds)
            post.say_where(Spot(self._enter, False))
            post.say(self._enter, ENTER)
        elif common < round - 1:
            self._await(lambda: self._common(round) >= round - 1)
        self._is_back = False

    def _anybody_runs(self) -> bool:
        return any(self._post.spots[p].is_running for p in self._here if p in self._post.spots)

    def _has_enough(self, peers: Collection[int]) -> bool:
        return len(peers) + 1 >= self._min_peers

    def _gather(self, everybody: bool = False) -> None:
        """Wait until enough peers say where they are; before the first round until all are there,
        or some run already, or the deadline has passed."""
        post, since = self._post, self._post.transport.now()
        while True:
            now = post.transport.now()
            post.sort()
            here = self._here
            answered = post.where(here, now + ASK) if here else set[int]()
            if self._has_enough(answered):
                is_whole = not everybody or len(answered) + 1 == post.places
                if is_whole or self._anybody_runs() or now >= since + self._deadline:
                    return
            missing = set(range(post.places)) - answered - post.gone - {post.place}
            post.waiting(sorted(missing), now - since)
            post.transport.wait(post.transport.now() + ASK)

    def _await(self, is_time: Callable[[], bool]) -> None:
        """Watch the others until it is time."""
        post, since = self._post, self._post.transport.now()
        asked = since
        while True:
            post.sort()
            if is_time():
                return
            now = post.transport.now()
            if now >= asked:
                post.where(self._here, now + ASK)
                asked = post.transport.now() + ASK
            else:
                post.waiting(sorted(self._here), now - since)
                post.transport.wait(asked)
