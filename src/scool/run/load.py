"""One client's model, ready for prediction, out of a result or a run folder."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scool.data.client import find_client
from scool.data.preprocessing import Preprocessing
from scool.data.transform import ImageTransform
from scool.errors import ConfigError, RunError, require, unknown
from scool.models import ModelConfig, fixed_tensors, unstack
from scool.models.mixture import CLASSES, LOG_WEIGHTS, MOST_MEMBERS, Mixture
from scool.recording.clients import Clients, read_clients
from scool.recording.folder import RunFolder
from scool.recording.models import (
    exported_models,
    read_exported,
    read_fixed,
    read_model,
)
from scool.recording.seals import warn_damage
from scool.run.client_model import ClientModel
from scool.run.options import with_options
from scool.types import Params, Tree

Own = nn.Module | Callable[[], nn.Module]


def load_model(
    run: str | Path, client: int | str | None = None, module: Own | None = None
) -> ClientModel:
    """A client's model, from the newest checkpoint of a run or from an exported file.

    Args:
        run: a run folder, a folder that `Result.export` or `scool export` wrote, or a single file
            of it.
        client: its number or its name; not needed where there is only one model.
        module: the network, or a function that builds it, where the run had one of its own.

    >>> import scool, tempfile
    >>> federation = scool.digits(num_clients=4, groups=2, seed=0)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = scool.fit(federation, "mlp", scool.LocalOnly(), rounds=1, out=f"{place}/run")
    ...     model = scool.load_model(f"{place}/run", client=2)
    >>> model.predict(federation.test.x[:3]).shape
    torch.Size([3])
    """
    path = Path(run)
    if path.is_file():
        return assemble(*read_model(path), module, path)
    is_run = (path / "run.json").is_file()
    exported = {} if is_run else exported_models(path)
    if not exported:
        return assemble(*params_of(path, client), module, path)
    number = _among(exported, client, path)
    return assemble(*read_exported(exported[number].parent, number), module, path)


def _among(exported: Mapping[int, Path], client: int | str | None, path: Path) -> int:
    """The number of a client whose model is in a folder of exported ones."""
    if client is None:
        one_of = f"{path} has {len(exported)} models; give the number or the name of a client"
        require(len(exported) == 1, "client", client, one_of)
        return next(iter(exported))
    if isinstance(client, str):
        numbers = {read_model(file)[1].get("name"): number for number, file in exported.items()}
        known = [name for name in numbers if name]
        require(bool(known), "client", client, "the models here have no names; give a number")
        return numbers[client] if client in numbers else unknown("client", client, known)
    first, last = (exported[n].name for n in (min(exported), max(exported)))
    remedy = f"{path} has models from {first} to {last}"
    require(client in exported, "client", client, remedy)
    return int(client)


def theta_of(folder: RunFolder) -> tuple[int, Tree]:
    """The models of all clients in the newest whole checkpoint of a run, and the rounds done then.
    Warns where a newer one is damaged. Needs nothing but the checkpoint."""
    path = folder.path
    checkpoint, problems = folder.last_checkpoint()
    if checkpoint is None and folder.header.get("status") == "finished":
        raise RunError(
            f"{path} is a finished run whose models were not kept (--checkpoint-every 0 or a "
            "light record): run it again with --checkpoint-every 10 to have them"
        )
    if checkpoint is None:
        raise RunError(f"{path} has no checkpoint yet: wait for one, or `scool resume {path}`")
    for words in problems:
        warn_damage(f"{words}. The models are those of round {checkpoint.rounds}")
    theta = {n[6:]: t for n, t in checkpoint.tensors.items() if n.startswith("theta/")}
    if not theta:
        raise RunError(f"{path} holds no models: its method keeps none in its checkpoint")
    sizes = {len(t) if t.dim() else 0 for t in theta.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise RunError(f"{path} is damaged: its models are not of one number of clients")
    return checkpoint.rounds, theta


def params_of(path: Path, client: int | str | None) -> tuple[Params, dict[str, Any]]:
    """A client's parameters in the newest checkpoint of a run, and a description of the model."""
    folder = RunFolder.open(path)
    _, theta = theta_of(folder)
    clients = read_clients(folder)
    names = clients.client_names if clients else None
    held = held_by(folder.header, theta)
    is_alone = client is None and len(held) == 1
    count = clients.num_clients if clients else max(held) + 1
    number = held[0] if is_alone else find_client(client, count, names)
    tensors = {**read_fixed(folder), **one_of(theta, folder.header, number, names)}
    return tensors, about_model(folder.header, clients, number)


def held_by(header: Mapping[str, Any], theta: Tree) -> list[int]:
    """The clients that the rows of a checkpoint belong to: all, or those of a peer."""
    return list(header.get("held") or range(len(next(iter(theta.values())))))


def one_of(
    theta: Tree, header: Mapping[str, Any], client: int, names: Sequence[str] | None = None
) -> Params:
    """The model of a client. `names` are those of all clients, for a message.

    Raises:
        RunError: the run is that of another owner, who has a machine of its own.
    """
    held = held_by(header, theta)
    if client not in held:
        who = [names[n] if names else f"client {n}" for n in (client, *held)]
        raise RunError(
            f"the run holds no model of {who[0]}: it is that of {', '.join(who[1:])}, on the "
            "machine of its owner"
        )
    return unstack(theta, held.index(client))


def about_model(header: Mapping[str, Any], clients: Clients | None, client: int) -> dict[str, Any]:
    """All that is needed to use a client's parameters, as JSON holds it."""
    config = header.get("config") or {}
    network = header.get("model") or (config.get("settings") or {}).get("model")
    about = {"method": header.get("method"), "client": client, "model": network}
    about["complete"] = header.get("complete", "fixed" in (header.get("identity") or {}))
    if clients is None:
        return about
    if client >= clients.num_clients:
        raise RunError(f"clients.safetensors is damaged: it does not know client {client}")
    is_class = clients.task == "classification"
    return about | {
        "name": clients.client_names[client] if clients.client_names else None,
        "input_shape": list(clients.input_shape),
        "outputs": clients.classes.shape[1],
        "classes": clients.classes[client].nonzero().flatten().tolist() if is_class else None,
        "class_names": clients.class_names,
        "mean": clients.mean,
        "std": clients.std,
        "tokens": clients.tokens,
        "preprocessing": _of_client(clients, client),
    }


def _of_client(clients: Clients, client: int) -> dict[str, Any] | None:
    """How rows of a table become inputs, without what belongs to other clients."""
    if clients.preprocessing is None:
        return None
    return Preprocessing.from_dict(clients.preprocessing).only(client).to_dict()


def assemble(
    params: Params, about: Mapping[str, Any], module: Own | None, path: Path
) -> ClientModel:
    """The model of these parameters, in the network given or else recorded.

    Raises:
        ConfigError: there is no network, or it is another one.
    """
    network = _as_kept(_network(about, module, path, "meta"), params, about)
    fixed = {name: tuple(t.shape) for name, t in fixed_tensors(network).items()}
    expected = {name: tuple(p.shape) for name, p in network.named_parameters()} | fixed
    found = {name: tuple(p.shape) for name, p in params.items()}
    wrong = [n for n in {**expected, **found} if expected.get(n) != found.get(n)]
    if not about.get("complete"):  # an older version recorded trainable parameters only
        wrong = [n for n in wrong if n in found or n not in fixed]
    if wrong:
        name = wrong[0]
        raise ConfigError(
            f"module is not the network of {path}: {name} is {expected.get(name, 'missing')} in "
            f"the module and {found.get(name, 'missing')} in the record. Give the one it was "
            "trained with"
        )
    network = _as_kept(_network(about, module, path, "cpu"), params, about)
    network.load_state_dict(params, strict=False)
    transform = (
        ImageTransform(tuple(about["mean"]), tuple(about["std"])) if about.get("mean") else None
    )
    classes = None
    if about.get("classes") is not None:
        classes = torch.zeros(about["outputs"], dtype=torch.bool)
        classes[about["classes"]] = True
    shape = tuple(about["input_shape"]) if about.get("input_shape") else None
    prepared = about.get("preprocessing")
    return ClientModel(
        network,
        classes,
        input_shape=shape,
        transform=transform,
        takes_tokens=bool(about.get("tokens")),
        preprocessing=Preprocessing.from_dict(prepared) if prepared else None,
    ).eval()


def _as_kept(network: nn.Module, params: Params, about: Mapping[str, Any]) -> nn.Module:
    """The network, or the mixture of several such that a method has made."""
    if LOG_WEIGHTS not in params or params[LOG_WEIGHTS].dim() != 1:
        return network
    task = "regression" if about.get("classes") is None else "classification"
    held = params.get(CLASSES)
    count = min(len(params[LOG_WEIGHTS]), MOST_MEMBERS)
    return Mixture(network, count, task, 0 if held is None else held.numel())


def _network(about: Mapping[str, Any], module: Own | None, path: Path, device: str) -> nn.Module:
    """The network given, or the one that the record names: on `meta` it has shapes and takes no
    memory, whatever sizes a record claims."""
    if isinstance(module, nn.Module):
        return copy.deepcopy(module).cpu()
    if module is not None:
        return module().cpu()
    if not about.get("model"):
        raise ConfigError(
            f"module is missing: {path} was made with a network of its own. Give it: "
            "load_model(run, client, module=...)"
        )
    if not about.get("input_shape"):
        raise ConfigError(
            f"module is missing: {path} was written by a version that did not record the shape "
            "of the inputs. Give it: load_model(run, client, module=...)"
        )
    config = with_options(ModelConfig(), about["model"], "the recorded model")
    with torch.device(device):
        return config.builder(tuple(about["input_shape"]), about["outputs"])()
