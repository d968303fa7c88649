"""One client's model as one file: safetensors, with all that is needed to use it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from scool.errors import RunError
from scool.recording.atomic import write_bytes
from scool.types import Params

FORMAT = "scool-model-1"
FIXED = "fixed.safetensors"
"""What the models of a run have in common: frozen parameters and buffers."""


def model_name(client: int) -> str:
    """The file of a client.

    >>> model_name(7)
    'client-0007.safetensors'
    """
    return f"client-{client:04d}.safetensors"


def write_fixed(folder: Path, tensors: Params) -> None:
    """Write what all models of a run share; nothing where they share nothing."""
    if tensors:
        write_bytes(folder / FIXED, save({n: t.cpu().contiguous() for n, t in tensors.items()}))


def read_fixed(folder: Path) -> Params:
    """What `write_fixed` wrote.

    Raises:
        RunError: it cannot be read.
    """
    path = folder / FIXED
    if not path.is_file():
        return {}
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} cannot be read ({error}): bring a whole copy of it") from error


def write_model(path: Path, params: Params, about: Mapping[str, Any]) -> None:
    """The parameters by name; `about` says which network they fit."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in params.items()}
    meta = {"scool": json.dumps({"format": FORMAT, **about})}
    write_bytes(path, save(tensors, metadata=meta))


def read_model(path: Path) -> tuple[Params, dict[str, Any]]:
    """What `write_model` wrote.

    Raises:
        RunError: there is no such file, or it is another.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["scool"])
            params = {name: file.get_tensor(name).clone() for name in file.keys()}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not a model of one client: {error}") from error
    if about.get("format") != FORMAT:
        raise RunError(f"{path} was written by another version of scool ({about.get('format')})")
    return params, about
