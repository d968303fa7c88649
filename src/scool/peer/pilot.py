"""Ready folders for a trial: all keys are made in one place, which no real run should do."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scool.data.catalogue import DataConfig, load
from scool.data.federation import Federation
from scool.errors import ConfigError
from scool.peer.agreement import Agreement, Member, Mode, first_model_digest
from scool.peer.identity import (
    Files,
    check_name,
    fingerprint,
    host_of,
    new_authority,
    new_key,
    request,
    sign_leaf,
    write_key,
)
from scool.peer.offered import averaging_models, check_method
from scool.peer.owner import MEMBERS, SETTINGS
from scool.run.config import default_run
from scool.run.options import as_dict, with_options
from scool.version import __version__


@dataclass(frozen=True)
class Trial:
    """What the members of a trial do."""

    method: str = "scool-sbm"
    """A method that runs on peers; docs/peers.md lists them."""
    rounds: int = 30
    """Communication rounds."""
    seed: int = 0
    """Decides the first model, the batches and every draw, and the data of the trial."""
    mode: Mode = "strict"
    """strict: every round waits for all members; elastic: it goes on without who is late."""
    deadline: float = 60.0
    """elastic: seconds that a round waits at most."""
    places: int = 0
    """elastic: members there may come to be; 0: no more than there are."""
    min_peers: int = 2
    """elastic: with fewer peers there a round does not begin."""


def make_pilot(
    folder: Path,
    addresses: Mapping[str, str],
    trial: Trial,
    options: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
) -> list[Path]:
    """A folder per member below `folder`, with keys, agreement and data (handwritten digits unless
    a federation with as many clients is given).

    Raises:
        ScoolError: a name, an address, an option or the folder is not possible.
    """
    if len(addresses) < 2:
        raise ConfigError("a pilot needs two members or more: give name=host:port for each")
    for name, address in addresses.items():
        check_name(name)
        host_of(address)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose another folder")
    data = DataConfig(clients=len(addresses), groups=2)
    base = default_run(trial.method, data)
    algorithm = with_options(base.algorithm, options or {}, "the options")
    check_method(algorithm, trial.method)
    if trial.mode == "elastic" and "aggregate" not in (options or {}):
        algorithm = averaging_models(algorithm)
    federation = federation or load(data, trial.seed)
    authority_key, authority = new_authority("pilot")
    leaves: dict[str, bytes] = {}
    for name, address in addresses.items():
        files = Files.of(_new(folder / name))
        key = new_key()
        write_key(files.key, key)
        leaves[name] = sign_leaf(request(name, key), address, authority_key, authority)
        files.leaf.write_bytes(leaves[name])
        files.authority.write_bytes(authority)
    agreement = Agreement(
        method=trial.method,
        algorithm=as_dict(algorithm),
        model=as_dict(base.settings.model),
        rounds=trial.rounds,
        seed=trial.seed,
        mode=trial.mode,
        deadline=trial.deadline,
        places=trial.places,
        min_peers=trial.min_peers,
        task=federation.task,
        inputs=federation.input_shape,
        outputs=federation.num_outputs,
        theta0=first_model_digest(base.settings.model, federation, trial.seed),
        version=__version__,
        members=tuple(Member(n, a, fingerprint(leaves[n])) for n, a in addresses.items()),
    )
    agreement.check()
    for place, name in enumerate(addresses):
        _fill(folder / name, agreement, leaves, federation, place)
    return [folder / name for name in addresses]


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
