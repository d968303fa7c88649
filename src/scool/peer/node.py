"""One owner's part of a run, from its folder to its model."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, final

import torch
from torch import nn

from scool.contracts import Engine, Method, Recorder
from scool.data.build import with_validation
from scool.data.federation import Federation
from scool.errors import RunError, ScoolError
from scool.peer.agreement import Agreement
from scool.peer.audit import Audit
from scool.peer.data import About, about, alone, widths_of
from scool.peer.editions import Watch
from scool.peer.elastic import Elastic
from scool.peer.engine import PeerEngine
from scool.peer.farewells import keep_farewells, read_farewells
from scool.peer.identity import Files
from scool.peer.keeping_up import AtHome, KeepingUp
from scool.peer.leaving import check_not_left, check_open, has_left, what_happens
from scool.peer.meeting_again import meet_again
from scool.peer.owner import Owner, open_owner
from scool.peer.post import LEFT, Post, largest_message
from scool.peer.status import StatusFile, with_names
from scool.peer.transport import Transport
from scool.peer.view import Together
from scool.peer.words import hear_hello, say_hello
from scool.recording.disk import LOCK, PATIENCE, holding
from scool.run.loop import Interrupted, carry_out
from scool.run.options import RunSettings

LINGER = 60.0  # seconds for which a peer that is done goes on serving those who are not
SLOW = 2.0  # seconds after which it says so

Connect = Callable[[Owner, int], Transport]
"""Opens the network for an owner; messages may have so many bytes."""


def connect(owner: Owner, largest: int, dial: Sequence[str] | None = None) -> Transport:
    """The network of a run; `dial` has other addresses for those whom this peer dials."""
    from scool.peer.zenoh import ZenohTransport

    agreement = owner.agreement
    addresses = [member.address for member in agreement.members]
    addresses[owner.place] = owner.settings.listen or addresses[owner.place]
    files = Files.of(owner.folder)
    names = agreement.names
    return ZenohTransport(agreement.run, owner.place, names, addresses, files, largest, dial)


def run_owner(
    owner: Owner,
    recorders: Sequence[Recorder] = (),
    tell: Callable[[str], None] = lambda words: None,
    connect: Connect = connect,
) -> Mapping[str, Any]:
    """Take part in a run until its last round, or go on with one that was stopped.

    Args:
        owner: whose part.
        recorders: they watch the run.
        tell: gets words for a person while others are awaited.
        connect: the network; others are for tests.

    Returns:
        what `--json` prints. The model is in the run folder: `scool.load_model(owner.records)`.
    """
    while True:
        try:
            return _take_part(owner, recorders, tell, connect)
        except NewEdition:
            owner = open_owner(owner.folder)
            new = owner.agreement.names[len(owner.earlier[-1].members) :]
            tell(f"edition {owner.agreement.edition} of the agreement: {', '.join(new)} may come")


class NewEdition(Exception):
    """The run goes on here with more members."""


def _take_part(
    owner: Owner, recorders: Sequence[Recorder], tell: Callable[[str], None], connect: Connect
) -> Mapping[str, Any]:
    agreement = owner.agreement
    check_not_left(owner.folder)
    check_open(owner)
    owner.keys.check_time()
    own, method, model = owner.load(), agreement.build_method(), agreement.builder(owner.folder)
    agreement.check_start(owner.folder)
    if method.validation:
        single = alone(own, 0, [owner.name], widths_of([about(own)]))  # others may hold a class
        own = with_validation(single, method.validation, agreement.seed, first=owner.place)
    largest = largest_message(agreement.first_model(owner.folder))
    with contextlib.ExitStack() as held:
        held.enter_context(_only_here(owner.folder))
        transport = connect(owner, largest)
        held.callback(transport.close)
        post = Post(transport, agreement.run, len(agreement.members), largest, owner.keys)
        audit = Audit(owner.folder, agreement.names)
        transport.leaving, post.refused = audit.leaving, audit.refused
        left = read_farewells(owner.folder)
        post.gone |= {place for place, name in enumerate(agreement.names) if name in left}
        begun = {"run": agreement.run, "edition": agreement.edition, "version": agreement.version}
        audit.write("start", **begun, members={m.name: m.leaf for m in agreement.members})
        status, watch = StatusFile(owner, post, tell, audit), Watch(owner.folder, agreement)
        post.admit = owner.admit

        def waiting(peers: Sequence[int], seconds: float) -> None:
            status.waiting(peers, seconds)  # first: who has left does not come back
            watch.look()

        def farewell(place: int, signed: bytes) -> None:
            keep_farewells(owner.folder, {agreement.names[place]: signed.hex()})

        post.waiting, post.farewell = waiting, farewell
        try:
            part = _Part(owner, post, about(own))
            if part.is_back and agreement.mode == "strict":
                meet_again(owner.records, post)
            settings = RunSettings(
                rounds=agreement.rounds, seed=agreement.seed, device="cpu", checkpoint_every=1
            )
            result = carry_out(
                alone(own, owner.place, part.names, part.widths),
                model,
                part.method(method),
                settings,
                out=owner.records,
                resume=part.is_back,
                recorders=[*recorders, status, watch],
                method=agreement.method,
                engine=part.engine,
            )
        except KeyboardInterrupt:
            _go_on(watch)
            _stopped(owner, post, status, "before the first round")
        except Interrupted as error:
            _go_on(watch)
            when = str(error).split(" of ")[0].removeprefix("stopped ")
            _stopped(owner, post, status, when)
        except ScoolError as error:
            why = with_names(str(error), agreement.names)
            with contextlib.suppress(ScoolError):  # a full disk may be what failed
                status.stopped("failed", why)
            raise type(error)(why) from error
        with contextlib.suppress(KeyboardInterrupt):  # everything is saved
            _stay_for_others(post, agreement, tell)
        return result.summary()


@contextlib.contextmanager
def _only_here(folder: Path) -> Iterator[None]:
    """Refuse a second peer in the same folder; `is_written(folder)` tells whether one runs.

    Raises:
        RunError: there is one.
    """
    with holding(folder / LOCK, PATIENCE) as is_ours:
        if not is_ours:
            raise RunError(
                f"another `scool peer run {folder}` is running: `scool peer status {folder}` shows "
                "how it is doing. End that one first"
            )
        yield


@final
class _Part:
    """What differs between strict and elastic runs."""

    def __init__(self, owner: Owner, post: Post, mine: About) -> None:
        agreement = owner.agreement
        self._post, self.is_back = post, (owner.records / "run.json").exists()
        free = range(len(agreement.members), agreement.capacity)
        self.names = (*agreement.names, *(f"place-{place}" for place in free))
        self.members = {post.place: mine}
        self.view: Together | Elastic = Together(post)
        say_hello(post, mine, owner.signatures[owner.name])
        if agreement.mode == "elastic":
            limits = agreement.rounds, agreement.deadline, agreement.min_peers
            self.view = Elastic(post, *limits, is_back=self.is_back)
        else:  # samples are padded as where all are together
            self.members |= hear_hello(post, agreement.names, self.view.until)
        self.widths = widths_of(self.members.values())

    def method(self, method: Method[Any]) -> Method[Any]:
        if isinstance(self.view, Elastic):
            return KeepingUp(method, self.view, self._post)
        return AtHome(method)

    def engine(self, federation: Federation, module: nn.Module, settings: RunSettings) -> Engine:
        torch.set_num_threads(1)  # as the simulator: more threads add in another order
        return PeerEngine(
            federation,
            module,
            post=self._post,
            view=self.view,
            members=self.members,
            seed=settings.seed,
            device=settings.device,
            precision=settings.precision,
        )


def _go_on(watch: Watch) -> None:
    """Raises:
    NewEdition: it was no person who stopped the peer.
    """
    if watch.newer:
        raise NewEdition from None


def _stay_for_others(post: Post, agreement: Agreement, tell: Callable[[str], None]) -> None:
    """Go on serving until all are done, or nobody is left, or for a while."""
    rounds, said = agreement.rounds, set[str]()

    def waiting(peers: Sequence[int], seconds: float) -> None:
        if seconds >= SLOW and not said:
            said.update(agreement.names[peer] for peer in peers)
            tell(
                f"done and saved. {', '.join(sorted(said))} may still need this model, so it stays "
                f"up to {LINGER:.0f} s; Ctrl-C ends that"
            )

    post.waiting = waiting
    post.say(rounds, "end")
    last = post.transport.now() + LINGER
    others = [peer for peer in range(post.places) if peer != post.place]

    def until(peer: int) -> float:
        return last if peer in post.transport.members() else 0.0

    post.hear(rounds, "end", others, until)


def _stopped(owner: Owner, post: Post, status: StatusFile, when: str) -> NoReturn:
    """Say what was saved, and what the others do now."""
    if has_left(owner.folder):
        status.stopped("left")
        post.say(post.round, LEFT)
        raise Interrupted(
            f"left the run {when}: {what_happens(owner)}. The model and the row of the graph are "
            f"in {owner.records}"
        ) from None
    status.stopped("stopped")
    others = "go on without this peer" if owner.agreement.mode == "elastic" else "wait for it"
    raise Interrupted(
        f"stopped {when}; the state is saved, `scool peer run {owner.folder}` goes on. "
        f"The others {others} until it is back"
    ) from None
