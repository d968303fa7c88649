"""Owners in one process: a federation cut into its clients, an engine each, a network of memory."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from scool.contracts import Method
from scool.data.federation import Federation, Split
from scool.engine.local import LocalEngine
from scool.engine.ranks.placement import Shard
from scool.models import parameters_of
from scool.peer.data import about, alone, widths_of
from scool.peer.engine import PeerEngine
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.peer.post import Post, largest_message
from scool.peer.view import Together, View
from scool.types import Params


def owners(federation: Federation) -> list[Federation]:
    """Each client as a federation of its own, with no samples of others and no padding."""

    def part(split: Split, client: int) -> Split:
        mine = split.mask[client]
        x = split.x[split.index[client, mine]]
        if not len(x):  # a split has one column at least
            return Split(split.x[:1] * 0, *(t[client : client + 1, :1] for t in split[1:]))
        return Split(
            x, torch.arange(len(x))[None], torch.ones(1, len(x)).bool(), split.y[client, mine][None]
        )

    splits = ("train", "val", "test")
    return [
        Shard(
            name=federation.name,
            classes=federation.classes[i : i + 1],
            task=federation.task,
            **{name: part(getattr(federation, name), i) for name in splits},
        )
        for i in range(federation.num_clients)
    ]


def peer_engine(
    transport: MemoryTransport,
    federation: Federation,
    module: nn.Module,
    view: Callable[[Post], View] = Together,
    seed: int = 3,
) -> tuple[PeerEngine, Params]:
    """What one owner has: its engine, and the common first model."""
    theta0 = parameters_of(module)
    mine = owners(federation)
    members = dict(enumerate(about(own) for own in mine))
    names = [f"owner-{i}" for i in range(len(mine))]
    post = Post(transport, "test", len(mine), largest_message(theta0))
    engine = PeerEngine(
        alone(mine[transport.place], transport.place, names, widths_of(members.values())),
        module,
        post=post,
        view=view(post),
        members=members,
        seed=seed,
        device="cpu",
    )
    return engine, theta0


def rounds_of(method: Method[Any], engine: Any, theta0: Params, rounds: int) -> tuple[Any, list]:
    """The state after some rounds, and the infos."""
    state, infos = method.init(engine, theta0), []
    for t in range(rounds):
        engine.begin_round(t)
        state, info = method.step(engine, state, t)
        infos.append(info)
    return state, infos


def simulated(
    method: Method[Any], federation: Federation, module: nn.Module, rounds: int, seed: int = 3
) -> tuple[Any, list, LocalEngine]:
    """The same rounds with all clients in one engine."""
    engine = LocalEngine(replace(federation, truth=None), module, seed=seed, device="cpu")
    state, infos = rounds_of(method, engine, parameters_of(module), rounds)
    return state, infos, engine


def together(
    method: Method[Any],
    federation: Federation,
    module: nn.Module,
    rounds: int,
    network: MemoryNetwork | None = None,
    prepare: Callable[[MemoryNetwork, Mapping[int, Any]], None] | None = None,
) -> list[tuple[Any, list, PeerEngine]]:
    """The same rounds with every client on its own."""
    network = network or MemoryNetwork(federation.num_clients)

    def program(transport: MemoryTransport) -> Any:
        engine, theta0 = peer_engine(transport, federation, module)
        return (*rounds_of(method, engine, theta0, rounds), engine)

    programs = dict.fromkeys(range(federation.num_clients), program)
    if prepare is not None:
        prepare(network, programs)
    return list(network.run(programs).values())
