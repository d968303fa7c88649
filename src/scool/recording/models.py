"""One client's model as one file: safetensors, with all that is needed to use it."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scool.recording.folder import RunFolder
from scool.recording.seals import (
    BOOL,
    COUNT,
    COUNTS,
    NUMBERS,
    OBJECT,
    SHAPE,
    TEXT,
    TEXTS,
    Kind,
    check_kinds,
    damaged,
    or_null,
    read_manifest,
)
from scool.recording.tensors import read_tensors, write_tensors
from scool.types import Params

FIXED = "fixed.safetensors"
"""What the models of a run have in common: frozen parameters and buffers."""


def model_name(client: int) -> str:
    """The file of a client.

    >>> model_name(7)
    'client-0007.safetensors'
    """
    return f"client-{client:04d}.safetensors"


def exported_models(path: Path) -> dict[int, Path]:
    """The files of clients' models in a folder that `scool export` wrote, or in its `models`, by
    the number of the client."""
    files = [f for place in (path, path / "models") for f in place.glob("client-*.safetensors")]
    numbers = ((file.stem.removeprefix("client-"), file) for file in sorted(files))
    return {int(number): file for number, file in numbers if number.isdecimal()}


def read_fixed(folder: RunFolder) -> Params:
    """The tensors that all models of a run share, if any.

    Raises:
        RunError: it cannot be read, or it must be there and is not.
    """
    path = folder.path / FIXED
    is_needed = FIXED in folder.listed.files or bool(
        (folder.header.get("identity") or {}).get("fixed")
    )
    if not path.exists() and not path.is_symlink() and not is_needed:
        return {}
    try:
        return folder.read(FIXED, "fixed").tensors
    except (OSError, ValueError) as error:
        raise damaged(path, error, "Bring back a whole copy of it") from error


_ABOUT: dict[str, Kind] = {
    **dict.fromkeys(("method", "name"), or_null(TEXT)),
    **dict.fromkeys(("complete", "tokens"), or_null(BOOL)),
    **dict.fromkeys(("mean", "std"), or_null(NUMBERS)),
    **dict.fromkeys(("client", "outputs"), or_null(COUNT)),
    "model": or_null(OBJECT),
    "input_shape": or_null(SHAPE),
    "classes": or_null(COUNTS),
    "class_names": or_null(TEXTS),
}


def write_model(path: Path, params: Params, about: Mapping[str, Any], run: str | None) -> str:
    """The parameters by name; `about` says which network they fit. The seal of the file."""
    return write_tensors(path, "model", params, run, about)


def exported_seals(folder: Path) -> dict[str, str]:
    """The seals of the models in a folder by file name, as a manifest there or above has them."""
    for place, prefix in ((folder, ""), (folder.parent, f"{folder.name}/")):
        with suppress(OSError, ValueError):  # `scool verify` says so; each file has its own seal
            if manifest := read_manifest(place):
                files = manifest.files.items()
                return {n.removeprefix(prefix): s for n, s in files if n.startswith(prefix)}
    return {}


def read_exported(folder: Path, client: int) -> tuple[Params, dict[str, Any]]:
    """The model of a client in a folder that `scool export` wrote.

    Raises:
        RunError: it is missing, damaged, or that of another client.
    """
    path = folder / model_name(client)
    params, about = read_model(path, exported_seals(folder).get(path.name))
    if about.get("client") not in (None, client):
        error = ValueError(f"it is the model of client {about['client']}")
        raise damaged(path, error, "Give a model that `scool export` wrote")
    return params, about


def read_model(path: Path, seal: str | None = None) -> tuple[Params, dict[str, Any]]:
    """Read what `write_model` wrote, with this seal if it is known.

    Raises:
        RunError: there is no such file, or it is another.
    """
    try:
        found = read_tensors(path, "model")
        if seal is not None and found.seal != seal:
            raise ValueError("it is not the file that was written here")
        check_kinds(found.about, {"format": TEXT, **_ABOUT}, optional=_ABOUT)
        if any(c >= (found.about.get("outputs") or 0) for c in found.about.get("classes") or []):
            raise ValueError("it names classes that its network does not have")
    except (OSError, ValueError) as error:
        raise damaged(path, error, "Give a model that `scool export` wrote") from error
    return found.tensors, found.about
