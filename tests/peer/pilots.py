"""Four owners with ready folders, who run in one process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import scool
from scool.data.arrays import from_arrays
from scool.peer.agreement import Agreement
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.peer.node import run_owner
from scool.peer.owner import open_owner
from scool.peer.transport import Transport

NAMES = ("ann", "bob", "cat", "dan")
ADDRESSES = {name: f"127.0.0.1:{7400 + place}" for place, name in enumerate(NAMES)}
ROUNDS = 4
OPTIONS = {"epochs": 2, "batch_size": 4, "sparsify_round": 1, "fraction": 0.4}


def take_part(folder: Path, network: MemoryNetwork | None = None) -> dict[int, Any]:
    """Every owner of a pilot runs, in one process."""
    network = network or MemoryNetwork(len(NAMES))
    return network.run({place: live(folder, place) for place in range(len(NAMES))})


def live(folder: Path, place: int) -> Any:
    def program(transport: MemoryTransport) -> Mapping[str, Any]:
        def connect(owner: Any, largest: int) -> Transport:
            return transport

        return run_owner(open_owner(folder / NAMES[place]), connect=connect)

    return program


def simulated(folder: Path) -> scool.Result:
    """The same with the data of all owners in one process."""
    agreement = Agreement.read(folder / NAMES[0])
    clients = [dict(np.load(folder / name / "data.npz")) for name in NAMES]
    return scool.fit(
        from_arrays(clients, num_classes=agreement.outputs),
        agreement.builder(folder),
        agreement.build_method(),
        rounds=agreement.rounds,
        seed=agreement.seed,
        device="cpu",
    )
