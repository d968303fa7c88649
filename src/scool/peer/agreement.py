"""What all members of a run have agreed on. Its hash is the run's id, which every signed record
names: whoever speaks in the run has agreed to all of it. A later edition has more members, and the
id of the first (see `amendment.py`)."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import nn

from scool.contracts import Method
from scool.data.catalogue import DataConfig
from scool.data.federation import Federation
from scool.errors import ConfigError, DataError, RunError, ScoolError, require, unknown
from scool.models import ModelConfig, initial_params
from scool.peer.addresses import host_of
from scool.peer.code import digest_of_code, function_of
from scool.peer.identity import check_name
from scool.peer.offered import check_elastic, check_method
from scool.recording.disk import write_bytes
from scool.run.checks import checked_model
from scool.run.config import default_run
from scool.run.options import with_options
from scool.types import Params
from scool.version import __version__

Mode = Literal["strict", "elastic"]
Signers = Literal["all", "most"]
NAME = "agreement.json"


@dataclass(frozen=True)
class Member:
    """One owner: its place is where it stands in the list."""

    name: str
    address: str  # host:port, where it listens and others dial it
    leaf: str  # the fingerprint of its certificate


def check_addresses(members: Iterable[Member]) -> None:
    """Refuse two members at one address: only one of them could listen there.

    Raises:
        ConfigError: names both.
    """
    known: dict[str, str] = {}
    for name, address, _ in map(astuple, members):
        if known.setdefault(address, name) != name:
            raise ConfigError(
                f"{known[address]} and {name} have the same address, {address}: one of them makes "
                "a new request with another port (scool peer init, in a new folder)"
            )


@dataclass(frozen=True)
class Agreement:
    """One run on peers, ready to start."""

    method: str
    algorithm: Mapping[str, Any]  # all options of the method
    model: Mapping[str, Any]  # all options of the network; or `function` and `sha256` of its file
    rounds: int
    seed: int
    mode: Mode
    task: str
    inputs: tuple[int, ...]  # the shape of a sample
    outputs: int  # classes, or targets
    theta0: str  # SHA-256 of the common first model
    version: str  # of scool
    members: tuple[Member, ...]
    deadline: float = 60.0  # elastic: seconds of a round after which it goes on without the rest
    places: int = 0  # elastic: places from the start, those of the members among them; 0: no more
    min_peers: int = 2  # elastic: with fewer peers there a round does not begin
    signers: Signers = "all"  # elastic: which members must sign before there is another one
    edition: int = 1
    before: str = ""  # later editions: SHA-256 of the one before
    founding: str = ""  # later editions: the id of the first
    table: Mapping[str, Any] = field(default_factory=dict)
    """How tables become numbers: `label`, `classes`, `numbers` and `categories`; see `table.py`."""

    def canonical(self) -> bytes:
        """The same agreement gives the same bytes."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.canonical()).hexdigest()

    @property
    def run(self) -> str:
        """The id of the run: 32 hexadecimal digits."""
        return self.founding or self.sha256[:32]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def capacity(self) -> int:
        """K: all places, those that nobody has yet among them."""
        return max(self.places, len(self.members))

    def place_of(self, name: str) -> int:
        """Raises:
        ConfigError: there is no such member.
        """
        if name not in self.names:
            unknown("member", name, self.names)
        return self.names.index(name)

    def build_method(self) -> Method[Any]:
        """The method with its options, refused if peers cannot run it."""
        start = default_run(self.method, DataConfig()).algorithm
        method = with_options(start, self.algorithm, "algorithm")
        check_method(method, self.method)
        return method

    def builder(self, folder: Path) -> ModelConfig | Callable[[], nn.Module]:
        """The network, by name or by a function that a file in the folder (or a package) has.

        Raises:
            ConfigError: the function is not there, or its file is not the agreed one.
        """
        name = self.model.get("function")
        if name is None:
            return with_options(ModelConfig(), self.model, "model")
        found = function_of(name, folder, "model")
        if digest_of_code(found) != self.model.get("sha256"):
            raise ConfigError(
                f"the file of {name} is not the agreed one: its SHA-256 is {digest_of_code(found)},"
                f" and agreed is {self.model.get('sha256')}. Bring back the agreed file"
            )
        return found

    def first_model(self, folder: Path) -> Params:
        """theta^0, which every member starts from."""
        return self.first_network(folder)[1]

    def first_network(self, folder: Path) -> tuple[nn.Module, Params]:
        """The same, with the network that it is of."""
        return first_network(self.builder(folder), self.inputs, self.outputs, self.seed)

    def check(self) -> None:
        """Refuse an agreement that this program cannot keep.

        Raises:
            ConfigError: says what is wrong and what to do.
        """
        if self.version != __version__:
            raise ConfigError(
                f"the agreement is for scool {self.version}, and this is {__version__}: install "
                f"the same version everywhere (pip install scool=={self.version})"
            )
        if self.mode not in get_args(Mode):
            unknown("mode", self.mode, get_args(Mode))
        if len(self.members) < 2 or len(set(self.names)) < len(self.members):
            raise ConfigError("the agreement needs two members or more, each with its own name")
        for member in self.members:
            check_name(member.name)
            host_of(member.address)
        self._check_rounds()
        method = self.build_method()
        if self.mode == "elastic":
            check_elastic(method, self.method)

    def _check_rounds(self) -> None:
        """Refuse rounds, a deadline, places and a number of peers that no run could keep."""
        members = len(self.members)
        require(self.rounds >= 1, "rounds", self.rounds, "give 1 or more")
        require(self.seed >= 0, "seed", self.seed, "give 0 or more")
        require(0 < self.deadline < math.inf, "deadline", self.deadline, "give seconds above 0")
        remedy = f"give 0, or {members} (the members) or more"
        require(self.places == 0 or self.places >= members, "places", self.places, remedy)
        remedy = f"give 2 to {members}, the number of members"
        require(2 <= self.min_peers <= members, "min_peers", self.min_peers, remedy)
        if self.signers not in get_args(Signers):
            unknown("signers", self.signers, get_args(Signers))
        if self.mode == "strict" and self.places > members:
            raise ConfigError(
                f"places = {self.places} is not possible with {members} members in a strict run, "
                "which waits for everybody: leave it at 0, or agree on mode = 'elastic'"
            )

    def check_data(self, own: Federation) -> None:
        """Refuse data of another kind than agreed.

        Raises:
            DataError: says what is agreed and what was found.
        """
        agreed = (self.task, tuple(self.inputs), self.outputs)
        found = (own.task, own.input_shape, own.num_outputs)
        if agreed != found:
            words = "{}, inputs {}, {} outputs"
            raise DataError(
                f"the data are {words.format(*found)}; agreed is {words.format(*agreed)}. Give "
                "data of the agreed kind, or make another agreement"
            )

    def check_start(self, folder: Path) -> None:
        """Refuse to begin with another first model than the others.

        Raises:
            ConfigError: the digests differ.
        """
        if digest_of_model(self.first_model(folder)) != self.theta0:
            raise ConfigError(
                "the first model differs from the agreed one: another version of torch makes "
                f"other random numbers (this is {torch.__version__}). Install the same everywhere"
            )

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `of` reads it."""
        return {"run": self.run, **asdict(self)}

    @classmethod
    def of(cls, named: Mapping[str, Any], where: object) -> Self:
        """Raises:
        RunError: it is damaged, or its id does not fit.
        """
        try:
            given = dict(named)
            run = given.pop("run")
            members = tuple(Member(**member) for member in given.pop("members"))
            found = cls(**{**given, "inputs": tuple(given["inputs"]), "members": members})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"{where} is damaged ({error}): bring back a copy") from error
        if found.run != run:
            raise RunError(f"{where} was changed: its id does not match. Bring back a copy")
        return found

    def write(self, folder: Path) -> None:
        write_bytes(folder / NAME, json.dumps(self.as_dict(), indent=2).encode())

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises:
        RunError: there is none, or it is damaged.
        """
        path = folder / NAME
        try:
            return cls.of(json.loads(path.read_bytes()), path)
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(
                f"{folder} has no {NAME}: nobody has joined a run there. `scool peer join {folder} "
                "INVITE` does; `scool peer pilot` makes ready folders for a trial"
            ) from None
        except (OSError, ValueError) as error:
            raise RunError(f"{path} is damaged ({error}): bring back a copy") from error


def digest_of_model(theta0: Params) -> str:
    """SHA-256 over names, shapes and bytes."""
    sha = hashlib.sha256()
    for name, t in sorted(theta0.items()):
        sha.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        sha.update(t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"sha256:{sha.hexdigest()}"


def first_network(
    network: ModelConfig | Callable[[], nn.Module], inputs: tuple[int, ...], outputs: int, seed: int
) -> tuple[nn.Module, Params]:
    """A network for samples of a shape, and its theta^0.

    Raises:
        ScoolError: it cannot be built, or peers cannot train it.
    """
    build = network.builder(inputs, outputs) if isinstance(network, ModelConfig) else network
    try:
        return initial_params(checked_model(build), seed)
    except ScoolError:
        raise
    except Exception as error:  # of somebody's own function
        raise ConfigError(f"the network cannot be built ({error!r}): correct it") from error
