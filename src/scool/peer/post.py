"""What a peer says to the others and hears from them: signed records by round and slot, and models
by their digest. Whatever is wrong is dropped, and noted."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, final

from torch import Tensor

from scool.errors import ScoolError
from scool.peer.transport import Answer, Transport
from scool.peer.wire import (
    Message,
    Signer,
    WireError,
    decode,
    digest_of,
    encode,
    is_repeated,
    model_bytes,
    read_model,
)
from scool.types import Params

KEPT = 3  # rounds that stay to be fetched: a peer may come back from a checkpoint so far behind
AHEAD = 3  # rounds by which others may be ahead of this peer
AT_ONCE = 4  # models on their way to this peer
ASK = 0.5  # seconds after which a record that did not arrive is asked for
PATIENCE = 60.0  # seconds for a model on its way; then it is asked for again
SLOTS = 64  # records of one peer and round that are kept; no method has as many verbs
HELLO = -1  # the round of what is said once and stays
WHERE = "where"  # the slot of the answer to the question where a peer is
LEFT = "left"  # the slot in which a peer says that it will not come back
AGREED = "of"  # in a body: the digest of what all had alike in the round before
ENTER = "enter"  # the slot in which a peer says with which round it begins

Until = Callable[[int], float]
"""How long to wait for each peer."""


class PeerError(ScoolError):
    """The peers cannot go on together."""


class Spot(NamedTuple):
    """How far a peer is, as it said last."""

    round: int
    is_running: bool = True  # False: it is on its way, and begins with that round


def forever(peer: int) -> float:
    """Wait for a peer until it comes back."""
    del peer
    return float("inf")


def largest_message(model: Params) -> int:
    """Bytes that a message may have where this is one client's model."""
    return 2 * sum(t.numel() * t.element_size() for t in model.values()) + (1 << 20)


@final
class Post:
    """One peer's desk. `largest` bounds the bytes of a message or a model."""

    def __init__(
        self,
        transport: Transport,
        run: str,
        places: int,
        largest: int,
        signer: Signer | None = None,
    ) -> None:
        self.transport, self.run, self.places, self.signer = transport, run, places, signer
        self.place = transport.place
        self.round = HELLO
        self.spots: dict[int, Spot] = {}  # where each peer that was heard of is
        self.gone: set[int] = set()  # who said that they will not come back
        self.waiting: Callable[[Sequence[int], float], None] = lambda peers, seconds: None
        """Called now and then while others are awaited: for whom, and for how many seconds."""
        self.admit: Callable[[int, Mapping[str, Any]], None] = lambda peer, body: None
        """Called with the hello of a peer, which is dropped if this raises a ScoolError."""
        self.refused: Callable[[str, Sequence[bytes]], None] = lambda why, evidence: None
        """Called with what was dropped, and the signed records that prove it, if there are any."""
        self.farewell: Callable[[int, bytes], None] = lambda peer, signed: None
        """Called with the signed record of a peer that says that it will not come back."""
        self.problems: deque[str] = deque(maxlen=100)  # in words, for people
        self.received = 0  # bytes of records, and of models that were fetched
        self.largest = largest
        self._heard: dict[tuple[int, int, str], Message] = {}
        self._counts: Counter[tuple[int, int]] = Counter()  # records of a peer and round in there
        self._models: dict[str, tuple[int, Params]] = {}  # by digest, with the round of last use
        self._said: dict[str, int] = {}  # keys on offer, with their round

    # ------------------------------------------------------------------ records

    def say(
        self,
        round: int,
        slot: str,
        body: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        push: bool = True,
    ) -> Message:
        """Publish a record; it can be fetched for some rounds more. Without `push` only those who
        fetch it get it."""
        message = Message(self.run, self.place, round, slot, body or {}, tensors or {})
        data = encode(message, self.signer)
        self._said[message.key] = round
        self.transport.offer(message.key, data, push=push)
        self._heard[self.place, round, slot] = message
        return message

    def hear(
        self, round: int, slot: str, peers: Collection[int], until: Until = forever
    ) -> dict[int, Message]:
        """What these peers say in a slot: of each one that was heard of in time."""
        began = self.transport.now()
        ask = began + ASK
        while True:
            self.sort()
            now = self.transport.now()
            missing = [p for p in peers if (p, round, slot) not in self._heard and now < until(p)]
            if not missing:
                return {
                    p: self._heard[p, round, slot] for p in peers if (p, round, slot) in self._heard
                }
            last = max(until(p) for p in missing)
            self.waiting(missing, now - began)
            if now < ask:
                self.transport.wait(min(last, ask))
                continue
            wanted = [(p, f"{round}/{slot}") for p in missing]
            self._fetch(wanted, min(last, now + ASK))
            ask = self.transport.now() + ASK

    def ask(
        self, round: int, slot: str, peers: Collection[int], until: float
    ) -> dict[int, Message]:
        """What these peers have on offer in a slot now: who does not answer in time is left out."""
        known = self.heard(round, slot)
        self._fetch([(p, f"{round}/{slot}") for p in peers if p not in known], until)
        return {p: m for p, m in self.heard(round, slot).items() if p in peers}

    def _fetch(self, wanted: Sequence[tuple[int, str]], until: float) -> None:
        for answer in self.transport.fetch(wanted, until):
            if answer.data is not None:
                self._take(answer.sender, answer.key, answer.data)

    def say_where(self, spot: Spot) -> None:
        """What `where` tells others who ask."""
        body = {"is_running": spot.is_running}
        message = Message(self.run, self.place, spot.round, WHERE, body, {})
        self.transport.offer(WHERE, encode(message, self.signer))

    def where(self, peers: Collection[int], until: float) -> set[int]:
        """Ask peers how far they are: `spots` has it then. Returns those who answered in time."""
        answered: set[int] = set()
        for answer in self.transport.fetch([(p, WHERE) for p in peers], until):
            if answer.data is None or (message := self._read(answer, f"/{WHERE}")) is None:
                continue
            is_running = message.body.get("is_running") is True
            self.spots[answer.sender] = Spot(message.round, is_running)
            answered.add(answer.sender)
        return answered

    def heard(self, round: int, slot: str) -> dict[int, Message]:
        """What has been said in a slot so far."""
        return {p: m for (p, t, s), m in self._heard.items() if (t, s) == (round, slot)}

    def sort(self) -> None:
        """Read what has arrived."""
        for arrival in self.transport.arrivals():
            self._take(arrival.sender, arrival.key, arrival.data)

    def _take(self, sender: int, key: str, data: bytes) -> None:
        """Keep a record if it is right, of this run, and of a round that matters."""
        message = self._read(Answer(sender, key, data))
        if message is None or not self._is_admitted(message):
            return
        if message.slot == LEFT:
            self.gone.add(sender)
            self.farewell(sender, message.signed)
            return
        known = self.spots.get(sender, Spot(HELLO))
        if message.slot == ENTER:
            if message.round > known.round or not known.is_running:
                self.spots[sender] = Spot(message.round, False)
        elif message.round > known.round - (not known.is_running):
            self.spots[sender] = Spot(message.round)
        place = (sender, message.round, message.slot)
        if before := self._heard.get(place):
            if not is_repeated(before, message, but=AGREED):
                words = f"peer {sender} contradicts itself: two different records for {key}"
                self.note(words, before.signed, message.signed)
            return
        is_near = self.round - KEPT <= message.round <= self.round + AHEAD
        if message.round == HELLO or is_near:
            if self._counts[place[:2]] < SLOTS:
                self._counts[place[:2]] += 1
                self._heard[place] = message

    def _read(self, answer: Answer, ending: str = "") -> Message | None:
        """The record, if it is right, of this run and of this sender; its key is the one that was
        asked for, or ends in a word."""
        sender, key, data = answer
        self.received += len(data or b"")
        try:
            message = decode(data or b"", self.run, self.signer, self.largest)
            is_asked = message.key.endswith(ending) if ending else message.key == key
            if message.sender != sender or not is_asked:
                raise WireError(f"a record for {key} of peer {sender} that says it is another")
        except WireError as error:
            self.note(str(error))
            return None
        return message

    def _is_admitted(self, message: Message) -> bool:
        if message.key == f"{HELLO}/hello":
            try:
                self.admit(message.sender, message.body)
            except ScoolError as error:
                self.note(str(error))
                return False
        return True

    def note(self, problem: str, *evidence: bytes) -> None:
        """Remember a fault, once if it repeats."""
        if not self.problems or self.problems[-1] != problem:
            self.problems.append(problem)
            self.refused(problem, evidence)

    # ------------------------------------------------------------------ models

    def lay_out(self, round: int, model: Params) -> str:
        """Let others fetch a model by its digest, which is returned."""
        data = model_bytes(model)
        digest = digest_of(data)
        self._said[f"model/{digest}"] = round
        self.transport.offer(f"model/{digest}", data)
        self._models[digest] = (round, model)
        return digest

    def models(
        self, round: int, like: Params, digests: Mapping[int, str], until: Until = forever
    ) -> Iterator[tuple[int, Params]]:
        """The models that peers have laid out, a few at a time: with the names, shapes and types
        of `like`. What is here already does not travel again; who does not answer in time, or
        with another model, is left out."""
        missing: list[tuple[int, str]] = []
        for peer, digest in digests.items():
            if digest in self._models:
                self._models[digest] = (round, self._models[digest][1])
                yield peer, self._models[digest][1]
            else:
                missing.append((peer, f"model/{digest}"))
        while missing:
            now = self.transport.now()
            missing = [wanted for wanted in missing if now < until(wanted[0])]
            rest, waiting = iter(missing), []
            while part := list(islice(rest, AT_ONCE)):
                last = max(until(peer) for peer, _ in part)
                for answer in self.transport.fetch(
                    part, min(last, self.transport.now() + PATIENCE)
                ):
                    if answer.data is None:
                        waiting.append((answer.sender, answer.key))
                    elif (model := self._read_model(answer, like)) is not None:
                        self._models[answer.key.removeprefix("model/")] = (round, model)
                        yield answer.sender, model
            if missing := waiting:
                again = self.transport.now() + ASK
                self.transport.wait(min(again, max(until(peer) for peer, _ in missing)))

    def _read_model(self, answer: Answer, like: Params) -> Params | None:
        """The model, if these are the bytes that the peer announced, and a model as agreed."""
        data = answer.data or b""
        self.received += len(data)
        try:
            if len(data) > self.largest or f"model/{digest_of(data)}" != answer.key:
                raise WireError("another model than it announced")
            return read_model(data, like)
        except WireError as error:
            self.note(f"peer {answer.sender} sent {error}")
            return None

    def forget(self, round: int) -> None:
        """Begin a round: let go of what nobody can need any more."""
        self.round = round
        for key, said in list(self._said.items()):
            if HELLO < said < round - KEPT:
                del self._said[key]
                self.transport.withdraw(key)
        for place in [p for p in self._heard if HELLO < p[1] < round - KEPT]:
            del self._heard[place]
            self._counts.pop(place[:2], None)
        for digest in [d for d, (used, _) in self._models.items() if used < round]:
            del self._models[digest]
