"""Which run a record belongs to: its identity, the source that made it, and option names of older
versions."""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scool.contracts import Method
from scool.data.federation import Federation
from scool.errors import ConfigError, RunError
from scool.recording.folder import RunFolder
from scool.run.options import as_dict, neutral
from scool.types import Params

PACKAGE = Path(__file__).parents[1]

RENAMED = {
    "algorithm.precision": "algorithm.model_precision",
    "algorithm.prior.optimizer": "algorithm.prior.prior_optimizer",
    "settings.average": "settings.model_average",
}
GONE = {
    "algorithm.anneal": 0,
    "algorithm.cross_when": "after",
    "algorithm.validation": 0,
    "settings.personal_pull": 0,
    "between_rounds.personal_pull": 0,  # the same, in what tells a run from another
}
"""Options that SCooL (`algorithm`) or any run once had, with the value that had no effect."""


def modern(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The options of a record under the names that they have now.

    >>> modern({"settings": {"average": 0.9}, "algorithm": {"prior": {}, "anneal": 0}})
    {'settings': {'model_average': 0.9}, 'algorithm': {'prior': {}}}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        is_known = _is_known(path, values)
        if is_known and path in GONE and value == GONE[path]:
            continue
        if isinstance(value, Mapping):
            value = modern(value, f"{path}.")
        found[(RENAMED.get(path, path) if is_known else path).rpartition(".")[2]] = value
    return found


def _is_known(path: str, values: Mapping[str, Any]) -> bool:
    """Whether the tables above speak of this option: those of `algorithm` are SCooL's, which has a
    prior; another method may have one of that name."""
    is_scool = "prior" in values and "kinds" not in values  # tracks have both
    return path.rpartition(".")[0] != "algorithm" or is_scool


def check_gone(values: Mapping[str, Any]) -> None:
    """Refuse a record of a run that used an option which no longer exists.

    Raises:
        ConfigError: names it.
    """
    for path in GONE:
        part, _, name = path.rpartition(".")
        options = values.get(part, {})
        if name in options and _is_known(path, options):
            raise ConfigError(
                f"{name} = {options[name]!r} is not possible: scool had this option for a while "
                "and has it no more. Repeat the run without it, or with the version that made it"
            )


def modern_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint under the names that they have now. Slow momentum and averages
    together once were one wrapper, not one around the other.

    >>> old = dict.fromkeys(["theta/b", "method/theta/b", "method/graph/w", "velocity/b"])
    >>> list(modern_state(old))
    ['theta/b', 'method/theta/b', 'method/method/graph/w', 'method/velocity/b']
    """
    is_old = any(n.startswith("velocity/") for n in tensors)
    is_old = is_old and any(n.startswith("method/theta/") for n in tensors)
    return {_inside(name) if is_old else name: t for name, t in tensors.items()}


def _inside(name: str) -> str:
    moves = name.startswith(("method/", "velocity/")) and not name.startswith("method/theta/")
    return f"method/{name}" if moves else name


def older_names(names: frozenset[str]) -> frozenset[str]:
    """Names of tensors, and those that `modern_state` makes them of."""
    inside = ("method/method/", "method/velocity/")
    return names | {name.removeprefix("method/") for name in names if name.startswith(inside)}


def identity_of(
    method: Method[Any], federation: Federation, seed: int, theta0: Params, fixed: Params
) -> dict[str, Any]:
    """What must be the same for a run to be continued: method, data, seed and kind of model."""
    digest = hashlib.sha256(str([(name, tuple(p.shape)) for name, p in theta0.items()]).encode())
    tensors = [federation.classes]
    for split in (federation.train, federation.test):
        some = split.x.flatten()[:: 1 + split.x.numel() // 4096]
        tensors += [split.index, split.mask, split.y, some]
    for t in tensors:
        _add_to(digest, t)
    return {
        "algorithm": {"name": type(method.plain).__name__, **_options(method.plain)},
        "federation": federation.name,
        "clients": federation.num_clients,
        "seed": seed,
        "digest": digest.hexdigest()[:32],
        "fixed": _digest_of(fixed),
        "between_rounds": {"slow_momentum": 0.0, "model_average": 0.0, **method.around},
    }


def _digest_of(tensors: Params) -> str:
    """A digest of names, shapes and numbers; empty if there are none."""
    digest = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        digest.update(name.encode())
        _add_to(digest, t)
    return digest.hexdigest()[:32] if tensors else ""


def _add_to(digest: Any, t: Tensor) -> None:
    digest.update(f"{t.dtype}{tuple(t.shape)}".encode())
    digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def _options(algorithm: Any) -> dict[str, Any]:
    """The options of a method as JSON holds them; a class of your own may have others, by type."""
    options = as_dict(algorithm) if is_dataclass(algorithm) else {}
    return _as_json(options)


def _as_json(options: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(options, default=lambda value: type(value).__name__))


def check_same(folder: RunFolder, header: Mapping[str, Any], algorithm: Method[Any]) -> None:
    """Refuse to continue a run with another method, other data or another seed.

    Raises:
        RunError: names what differs.
    """
    before, now = folder.header, header["identity"]
    before_owners = (before.get("identity") or {}).get("owners", {})
    if before_owners != now.get("owners", {}):
        raise RunError(
            f"{folder.path} was made with owners that come and go otherwise ({before_owners}): "
            "continue it with what it was started with, or choose another out"
        )
    if (before.get("identity") or {}).get("objective", {}) != now.get("objective", {}):
        raise RunError(
            f"{folder.path} was made with another loss or other class_weights: continue it with "
            "what it was started with, or choose another out"
        )
    nothing = dict.fromkeys(now["between_rounds"], 0.0)
    plain = {"algorithm": _as_json(neutral(algorithm.plain)), "between_rounds": nothing}
    for name, value in modern(before.get("identity") or {}).items():
        if name in ("owners", "objective"):
            continue
        if name not in now:
            raise RunError(f"{folder.path} was made by another version of scool: it knows {name!r}")
        if not _agree(value, now[name], plain.get(name, {})):
            raise RunError(
                f"{folder.path} was made with another {_WORDS.get(name, name)}: "
                "continue it with what it was started with, or choose another out"
            )
    if (before.get("rounds_done") or 0) > header["rounds"]:
        raise RunError(
            f"rounds = {header['rounds']} is not possible: {folder.path} has done "
            f"{before['rounds_done']} already. Give as many or more"
        )


_WORDS = {"digest": "data or model", "fixed": "model (its frozen parameters or buffers differ)"}


def _agree(before: Any, now: Any, plain: Any) -> bool:
    """Equal in all options: one that is newer than the run had its default then."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return before == now
    if not before.keys() <= now.keys():
        return False
    then = {name: before.get(name, plain.get(name, value)) for name, value in now.items()}
    return all(_agree(then[name], value, plain.get(name, {})) for name, value in now.items())


@cache
def source_commit() -> str | None:
    """The commit of the clone that scool runs from, with a `+` where files of the package have
    changed since or are new. None where git cannot tell: an installed package, no git, a clone
    owned by another user."""
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # the package lies in no repository, or inside one of another project
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", ".")
    return commit + "+" if commit and changes else commit


def _git(*words: str) -> str | None:
    """The output of a git command in the package; None where git fails."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(PACKAGE), *words]
    try:
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True, env=own
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
