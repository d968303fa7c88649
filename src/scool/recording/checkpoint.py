"""The whole state of a run as plain tensors: written atomically, verified when read. No pickle."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from scool.errors import RunError
from scool.recording.atomic import write_bytes

FORMAT = "scool-checkpoint-1"
S = TypeVar("S")


class Checkpoint(NamedTuple):
    """What a run needs to go on."""

    rounds: int  # rounds completed
    tensors: dict[str, Tensor]


def flatten(state: Any, prefix: str = "") -> dict[str, Tensor]:
    """Tensors of nested NamedTuples and dicts by path, e.g. `graph/w`."""
    if isinstance(state, Tensor):
        return {prefix: state}
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
    join = f"{prefix}/" if prefix else ""
    if isinstance(template, Mapping):
        return {n: unflatten(v, tensors, join + n) for n, v in template.items()}  # type: ignore
    fields = template._asdict()  # type: ignore[attr-defined]
    return type(template)(**{n: unflatten(v, tensors, join + n) for n, v in fields.items()})


def _digest(tensors: Mapping[str, Tensor], rounds: int) -> str:
    """SHA-256 over names, types, shapes and bytes."""
    sha = hashlib.sha256(f"{FORMAT}/{rounds}".encode())
    for name in sorted(tensors):
        t = tensors[name].contiguous()
        sha.update(f"{name}/{t.dtype}/{tuple(t.shape)}".encode())
        sha.update(t.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def save_checkpoint(path: Path, rounds: int, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint; the file appears whole or not at all."""
    host = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    about = {"format": FORMAT, "rounds": rounds, "sha256": _digest(host, rounds)}
    # One entry: safetensors writes several in random order, and equal states shall be equal files.
    write_bytes(path, save(host, metadata={"scool": json.dumps(about)}))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises:
        RunError: the file is not a checkpoint of this version, or its bytes have changed.
    """
    remedy = f"delete {path.name} to go on from an earlier one, or start anew with `scool rerun`"
    try:
        with safe_open(path, framework="pt") as file:
            meta = json.loads((file.metadata() or {}).get("scool", "{}"))
            # Cloned, because the file's tensors are not aligned as fresh ones are, and the last
            # bit of a sum can depend on that.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}): {remedy}") from error
    if meta.get("format") != FORMAT:
        found = meta.get("format", "no format")
        raise RunError(
            f"{path} was written by another version of scool ({found}; this one reads {FORMAT}): "
            "continue with that version, or start anew with `scool rerun`"
        )
    if _digest(tensors, meta.get("rounds")) != meta.get("sha256"):
        raise RunError(f"{path} is damaged: its bytes do not match their checksum; {remedy}")
    return Checkpoint(meta["rounds"], tensors)
