"""A network inside one process, with a clock of its own: seeded loss, delay, death and sleep.

Peers are threads of which one runs at a time; time passes only while all wait. So a test of many
rounds takes no longer than its work, and the same seed gives the same run.
"""

import heapq
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, final

from scool.errors import RunError
from scool.peer.transport import Answer, Arrival, Leaving, unrecorded

LEASE = 3.0  # seconds after which a peer that sleeps, or a cut link, is noticed
PATIENCE = 5.0  # seconds that a fetch waits for an answer that was lost

Program = Callable[["MemoryTransport"], Any]


class Died(BaseException):
    """The peer is killed: nothing may catch this."""


def _taken() -> threading.Lock:
    """A lock that one thread waits for and another one releases: cheaper than a semaphore."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@final
class _Peer:
    """One thread, and what the network knows of it."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.is_alive, self.asleep_since = True, math.inf
        self.offers: dict[str, bytes] = {}
        self.leaving: Leaving = unrecorded
        self.inbox: list[Arrival] = []
        self.turn = 0  # numbers its waits, so that old alarms are ignored
        self.is_waiting, self.is_ready = False, False
        self.is_done = False  # its program returned; what it offers stays until it is closed
        self.baton = _taken()
        self.result: Any = None
        self.error: BaseException | None = None


@final
class MemoryNetwork:
    """Runs one program per peer to its end.

    >>> network = MemoryNetwork(2)
    >>> def talk(me):
    ...     me.offer("hello", b"from %d" % me.place, push=True)
    ...     while me.now() < 1.0:
    ...         me.wait(until=1.0)
    ...     return [arrival.data for arrival in me.arrivals()]
    >>> network.run({0: talk, 1: talk})
    {0: [b'from 1'], 1: [b'from 0']}
    """

    def __init__(
        self, places: int, seed: int = 0, loss: float = 0.0, delay: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """`loss` is the share of messages that never arrive, `delay` the bounds of the time that
        the others take."""
        self.places, self.loss, self.delay = places, loss, delay
        self.now = 0.0
        self._rng = Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._to_start = 0  # programs that begin later
        self._peers: dict[int, _Peer] = {}
        self._running = _taken()  # given back by the thread that runs
        self._cuts: dict[frozenset[int], float] = {}  # since when

    # ------------------------------------------------------------------ the person who tests

    def run(self, programs: Mapping[int, Program], until: float = 1e6) -> dict[int, Any]:
        """What each program returned; None for peers that died.

        Raises:
            RunError: all wait for something that will not come, or some are not done in time.
        """
        for place, program in sorted(programs.items()):
            self.start(place, program)
        try:
            while self._events:
                self.now, _, event = heapq.heappop(self._events)
                if all(peer.is_done for peer in self._peers.values()) and not self._to_start:
                    break
                if self.now > until:
                    raise RunError(f"peers still wait after {until:g} seconds of the clock")
                event()
            if any(peer.is_waiting for peer in self._peers.values()):
                raise RunError("all peers wait, and nothing is on its way")
        finally:
            for place in list(self._peers):
                self._end(place)
        for peer in self._peers.values():
            if peer.error is not None:
                raise peer.error
        return {place: peer.result for place, peer in sorted(self._peers.items())}

    def start(self, place: int, program: Program, at: float = 0.0) -> None:
        """Begin a peer's program, for the first time or again after its death."""

        self._to_start += 1

        def begin() -> None:
            self._to_start -= 1
            peer = self._peers[place] = _Peer(place)

            def live() -> None:
                peer.baton.acquire()
                try:
                    if peer.is_alive:
                        peer.result = program(MemoryTransport(self, peer))
                except Died:
                    pass
                except BaseException as error:
                    peer.error = error
                peer.is_done, peer.is_waiting = True, False
                self._running.release()

            threading.Thread(target=live, daemon=True).start()
            self._resume(peer)
            self._wake_all()

        self.at(at, begin)

    def kill(self, place: int, at: float) -> None:
        """The process ends in the middle of whatever it does; all others know at once."""
        self.at(at, lambda: (self._end(place), self._wake_all()))

    def sleep(self, place: int, at: float, seconds: float) -> None:
        """The machine stands still; others notice after a lease."""

        def begin() -> None:
            self._peers[place].asleep_since = self.now

        def end() -> None:
            self._peers[place].asleep_since = math.inf
            self._wake_all()

        self.at(at, begin)
        self.at(at + LEASE, self._wake_all)
        self.at(at + seconds, end)

    def cut(self, a: int, b: int, at: float, seconds: float) -> None:
        """Nothing passes between two peers; they notice after a lease."""
        link = frozenset((a, b))
        self.at(at, lambda: self._cuts.setdefault(link, self.now))
        self.at(at + LEASE, self._wake_all)
        self.at(at + seconds, lambda: (self._cuts.pop(link), self._wake_all()))

    def at(self, time: float, event: Callable[[], Any]) -> None:
        """Do something at a time of the network's clock."""
        heapq.heappush(self._events, (max(time, self.now), next(self._count), event))

    # ------------------------------------------------------------------ what transports ask

    def send(self, a: int, b: int, deliver: Callable[[], None]) -> bool:
        """Deliver something from a to b after a while, unless it gets lost; whether it did not."""
        if frozenset((a, b)) in self._cuts or self._rng.random() < self.loss:
            return False
        self.at(self.now + self._rng.uniform(*self.delay), deliver)
        return True

    def push(self, sender: _Peer, key: str, data: bytes) -> None:
        """Send to everyone."""
        for other in range(self.places):
            if other != sender.place:
                self.send(sender.place, other, self._delivery(other, sender.place, key, data))

    def _delivery(self, to: int, sender: int, key: str, data: bytes) -> Callable[[], None]:
        def deliver() -> None:
            peer = self._peers.get(to)
            if peer is not None and peer.is_alive:
                peer.inbox.append(Arrival(sender, key, data))
                self._wake(peer)

        return deliver

    def ask(
        self, reader: _Peer, other: int, key: str, answer: Callable[[bytes | None], None]
    ) -> None:
        """Fetch from another peer: a way there and a way back, each of which may fail."""

        def arrive() -> None:
            peer = self._peers.get(other)
            if peer is None or not peer.is_alive:
                return answer(None)
            if self._is_asleep(peer):
                return fail()
            data = peer.offers.get(key)
            if data is not None:
                peer.leaving({reader.place}, key, data)
            if not self.send(other, reader.place, lambda: answer(data)):
                fail()

        def fail() -> None:
            self.at(self.now + PATIENCE, lambda: answer(None))

        if not self.send(reader.place, other, arrive):
            fail()

    def members(self, viewer: int) -> frozenset[int]:
        def is_seen(peer: _Peer) -> bool:
            cut = self._cuts.get(frozenset((viewer, peer.place)), math.inf)
            return peer.is_alive and self.now < min(cut, peer.asleep_since) + LEASE

        return frozenset(place for place, peer in self._peers.items() if is_seen(peer))

    def pause(self, peer: _Peer, until: float) -> None:
        """Called by a peer's thread: give the turn away until something happens."""
        if not peer.is_ready:
            peer.turn += 1
            turn = peer.turn
            if until < math.inf:
                self.at(until, lambda: self._wake(peer) if peer.turn == turn else None)
            peer.is_waiting = True
            self._running.release()
            peer.baton.acquire()
            if not peer.is_alive:
                raise Died
        peer.is_ready = False

    # ------------------------------------------------------------------ inside

    def _is_asleep(self, peer: _Peer) -> bool:
        return peer.asleep_since <= self.now

    def _wake_all(self) -> None:
        for peer in list(self._peers.values()):
            self._wake(peer)

    def _wake(self, peer: _Peer) -> None:
        """Something happened to a peer: if it waits, it goes on; else its next wait is short."""
        peer.is_ready = True
        if peer.is_waiting and not self._is_asleep(peer):
            peer.turn += 1
            self._resume(peer)

    def _resume(self, peer: _Peer) -> None:
        """Let a peer's thread run until it waits or ends."""
        peer.is_waiting = False
        peer.baton.release()
        self._running.acquire()

    def _end(self, place: int) -> None:
        peer = self._peers.get(place)
        if peer is not None and peer.is_alive:
            peer.is_alive, peer.is_done = False, True
            if peer.is_waiting:
                self._resume(peer)


@final
class MemoryTransport:
    """See `transport.Transport` for what each verb promises."""

    def __init__(self, network: MemoryNetwork, peer: _Peer) -> None:
        self._network, self._peer = network, peer
        self.place = peer.place
        self.leaving: Leaving = unrecorded
        peer.leaving = lambda to, key, data: self.leaving(to, key, data)

    def now(self) -> float:
        return self._network.now

    def offer(self, key: str, data: bytes, push: bool = False) -> None:
        self._peer.offers[key] = data
        if push:
            self.leaving(set(range(self._network.places)) - {self.place}, key, data)
            self._network.push(self._peer, key, data)

    def withdraw(self, key: str) -> None:
        self._peer.offers.pop(key, None)

    def fetch(self, wanted: Sequence[tuple[int, str]], until: float) -> Iterator[Answer]:
        found: list[Answer] = []
        open_ = dict.fromkeys(wanted)
        for peer, key in open_:

            def answer(data: bytes | None, peer: int = peer, key: str = key) -> None:
                found.append(Answer(peer, key, data))
                self._network._wake(self._peer)

            self._network.ask(self._peer, peer, key, answer)
        while open_:
            while found:
                answered = found.pop(0)
                if (answered.sender, answered.key) in open_:
                    del open_[answered.sender, answered.key]
                    yield answered
            if open_ and self.now() >= until:
                yield from (Answer(peer, key, None) for peer, key in open_)
                return
            if open_:
                self.wait(until)

    def arrivals(self) -> list[Arrival]:
        found, self._peer.inbox = self._peer.inbox, []
        return found

    def members(self) -> frozenset[int]:
        return self._network.members(self.place)

    def wait(self, until: float) -> None:
        self._network.pause(self._peer, until)

    def trouble(self, peer: int) -> str:
        return ""

    def close(self) -> None:
        self._peer.is_alive = False
        self._network.at(self._network.now, self._network._wake_all)
