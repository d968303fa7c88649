"""What a round sends from one member to another, found out by a rehearsal: two members in this
process, with a few of the own samples, do what the method does."""

import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, final

from scool.columns import human_bytes
from scool.data.build import with_validation
from scool.data.federation import Federation, Split
from scool.peer.agreement import Agreement
from scool.peer.data import PARTS, about, alone, widths_of
from scool.peer.engine import PeerEngine
from scool.peer.keeping_up import AtHome
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.peer.post import Post, largest_message
from scool.peer.view import Together

FEW = 8  # samples of each part: how many there are changes nothing of what is sent
ROUNDS = 4  # models that happen to be equal do not travel twice, in the first rounds above all
TWO = ("here", "there")


@final
class _AsLong:
    """Signs with as many bytes as a signature has, and believes everybody."""

    def sign(self, header: bytes) -> bytes:
        del header
        return bytes(71)

    def is_from(self, sender: int, header: bytes, signature: bytes) -> bool:
        del sender, header, signature
        return True


class Sent(NamedTuple):
    """What goes to one member that asks for everything, in the round in which that is most."""

    models: int
    model_bytes: int
    other_bytes: int  # who is ready, losses, other numbers

    @property
    def words(self) -> str:
        """What an owner gives to each other member."""
        if self.models < 2:
            what = f"your model ({human_bytes(self.model_bytes)})" if self.models else "no model"
        else:
            what = f"up to {self.models} models ({human_bytes(self.model_bytes)} together)"
        return f"{what} to each member that asks" if self.models else what

    def total(self, others: int) -> str:
        """What goes to so many members."""
        return human_bytes(others * (self.model_bytes + self.other_bytes))


def rehearse(agreement: Agreement, own: Federation, folder: Path) -> Sent:
    """Take part in some rounds with a second member who has the same samples.

    Raises:
        ScoolError: the method or the network cannot do with these data.
    """
    single = alone(own, 0, TWO[:1], widths_of([about(own)]))  # others may hold a class
    few = replace(single, **{part: _few(getattr(single, part)) for part in PARTS})
    if share := agreement.build_method().validation:
        few = with_validation(few, share, agreement.seed)
    sent = [Counter[str]() for _ in range(ROUNDS)]

    def program(transport: MemoryTransport) -> None:
        _take_part(transport, agreement, few, folder, sent)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MemoryNetwork(len(TWO)).run(dict.fromkeys(range(len(TWO)), program))
    most = max(sent, key=lambda found: (found["model bytes"], found["other bytes"]))
    return Sent(most["model"], most["model bytes"], most["other bytes"])


def _take_part(
    transport: MemoryTransport,
    agreement: Agreement,
    few: Federation,
    folder: Path,
    sent: Sequence[Counter[str]],
) -> None:
    module, theta0 = agreement.first_network(folder)
    if transport.place:  # equal models would not travel
        theta0 = {name: 1.01 * t for name, t in theta0.items()}
    method, mine = AtHome(agreement.build_method()), about(few)
    post = Post(transport, agreement.run, len(TWO), largest_message(theta0), _AsLong())

    def leaving(to: Collection[int], key: str, data: bytes) -> None:
        if not transport.place:
            kind = "model" if key.startswith("model/") else "other"
            sent[post.round].update({kind: 1, f"{kind} bytes": len(data)})

    transport.leaving = leaving
    engine = PeerEngine(
        alone(few, transport.place, TWO, widths_of([mine])),
        module,
        post=post,
        view=Together(post),
        members=dict.fromkeys(range(len(TWO)), mine),
        seed=agreement.seed,
        device="cpu",
    )
    state = method.init(engine, theta0)
    for round in range(ROUNDS):
        engine.begin_round(round)
        state, _ = method.step(engine, state, round)


def _few(split: Split) -> Split:
    return split._replace(mask=split.mask & (split.mask.cumsum(dim=1) <= FEW))
