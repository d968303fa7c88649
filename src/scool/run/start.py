"""First models from a file, a former run, or tensors by name."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from scool.data.federation import Federation
from scool.errors import ConfigError, require
from scool.models import fixed_tensors, parameters_of
from scool.recording.clients import read_clients
from scool.recording.folder import RunFolder
from scool.recording.models import exported_models, read_exported, read_fixed
from scool.run.load import theta_of
from scool.run.options import Start
from scool.types import Params, Tree


class _Found(NamedTuple):
    """What a start holds."""

    common: Params  # for all clients alike
    rows: Tree | None = None  # (K, ...) each client's own
    names: Sequence[str] | None = None  # of these clients


def begin_from(
    start: str, module: nn.Module, federation: Federation
) -> tuple[nn.Module, Params, Tree | None]:
    """The module with the frozen tensors of the start, theta^0, and each client's first model
    where it has one of its own; then theta^0 is their mean.

    Raises:
        ConfigError: the start does not fit the model or the clients.
    """
    found = _read(start)
    first = parameters_of(module)
    inside = {n: tuple(t.shape) for n, t in module.state_dict().items()}
    given = {n: tuple(t.shape) for n, t in found.common.items()}
    given |= {n: tuple(t.shape[1:]) for n, t in (found.rows or {}).items()}
    for name in {**dict.fromkeys(first), **dict.fromkeys(given)}:
        if given.get(name) != inside.get(name):
            raise ConfigError(
                f"start = {start!r} does not fit the model: {name} is "
                f"{given.get(name, 'missing')} there and {inside.get(name, 'missing')} in the "
                "model. Give the first models of the same network"
            )
    common, rows = dict(found.common), dict(found.rows or {})
    for name in [n for n in rows if n not in first]:
        common[name], own = rows[name][0], rows.pop(name)
        remedy = f"{name} is frozen in the model, and there each client has its own; train it"
        require(bool((own == own[0]).all()), "start", str(start), remedy)
    module = copy.deepcopy(module)
    module.load_state_dict(common, strict=False)
    if not rows:
        return module, parameters_of(module), None
    count = len(next(iter(rows.values())))
    _check_clients(start, count, found.names, federation)
    rows = {
        n: rows[n] if n in rows else common[n].expand(count, *p.shape) for n, p in first.items()
    }
    return module, {n: t.double().mean(dim=0).to(first[n]) for n, t in rows.items()}, rows


def _check_clients(
    start: str, count: int, names: Sequence[str] | None, federation: Federation
) -> None:
    remedy = f"it has models of {count} clients, the federation has {federation.num_clients}"
    require(count == federation.num_clients, "start", str(start), remedy)
    now = federation.client_names
    if names and now and list(names) != list(now):
        i = next(i for i, (a, b) in enumerate(zip(names, now, strict=True)) if a != b)
        remedy = f"its client {i} is {names[i]!r}, here it is {now[i]!r}; give the same in order"
        require(False, "start", str(start), remedy)


def _read(start: str) -> _Found:
    """Everything as tensors on the CPU."""
    given = Start.of(start)
    assert given is not None
    if isinstance(given.given, Mapping):
        return _Found({str(n): torch.as_tensor(t).detach().cpu() for n, t in given.given.items()})
    if isinstance(given.given, str | Path):
        return _read_path(Path(given.given))
    return _of_result(given.given)


def _of_result(result: Any) -> _Found:
    rows = {n: t.detach().cpu() for n, t in result.theta.items()}
    return _Found(fixed_tensors(result.module, rows), rows, result.federation.client_names)


def _read_path(path: Path) -> _Found:
    if path.is_file():
        try:
            return _Found(load_file(path))
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"start = {str(path)!r} is not a safetensors file: give one, a run folder, or in "
                "Python the tensors by name, start=torch.load(...)"
            ) from error
    if (path / "run.json").is_file():
        folder = RunFolder.open(path)
        clients = read_clients(folder)
        _, rows = theta_of(folder)
        return _Found(read_fixed(folder), rows, clients.client_names if clients else None)
    files = exported_models(path)
    remedy = "give a .safetensors file, a run folder, or a folder of exported models"
    require(bool(files), "start", str(path), remedy)
    models = [read_exported(files[n].parent, n)[0] for n in sorted(files)]
    return _Found({}, {n: torch.stack([m[n] for m in models]) for n in models[0]})
