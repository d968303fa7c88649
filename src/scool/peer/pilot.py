"""Ready folders for a trial: all keys are made in one place, which no real run should do."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scool.data.catalogue import DataConfig, load
from scool.data.federation import Federation
from scool.errors import ConfigError
from scool.peer.addresses import check_dialled
from scool.peer.agreement import Agreement, Member
from scool.peer.identity import (
    Files,
    Keys,
    check_name,
    fingerprint,
    new_authority,
    new_key,
    pem,
    read_request,
    request,
    sign_leaf,
    write_key,
)
from scool.peer.invite import new_folder
from scool.peer.owner import MEMBERS, SETTINGS, sign, write_signatures
from scool.peer.terms import Kind, Terms, agree

Trial = Terms


def make_pilot(
    folder: Path,
    addresses: Mapping[str, str],
    trial: Trial,
    options: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: Mapping[str, Any] | None = None,
) -> list[Path]:
    """A folder per member below `folder`, with keys, agreement and data (handwritten digits unless
    a federation with as many clients is given). `model` has options of the network.

    Raises:
        ScoolError: a name, an address, an option or the folder is not possible.
    """
    if len(addresses) < 2:
        raise ConfigError("a pilot needs two members or more: give name=host:port for each")
    for name, address in addresses.items():
        check_name(name)
        check_dialled(address)
    federation = federation or digits_for(len(addresses), trial.seed)
    authority_key, authority = new_authority("pilot")
    leaves: dict[str, bytes] = {}
    members = [Member(name, address, "") for name, address in addresses.items()]
    agree(trial, members, Kind.of(federation), options, model)  # refuses before anything is written
    new_folder(folder)
    for name, address in addresses.items():
        files, key = Files.of(_new(folder / name)), new_key()
        write_key(files.key, key)
        wanted = read_request(pem(request(name, address, key)))
        leaves[name] = sign_leaf(wanted, authority_key, authority)
        files.leaf.write_bytes(leaves[name])
        files.authority.write_bytes(authority)
    members = [replace(member, leaf=fingerprint(leaves[member.name])) for member in members]
    agreement = agree(trial, members, Kind.of(federation), options, model)
    for place, name in enumerate(addresses):
        _fill(folder / name, agreement, leaves, federation, place)
    return [folder / name for name in addresses]


def digits_for(owners: int, seed: int) -> Federation:
    """Digits of owners in up to two groups that name them differently, of whom nobody is alone: who
    has nobody to learn from shows nothing in a trial."""
    return load(DataConfig(clients=owners, groups=2 if owners >= 4 else 1), seed)


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _fill(
    folder: Path, agreement: Agreement, leaves: Mapping[str, bytes], data: Federation, place: int
) -> None:
    """Everything but the keys."""
    agreement.write(folder)
    _new(folder / MEMBERS)
    for name, leaf in leaves.items():
        (folder / MEMBERS / f"{name}.pem").write_bytes(leaf)
    settings = f'name = "{agreement.names[place]}"\ndata = "data.npz"  # or module:function\n'
    (folder / SETTINGS).write_text(settings)
    key = Files.of(folder).key.read_bytes()
    signature = sign(agreement, Keys(key, list(leaves.values()), place))
    write_signatures(folder, {agreement.names[place]: signature})
    np.savez(folder / "data.npz", allow_pickle=False, **arrays_of(data, place))


def arrays_of(data: Federation, client: int) -> dict[str, np.ndarray]:
    """The samples of one client under the names that data files have."""
    found: dict[str, np.ndarray] = {}
    for part in ("train", "val", "test"):
        split = getattr(data, part)
        mine = split.mask[client]
        if bool(mine.any()):
            found[f"x_{part}"] = split.x[split.index[client, mine]].numpy()
            found[f"y_{part}"] = split.y[client, mine].numpy()
    return found
