"""Owners who come to a simulated run by an amendment: everything that people would do by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from scool.data.federation import Federation
from scool.errors import ConfigError
from scool.peer.amending import consider_amendment, propose
from scool.peer.identity import read_request
from scool.peer.invite import make_owner
from scool.peer.join import consider
from scool.peer.owner import open_owner
from scool.peer.pilot import arrays_of


def check_newcomers(newcomers: Mapping[int, int], peers: int) -> None:
    """Refuse newcomers that do not have the last places, in the order in which they come.

    Raises:
        ConfigError: says which are possible.
    """
    last = list(range(peers - len(newcomers), peers))
    in_time = sorted(newcomers, key=lambda place: newcomers[place])
    if in_time != last or peers - len(newcomers) < 2:
        raise ConfigError(
            f"newcomers {', '.join(map(str, in_time))} of {peers} peers are not possible: they get "
            "the last places in the order in which they come, and two peers or more begin"
        )


def make_newcomer(folder: Path, address: str, data: Federation, place: int) -> None:
    """What `scool peer init` makes, and data."""
    make_owner(folder, folder.name, address)
    np.savez(folder / "data.npz", allow_pickle=False, **arrays_of(data, place))


def let_in(members: Sequence[Path], newcomer: Path) -> None:
    """The first member proposes, all sign, and all take it up at once."""
    file = newcomer / "run.amendment"
    request = read_request((newcomer / f"{newcomer.name}.request").read_bytes())
    propose(open_owner(members[0]), [request]).write(file)
    for folder in [*members[1:], newcomer]:
        consider_amendment(folder, file).sign().invite.write(file)
    consider(newcomer, file).join([])
    for folder in members:
        consider_amendment(folder, file).adopt()
