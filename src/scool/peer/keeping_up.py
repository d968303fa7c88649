"""A method on a peer that may be away for some rounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from scool.algorithms.between_rounds import Around
from scool.contracts import Engine
from scool.errors import RunError
from scool.graph.edges import MOST
from scool.peer.elastic import Elastic
from scool.peer.post import ASK, Post
from scool.recording.checkpoint import flatten, unflatten
from scool.types import Info, Params

STATE = "state"  # the slot of what a method knows of all, as a round begins
OWN = ("theta", "theta0", "velocity", "scores")
"""Models, their momentum, and what each measures at home: these do not travel."""
COMMON = frozenset({"cross_loss", "gather"})  # by these verbs all hold the same numbers
UNKNOWN = ("loss",)  # what is NaN where nobody measured


@dataclass(frozen=True)
class AtHome(Around):
    """A method whose owner has set validation samples aside already: nobody else has any here."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "validation", 0.0)

    def init(self, engine: Engine, theta0: Params) -> Any:
        return self.method.init(engine, theta0)

    def step(self, engine: Engine, state: Any, round: int) -> tuple[Any, Info]:
        return self.method.step(engine, state, round)

    def admit(self, state: Any, clients: Tensor) -> Any:
        return self.method.admit(state, clients)

    def grow(self, state: Any, fresh: Any) -> Any:
        return self.method.grow(state, fresh)


@final
@dataclass(frozen=True)
class KeepingUp(AtHome):
    """A round that goes by without this peer changes nothing. A peer that begins again takes the
    graph (w, memberships, neighbours) from one that has been there, where all peers compute the
    same graph from losses that all hear; where each knows its own row only, it keeps its own."""

    view: Elastic
    post: Post

    def step(self, engine: Engine, state: Any, round: int) -> tuple[Any, Info]:
        if self.view.is_away:
            k = engine.num_clients
            nothing = torch.full((k,), torch.nan, dtype=torch.float64)
            return state, {"train_loss": nothing, "graph": torch.eye(k, dtype=torch.float64)}
        is_common = bool(self.verbs & COMMON)
        if is_common:
            state = self._with_graph(state, engine.num_clients, round)
        if self.view.newcomers:
            state = self.method.admit(state, torch.tensor(self.view.newcomers))
        if is_common:
            body = {"clients": engine.num_clients}
            self.post.say(round, STATE, body, _common(state), push=False)
        return self.method.step(engine, state, round)

    def _with_graph(self, state: Any, clients: int, round: int) -> Any:
        """The state with the graph of the first of those who run this round that gives one which
        fits; as it is where nobody is asked."""
        sources, now = list(self.view.source), self.post.transport.now
        until = now() + 4 * ASK
        while sources and now() < until:
            for peer in list(sources):
                if message := self.post.ask(round, STATE, [peer], until).get(peer):
                    try:
                        theirs = _clients_of(message.body, clients)
                        if theirs == clients:
                            return _with_common(state, message.tensors)
                        found = _with_common(state, message.tensors, theirs)
                        return self.method.grow(found, state)
                    except (RunError, ValueError) as error:
                        self.post.note(f"peer {peer} gave a graph that does not fit ({error})")
                        sources.remove(peer)
            if sources:  # they have begun the round, and say in a moment what they know
                self.post.transport.wait(now() + ASK / 10)
        return state


def _common(state: Any) -> dict[str, Tensor]:
    """What all peers hold alike."""
    return {name: t.clone() for name, t in flatten(state).items() if not _is_own(name)}


def _is_own(name: str) -> bool:
    return any(part in OWN for part in name.split("/"))


def _clients_of(body: Mapping[str, Any], clients: int) -> int:
    """Of how many clients a peer tells: of fewer where it has not taken up an amendment yet, of
    more where this one has not.

    Raises:
        RunError: that cannot be.
    """
    told = body.get("clients", clients)
    if type(told) is not int or not 1 < told <= MOST:
        raise RunError(f"{str(told)[:40]!r} clients")
    return told


def _with_common(state: Any, found: Mapping[str, Tensor], clients: int | None = None) -> Any:
    """The own state with what a peer tells, of so many clients where it is of others.

    Raises:
    RunError: these are not the tensors of such a state, or some are not finite.
    """
    own = flatten(state)
    for name, t in found.items():
        if _is_own(name) or (name in own and own[name].dtype != t.dtype):
            raise RunError(f"{name} of another kind")
        may_lack = any(word in name for word in UNKNOWN)
        if t.is_floating_point() and not may_lack and not bool(t.isfinite().all()):
            raise RunError(f"{name} is not finite")
    mine = {n: t for n, t in own.items() if _is_own(n)}
    return unflatten(state, mine | dict(found), clients=clients)
