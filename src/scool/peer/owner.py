"""An owner's folder: its private `peer.toml`, its keys, and its data."""

import contextlib
import json
import re
import tomllib
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scool.data.arrays import from_arrays
from scool.data.federation import Federation, Split
from scool.errors import ConfigError, DataError, ScoolError, nearest, require
from scool.peer.addresses import host_of
from scool.peer.agreement import Agreement, Member
from scool.peer.authorities import check_leaf
from scool.peer.code import function_of
from scool.peer.data import PARTS
from scool.peer.editions import Editions
from scool.peer.identity import Files, Keys, fingerprint
from scool.peer.table import ENDINGS, read_own_table
from scool.recording.disk import write_bytes

SETTINGS = "peer.toml"
RECORDS = "run"
MEMBERS = "members"
SIGNATURES = "signatures.json"


class Settings(NamedTuple):
    """What `peer.toml` says. It is private: nothing of it is sent."""

    name: str
    data: str = "data.npz"
    listen: str = ""  # where to listen, if not at the agreed address: 0.0.0.0:7447 behind a router
    test_fraction: float = 0.2  # of the samples, where there is no test data

    @classmethod
    def read(cls, folder: Path) -> "Settings":
        """Raises:
        ConfigError: the file is missing or says what cannot be.
        """
        path = folder / SETTINGS
        try:
            found = tomllib.loads(read_bytes(path).decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
        for name, value in found.items():
            if name not in cls._fields:
                raise ConfigError(f"unknown option {name!r}: {nearest(name, cls._fields)}")
            is_share = name == "test_fraction"
            is_right = type(value) in (float, int) if is_share else isinstance(value, str)
            what = "a number" if is_share else "a text"
            require(is_right, name, value, f"give {what} in {path}")
        if "name" not in found:
            raise ConfigError(f"{path} lacks 'name': write name = \"...\"")
        settings = cls(**found)
        if settings.listen:
            host_of(settings.listen)
        return settings


class Owner(NamedTuple):
    """A member as its own folder describes it."""

    folder: Path
    agreement: Agreement
    place: int
    keys: Keys
    settings: Settings
    earlier: tuple[Agreement, ...] = ()  # editions of the agreement

    @property
    def name(self) -> str:
        return self.agreement.names[self.place]

    @property
    def records(self) -> Path:
        """The run folder."""
        return self.folder / RECORDS

    @property
    def signatures(self) -> dict[str, str]:
        """Who has signed the agreement, as far as is known here: name -> signature under the first
        edition with that member, which it shows whenever it connects."""
        found = json.loads(read_bytes(self.folder / SIGNATURES))
        if not isinstance(found, dict):
            raise ValueError("no signatures by name")
        return found

    def first_with(self, place: int) -> Agreement:
        """The edition with which a member came."""
        editions = (*self.earlier, self.agreement)
        return next(edition for edition in editions if place < len(edition.members))

    def admit(self, place: int, hello: Mapping[str, Any]) -> None:
        """Check the signature under the agreement that another member shows, and keep it.

        Raises:
            ConfigError: it has not signed.
        """
        name, signature = self.agreement.names[place], hello.get("signature")
        check_signature(self.keys, self.first_with(place), place, signature)
        if (known := self.signatures).get(name) is None:
            write_signatures(self.folder, known | {name: str(signature)})

    def load(self) -> Federation:
        """The owner's data, as a federation of one client.

        Raises:
            DataError: they cannot be read, or are of another kind than agreed.
        """
        return load_data(self.folder, self.settings, self.agreement)


def load_data(folder: Path, settings: Settings, agreement: Agreement) -> Federation:
    """The data that `peer.toml` names, checked against the agreement.

    Raises:
        DataError: they cannot be read, are of another kind, or hold numbers that are not finite.
    """
    try:
        with warnings.catch_warnings():  # of clients in general; `describe` says it of this one
            warnings.simplefilter("ignore")
            own = _load(folder, settings, agreement)
    except DataError as error:
        raise DataError(re.sub(r"\bclient 0\b", settings.name, str(error))) from error
    agreement.check_data(own)
    _check_finite(own)
    return own


def _load(folder: Path, settings: Settings, agreement: Agreement) -> Federation:
    if settings.data.endswith(ENDINGS):
        where, share = folder / settings.data, settings.test_fraction
        return read_own_table(where, agreement.table, settings.name, share, agreement.seed)
    is_regression = agreement.task == "regression"
    return from_arrays(
        [_read(settings.data, folder)],
        name=settings.name,
        task="regression" if is_regression else "classification",
        num_classes=None if is_regression else agreement.outputs,
        test_fraction=settings.test_fraction,
        seed=agreement.seed,
    )


def _check_finite(own: Federation) -> None:
    for part in PARTS:
        split = getattr(own, part)
        mine = split.mask[0]
        rows = [side.flatten(1).isfinite().all(dim=1) for side in _sides(split, mine)]
        if bad := int((~torch.stack(rows).all(dim=0)).sum()):
            raise DataError(
                f"{bad} of {int(mine.sum())} {part} samples hold numbers that are not finite: "
                "leave these rows out, or fill them"
            )


def _sides(split: Split, mine: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 1, ...) inputs and targets."""
    return split.x[split.index[0, mine]][:, None], split.y[0, mine][:, None]


def sign(agreement: Agreement, keys: Keys) -> str:
    """A member's signature under the agreement."""
    return keys.sign(agreement.canonical()).hex()


def check_signature(keys: Keys, agreement: Agreement, place: int, signature: object) -> None:
    """Refuse what is not the signature of a member under the agreement.

    Raises:
        ConfigError: names the member.
    """
    try:
        found = bytes.fromhex(str(signature))
    except ValueError:
        found = b""
    if not keys.is_from(place, agreement.canonical(), found):
        name = agreement.names[place]
        raise ConfigError(f"{name} has not signed the agreement of this run: has it joined?")


def write_signatures(folder: Path, signatures: dict[str, str]) -> None:
    write_bytes(folder / SIGNATURES, json.dumps(signatures, indent=2).encode())


def open_owner(folder: Path) -> Owner:
    """Read and check everything in the folder except the data.

    Raises:
        ScoolError: says what is missing or does not fit, and what to do.
    """
    agreement = Agreement.read(folder)
    agreement.check()
    settings = Settings.read(folder)
    if settings.name not in agreement.names:
        raise ConfigError(
            f"{folder / SETTINGS} says name = {settings.name!r}, and the members of the run in "
            f"{folder} are {', '.join(agreement.names)}: write the name of this owner"
        )
    place, files = agreement.place_of(settings.name), Files.of(folder)
    leaves = [_read_leaf(folder, member) for member in agreement.members]
    _check_authority(files, settings.name, leaves[place])
    if read_bytes(files.leaf) != leaves[place]:
        raise ConfigError(f"leaf.pem is not the certificate of {settings.name}: bring it back")
    keys = Keys(read_bytes(files.key), leaves, place)
    earlier = Editions.read(folder, agreement, dict(zip(agreement.names, leaves, strict=True)))[0]
    owner = Owner(folder, agreement, place, keys, settings, earlier)
    try:
        signature = owner.signatures.get(settings.name)
        check_signature(keys, owner.first_with(place), place, signature)
    except ValueError as error:
        raise ConfigError(f"{SIGNATURES} is damaged ({error}): join again") from error
    return owner


def _check_authority(files: Files, name: str, leaf: bytes) -> None:
    authorities = read_bytes(files.authority)
    try:
        check_leaf(leaf, name, authorities, is_new=False)
    except ConfigError as error:
        raise ConfigError(
            f"{files.authority} does not hold the authority of leaf.pem: bring back a copy"
        ) from error


def _read_leaf(folder: Path, member: Member) -> bytes:
    """The pinned certificate of a member."""
    path = folder / MEMBERS / f"{member.name}.pem"
    leaf = read_bytes(path)
    with contextlib.suppress(ConfigError):  # it is no certificate at all
        if fingerprint(leaf) == member.leaf:
            return leaf
    raise ConfigError(f"{path} is not the certificate that was agreed on: bring back a copy")


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): give the right name, or bring it back"
        ) from error


def _read(data: str, folder: Path) -> Any:
    """What `from_arrays` takes of one client: from a .npz file, or from a function."""
    if data.endswith(".npz"):
        path = folder / data
        try:
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            why = getattr(error, "strerror", None) or "it is no file of numpy arrays"
            raise DataError(
                f"data = {data!r} cannot be read ({why}): put a file there with x_train, "
                "y_train, x_test and y_test (or x and y), or name a function, as module:function"
            ) from error
    if ":" not in data:
        endings = ", ".join(f"FILE{ending}" for ending in (".npz", *ENDINGS))
        raise DataError(f"data = {data!r} is not possible: give {endings} or module:function")
    try:
        return function_of(data, folder, "data")()
    except ScoolError as error:
        raise DataError(str(error)) from error
    except Exception as error:  # of somebody's own code
        raise DataError(f"data = {data!r} fails ({error!r}): try the function in Python") from error
