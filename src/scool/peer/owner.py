"""An owner's folder: its private `peer.toml`, its keys, and its data."""

import importlib
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scool.data.arrays import from_arrays
from scool.data.federation import Federation
from scool.errors import ConfigError, DataError
from scool.peer.agreement import Agreement
from scool.peer.identity import Files, Keys, fingerprint

SETTINGS = "peer.toml"
RECORDS = "run"
MEMBERS = "members"


class Owner(NamedTuple):
    """A member as its own folder describes it."""

    folder: Path
    agreement: Agreement
    place: int
    keys: Keys
    data: str

    @property
    def name(self) -> str:
        return self.agreement.names[self.place]

    @property
    def records(self) -> Path:
        """The run folder."""
        return self.folder / RECORDS

    def load(self) -> Federation:
        """The owner's data, as a federation of one client.

        Raises:
            DataError: they cannot be read, or are of another kind than agreed.
        """
        own = from_arrays(
            [_read(self.data, self.folder)],
            name=self.name,
            task="regression" if self.agreement.task == "regression" else "classification",
            num_classes=None if self.agreement.task == "regression" else self.agreement.outputs,
            seed=self.agreement.seed,
        )
        self.agreement.check_data(own)
        return own


def open_owner(folder: Path) -> Owner:
    """Read and check everything in the folder except the data.

    Raises:
        ScoolError: says what is missing or does not fit, and what to do.
    """
    agreement = Agreement.read(folder)
    agreement.check()
    settings = _settings(folder / SETTINGS)
    place = agreement.place_of(settings["name"])
    files = Files.of(folder)
    leaves = [_bytes(folder / MEMBERS / f"{name}.pem") for name in agreement.names]
    for member, leaf in zip(agreement.members, leaves, strict=True):
        if fingerprint(leaf) != member.leaf:
            raise ConfigError(
                f"the certificate of {member.name} is not the one agreed on: bring back "
                f"{MEMBERS}/{member.name}.pem"
            )
    if _bytes(files.leaf) != leaves[place]:
        raise ConfigError(f"leaf.pem is not the certificate of {settings['name']}: bring it back")
    return Owner(folder, agreement, place, Keys(_bytes(files.key), leaves, place), settings["data"])


def _settings(path: Path) -> dict[str, str]:
    """`name` and `data` of peer.toml."""
    try:
        found = tomllib.loads(_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for name in ("name", "data"):
        if not isinstance(found.get(name), str):
            raise ConfigError(f'{path} lacks {name!r}: write {name} = "..."')
    return found


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): bring it back") from error


def _read(data: str, folder: Path) -> Any:
    """What `from_arrays` takes of one client: from a .npz file, or from a function."""
    if data.endswith(".npz"):
        path = folder / data
        try:
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (OSError, ValueError) as error:
            raise DataError(
                f"data = {data!r} cannot be read ({error}): put a file there with x_train, "
                "y_train, x_test and y_test (or x and y), or name a function, as module:function"
            ) from error
    module, colon, function = data.partition(":")
    if not (colon and module and function):
        raise DataError(f"data = {data!r} is not possible: give FILE.npz or module:function")
    sys.path.insert(0, str(folder.absolute()))
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise DataError(
            f"data = {data!r} cannot be loaded ({error}): is there a {module}.py in {folder}?"
        ) from error
    finally:
        sys.path.remove(str(folder.absolute()))
