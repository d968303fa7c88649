"""`run.toml`: what a founder proposes, and the agreement that it makes with its members."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from scool.contracts import Method
from scool.data.catalogue import DataConfig
from scool.data.federation import Federation
from scool.errors import ConfigError, nearest, require
from scool.models import ModelConfig
from scool.peer.agreement import (
    Agreement,
    Member,
    Mode,
    Signers,
    check_addresses,
    digest_of_model,
    first_network,
)
from scool.peer.code import digest_of_code, function_of
from scool.peer.offered import averaging_models, check_method, on_peers
from scool.peer.table import check_table, features_of
from scool.run.config import default_run
from scool.run.options import as_dict, with_options
from scool.version import __version__


@dataclass(frozen=True)
class Terms:
    """What the members of a run do."""

    method: str = "scool-sbm"
    """A method that runs on peers; docs/peers.md lists them."""
    rounds: int = 30
    """Communication rounds."""
    seed: int = 0
    """Decides the first model, the batches and every draw; of a trial the data, too."""
    mode: Mode = "strict"
    """strict: every round waits for all members; elastic: it goes on without who is late."""
    deadline: float = 60.0
    """elastic: seconds that a round waits at most."""
    places: int = 0
    """elastic: places from the start, for newcomers; 0: as many as there are members."""
    min_peers: int = 2
    """elastic: with fewer peers there a round does not begin."""
    signers: Signers = "all"
    """elastic: all, or most (more than half), must sign before another one takes a place."""


class Kind(NamedTuple):
    """What a sample is."""

    task: str
    inputs: tuple[int, ...]
    outputs: int
    table: Mapping[str, Any] = {}

    @classmethod
    def of(cls, data: Federation) -> "Kind":
        return cls(data.task, data.input_shape, data.num_outputs)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "Kind":
        """From `[table]`, or `[data]` with `inputs` and `outputs`, in `run.toml`.

        Raises:
            ConfigError: it is missing, or cannot be.
        """
        if "table" in given:
            if "data" in given:
                raise ConfigError("run.toml has [table] and [data]: keep one of them")
            table = given["table"]
            check_table(table)
            classes = len(table.get("classes", []))
            task = "classification" if classes else "regression"
            return cls(task, (len(features_of(table)),), classes or 1, table)
        data = given.get("data")
        if not isinstance(data, Mapping):
            raise ConfigError(
                "run.toml does not say what the data are: add [table] with the columns of tables, "
                "or [data] with inputs = [13] (the shape of a sample) and outputs = 2 (classes)"
            )
        for name in data:
            if name not in cls._fields[:3]:
                raise ConfigError(f"unknown option {name!r}: {nearest(name, cls._fields)}")
        task, inputs = data.get("task", "classification"), data.get("inputs")
        sizes = inputs if isinstance(inputs, list) else []
        is_shape = bool(sizes) and all(type(n) is int and n > 0 for n in sizes)
        require(is_shape, "inputs", inputs, "give the shape of a sample, such as [13]")
        is_task = task in ("classification", "regression")
        require(is_task, "task", task, "give classification or regression")
        outputs = data.get("outputs")
        is_count = type(outputs) is int and outputs > (task == "classification")
        require(
            is_count, "outputs", outputs, "give the number of classes (2 or more), or of targets"
        )
        return cls(task, tuple(data["inputs"]), data["outputs"])


def agree(
    terms: Terms,
    members: Sequence[Member],
    kind: Kind,
    options: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    folder: Path = Path(),
) -> Agreement:
    """An agreement that members may sign.

    Args:
        options: of the method.
        model: options of the network, or `function` for one of your own, in a file of `folder`.

    Raises:
        ScoolError: says what is not possible.
    """
    check_addresses(members)
    method = _method(terms, options or {})
    about, network = _network(terms.method, model or {}, folder)
    _, theta0 = first_network(network, kind.inputs, kind.outputs, terms.seed)
    found = Agreement(
        **{f.name: getattr(terms, f.name) for f in fields(terms)},
        algorithm=as_dict(method),
        model=about,
        task=kind.task,
        inputs=kind.inputs,
        outputs=kind.outputs,
        table=kind.table,
        theta0=digest_of_model(theta0),
        version=__version__,
        members=tuple(members),
    )
    found.check()
    return found


def _method(terms: Terms, options: Mapping[str, Any]) -> Method[Any]:
    start = on_peers(default_run(terms.method, DataConfig()).algorithm)
    method = with_options(start, options, "the options")
    check_method(method, terms.method)
    is_chosen = "aggregate" in options or terms.mode == "strict"
    return method if is_chosen else averaging_models(method)


def _network(method: str, model: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], Any]:
    """What the agreement says of the network, and what builds it."""
    if name := model.get("function"):
        build = function_of(name, folder, "function")
        return {"function": name, "sha256": digest_of_code(build)}, build
    start = default_run(method, DataConfig()).settings.model
    chosen: ModelConfig = with_options(start, model, "[model]")
    return as_dict(chosen), chosen


class Proposal(NamedTuple):
    """Everything in `run.toml`."""

    terms: Terms
    kind: Kind
    options: Mapping[str, Any]
    model: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Proposal":
        """Raises:
        ConfigError: it is missing, or says what cannot be.
        """
        try:
            given = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from error
        parts = {name: given.get(name, {}) for name in ("options", "model")}
        for name, part in parts.items():
            require(isinstance(part, Mapping), name, part, f"write [{name}], and options below it")
        known = [*(f.name for f in fields(Terms)), "options", "model", "data", "table"]
        for name in given:
            if name not in known:
                raise ConfigError(f"unknown option {name!r} in {path}: {nearest(name, known)}")
        chosen = {f.name: given[f.name] for f in fields(Terms) if f.name in given}
        return cls(with_options(Terms(), chosen, str(path)), Kind.read(given), **parts)
