"""The whole state of a run as plain tensors: written atomically, verified when read. No pickle."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from scool.errors import RunError
from scool.graph.edges import Edges
from scool.recording.edge_tensors import PARTS, from_tensors, to_tensors
from scool.recording.lines import COUNT, OBJECT, check_kinds
from scool.recording.tensors import TensorFile, write_tensors

S = TypeVar("S")


class Checkpoint(NamedTuple):
    """What a run needs to go on."""

    rounds: int  # rounds completed
    tensors: dict[str, Tensor]
    parts: Mapping[str, str] = {}  # seals of the files with the rows of clients, by name


def flatten(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """Tensors of nested NamedTuples and dicts by path, e.g. `graph/w`. Edges are a matrix of few
    clients, else `graph/w/i`, `j`, `values` and `fill`."""
    if isinstance(state, Tensor):
        return {prefix: state}
    if isinstance(state, Edges):
        return {f"{prefix}{name}": t for name, t in to_tensors(state).items()}
    items = state.items() if isinstance(state, Mapping) else state._asdict().items()
    flat: dict[str, Tensor] = {}
    for name, value in items:
        flat |= flatten(value, f"{prefix}/{name}" if prefix else str(name))
    return flat


def unflatten(template: S, tensors: Mapping[str, Tensor], prefix: str = "") -> S:
    """The same structure as `template`, on its devices, with the tensors of a checkpoint."""
    if isinstance(template, Tensor):
        if prefix not in tensors or tensors[prefix].shape != template.shape:
            found = tuple(tensors[prefix].shape) if prefix in tensors else "nothing"
            raise RunError(
                f"the checkpoint holds {found} for {prefix!r} where the run needs "
                f"{tuple(template.shape)}: it belongs to another configuration or version"
            )
        return tensors[prefix].to(template.device)  # type: ignore[return-value]
    if isinstance(template, Edges):
        found = {name: tensors[prefix + name] for name in PARTS if prefix + name in tensors}
        try:
            return from_tensors(found, len(template), template.fill)  # type: ignore[return-value]
        except ValueError as error:
            raise RunError(
                f"the checkpoint holds {error} for {prefix!r} where the run needs the pairs of "
                f"{len(template)} clients: it belongs to another configuration or version"
            ) from error
    join = f"{prefix}/" if prefix else ""
    if isinstance(template, Mapping):
        return {n: unflatten(v, tensors, join + n) for n, v in template.items()}  # type: ignore
    fields = template._asdict()  # type: ignore[attr-defined]
    return type(template)(**{n: unflatten(v, tensors, join + n) for n, v in fields.items()})


def save_checkpoint(
    path: Path,
    rounds: int,
    tensors: Mapping[str, Tensor],
    run: str | None = None,
    parts: Mapping[str, str] | None = None,
) -> str:
    """Write a checkpoint; the file appears whole or not at all. Its seal.

    Args:
        parts: the seals of the files that hold the rest of it, by name.
    """
    about = {"rounds": rounds, "parts": dict(parts)} if parts else {"rounds": rounds}
    return write_tensors(path, "checkpoint", tensors, run, about)


def as_checkpoint(found: TensorFile, rounds: int) -> Checkpoint:
    """What a file holds, as the state after so many rounds.

    Raises:
        ValueError: it is the state after other rounds, or damaged.
    """
    about = found.about
    check_kinds(about, {"rounds": COUNT, "parts": OBJECT}, optional=["parts"])
    if found.seal is None and _digest(found.tensors, about["rounds"]) != about.get("sha256"):
        raise ValueError("its bytes do not match their checksum")
    if about["rounds"] != rounds:
        raise ValueError(f"it is the state after round {about['rounds']}")
    return Checkpoint(rounds, found.tensors, about.get("parts") or {})


def _digest(tensors: Mapping[str, Tensor], rounds: int) -> str:
    """The checksum of files of the first format."""
    sha = hashlib.sha256(f"scool-checkpoint-1/{rounds}".encode())
    for name in sorted(tensors):
        t = tensors[name].contiguous()
        sha.update(f"{name}/{t.dtype}/{tuple(t.shape)}".encode())
        sha.update(t.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()
