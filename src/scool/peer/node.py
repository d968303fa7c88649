"""One owner's part of a run, from its folder to its model."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from scool.contracts import Engine, Recorder
from scool.data.federation import Federation
from scool.errors import RunError
from scool.peer.data import PARTS, About, about, alone, widths_of
from scool.peer.engine import PeerEngine
from scool.peer.identity import Files
from scool.peer.owner import Owner
from scool.peer.post import HELLO, PeerError, Post, largest_message
from scool.peer.status import StatusFile
from scool.peer.transport import Transport
from scool.peer.view import Together
from scool.recording.folder import RunFolder
from scool.run.loop import Interrupted, carry_out
from scool.run.options import RunSettings
from scool.run.prepare import prepare_model

LINGER = 60.0  # seconds for which a peer that is done goes on serving those who are not
MOST = 10_000_000  # samples that a member may claim: data are padded to the largest

Connect = Callable[[Owner, int], Transport]
"""Opens the network for an owner; messages may have so many bytes."""


def connect(owner: Owner, largest: int) -> Transport:
    """The network of a run."""
    from scool.peer.zenoh import ZenohTransport

    agreement = owner.agreement
    addresses = [member.address for member in agreement.members]
    files = Files.of(owner.folder)
    return ZenohTransport(agreement.run, owner.place, agreement.names, addresses, files, largest)


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
    agreement = owner.agreement
    _check_open(owner)
    own, method, model = owner.load(), agreement.build_method(), agreement.build_model()
    agreement.check_start(own)
    largest = largest_message(prepare_model(model, own, agreement.seed)[1])
    with contextlib.ExitStack() as held:
        transport = connect(owner, largest)
        held.callback(transport.close)
        post = Post(transport, agreement.run, len(agreement.members), largest, owner.keys)
        status = StatusFile(owner, post, tell)
        post.waiting = status.waiting
        try:
            members = _greet(post, about(own), agreement.names)
            view = alone(own, owner.place, agreement.names, widths_of(members))
            settings = RunSettings(
                rounds=agreement.rounds, seed=agreement.seed, device="cpu", checkpoint_every=1
            )
            result = carry_out(
                view,
                model,
                method,
                settings,
                out=owner.records,
                resume=(owner.records / "run.json").exists(),
                recorders=[*recorders, status],
                method=agreement.method,
                engine=_engine_with(post, members),
            )
        except KeyboardInterrupt:
            _stopped(owner, "before the first round")
        except Interrupted as error:
            _stopped(owner, str(error).split(" of ")[0].removeprefix("stopped "))
        _stay_for_others(post, agreement.rounds)
        return result.summary()


def _check_open(owner: Owner) -> None:
    """Refuse to go on with a run that has ended here: the others are gone."""
    if (owner.records / "run.json").exists():
        if RunFolder.open(owner.records).header.get("status") == "finished":
            raise RunError(
                f"the run in {owner.records} is finished: its model is there. For more rounds make "
                "a new agreement"
            )


def _engine_with(
    post: Post, members: Sequence[About]
) -> Callable[[Federation, nn.Module, RunSettings], Engine]:
    def build(federation: Federation, module: nn.Module, settings: RunSettings) -> Engine:
        torch.set_num_threads(1)  # as the simulator: more threads add in another order
        return PeerEngine(
            federation,
            module,
            post=post,
            view=Together(),
            members=members,
            seed=settings.seed,
            device=settings.device,
            precision=settings.precision,
        )

    return build


def _greet(post: Post, mine: About, names: Sequence[str]) -> list[About]:
    """Tell what others must know of the own data, and hear it of all members.

    Raises:
        PeerError: a member tells what cannot be.
    """
    post.say(HELLO, "hello", {"sizes": dict(mine.sizes), "targets": mine.targets})
    others = [peer for peer in range(post.places) if peer != post.place]
    heard = post.hear(HELLO, "hello", others)
    found = {peer: _about(message.body, names[peer]) for peer, message in heard.items()}
    found[post.place] = mine
    return [found[peer] for peer in range(post.places)]


def _about(body: Mapping[str, Any], name: str) -> About:
    told, targets = body.get("sizes"), body.get("targets")
    sizes = {part: told.get(part) for part in PARTS} if isinstance(told, dict) else {}
    counts = {p: n for p, n in sizes.items() if type(n) is int and 0 <= n <= MOST}
    if len(counts) < len(PARTS) or not counts["train"]:
        raise PeerError(f"{name} tells sizes of its data that cannot be: {str(told)[:100]}")
    if targets is None:
        return About(counts)
    try:
        mean, squares = ([float(x) for x in numbers] for numbers in targets)
    except (TypeError, ValueError) as error:
        raise PeerError(f"{name} tells targets that cannot be: {str(targets)[:100]}") from error
    return About(counts, (mean, squares))


def _stay_for_others(post: Post, rounds: int) -> None:
    """Go on serving until all are done, or nobody is left, or for a while."""
    post.say(rounds, "end")
    last = post.transport.now() + LINGER
    others = [peer for peer in range(post.places) if peer != post.place]

    def until(peer: int) -> float:
        return last if peer in post.transport.members() else 0.0

    post.hear(rounds, "end", others, until)


def _stopped(owner: Owner, when: str) -> NoReturn:
    raise Interrupted(
        f"stopped {when}; the state is saved, `scool peer run {owner.folder}` goes on. "
        "The others wait until this peer is back"
    ) from None
