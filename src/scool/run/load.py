"""One client's model, ready for prediction, out of a result or a run folder."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from scool.data.client import find_client
from scool.data.preprocessing import Preprocessing, is_table
from scool.data.transform import ImageTransform
from scool.errors import ConfigError, RunError, first_few, require, unknown
from scool.evaluation.accuracy import own_outputs
from scool.models import ModelConfig, fixed_tensors, unstack
from scool.recording.clients import Clients, read_clients
from scool.recording.folder import RunFolder
from scool.recording.models import (
    exported_models,
    model_name,
    read_exported,
    read_fixed,
    read_model,
    write_model,
)
from scool.recording.seals import warn_damage
from scool.run.options import with_options
from scool.types import Params, Tree

BATCH = 4096
"""Samples that a model answers at a time."""


@final
class ClientModel(nn.Module):
    """One client's model. It takes inputs as the federation holds them (images as uint8, tokens as
    whole numbers), torch or numpy, or as rows of a table where the federation was made of one, and
    knows which classes it may answer with."""

    def __init__(
        self,
        network: nn.Module,
        classes: Tensor | None,
        *,
        input_shape: tuple[int, ...] | None = None,
        transform: ImageTransform | None = None,
        takes_tokens: bool = False,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.classes = classes  # (C,) bool; None: regression
        self.input_shape = input_shape  # None: not known
        self.transform = transform
        self.takes_tokens = takes_tokens
        self.preprocessing = preprocessing  # of this client alone

    def forward(self, x: Any) -> Tensor:
        """The outputs: logits of all classes, or targets."""
        inputs, first = self._fitting(x), next(self.network.parameters())
        if self.takes_tokens:
            is_whole = not inputs.is_floating_point()
            require(is_whole, "x", inputs.dtype, "give whole numbers (tokens)")
            return self.network(inputs.to(first.device, torch.int64))
        if self.transform is not None:
            inputs = self.transform.evaluate(inputs)
        return self.network(inputs.to(first.device, first.dtype))

    def predict(self, x: Any, batch: int = BATCH) -> Any:
        """The class of each sample, among those it may answer with; for regression the targets, in
        their own unit. For a table: names of classes, or targets, as pandas has them.

        Args:
            x: samples, first axis first.
            batch: how many are computed at a time.

        Raises:
            ConfigError: some samples are not finite, so that no answer would mean anything.
        """
        outputs, told = self.own_outputs(x, batch), self.preprocessing
        found = outputs if self.classes is None else outputs.argmax(dim=-1)
        return told.answers(found, x) if told is not None and is_table(x) else found

    def predict_proba(self, x: Any, batch: int = BATCH) -> Any:
        """(n, C) how probable each class is, by the softmax of the outputs; 0 for classes that the
        client never answers with. For a table: a pandas table, a column per class.

        Raises:
            ConfigError: some samples are not finite, or this is regression.
        """
        remedy = "a regression has no probabilities; `predict` gives the targets"
        require(self.classes is not None, "predict_proba", "regression", remedy)
        found, told = self.own_outputs(x, batch).softmax(dim=-1), self.preprocessing
        return told.shares(found, x) if told is not None and is_table(x) else found

    @torch.no_grad()
    def own_outputs(self, x: Any, batch: int = BATCH) -> Tensor:
        """The outputs as they are judged: minus infinity for classes that the client never answers
        with; for regression the targets in their own unit."""
        require(batch >= 1, "batch", batch, "give at least 1")
        inputs = self._fitting(x)
        self._check_finite(inputs)
        outputs = torch.cat([self(part) for part in inputs.split(batch)])
        if self.classes is None:
            return self.preprocessing.in_unit(outputs) if self.preprocessing else outputs
        return own_outputs(outputs, self.classes.to(outputs.device))

    def _fitting(self, x: Any) -> Tensor:
        """The inputs as a tensor of the right shape."""
        if is_table(x):
            remedy = "give arrays: this federation was not made of a table"
            require(self.preprocessing is not None, "x", f"a {type(x).__name__}", remedy)
            assert self.preprocessing is not None
            return torch.from_numpy(self.preprocessing.transform(x))
        inputs = x if isinstance(x, Tensor) else torch.tensor(np.asarray(x))
        shape = self.input_shape
        if shape is not None:
            is_fit = tuple(inputs.shape[1:]) == shape
            require(
                is_fit,
                "x",
                f"inputs of shape {tuple(inputs.shape)}",
                f"give (n, {', '.join(map(str, shape))})",
            )
        return inputs

    def _check_finite(self, inputs: Tensor) -> None:
        """Refuse samples that are not finite, or would not be in the numbers of the model."""
        if not inputs.is_floating_point():
            return
        dtype = next(self.network.parameters()).dtype
        is_odd = ~inputs.to(dtype).isfinite()
        if not bool(is_odd.any()):
            return
        rows = is_odd.reshape(len(inputs), -1).any(dim=1).nonzero()[:, 0].tolist()
        raise ConfigError(
            f"x has {len(rows)} of {len(inputs)} rows that are not finite as {dtype} (rows "
            f"{first_few(rows)}): fix these samples, or leave them out"
        )


Own = nn.Module | Callable[[], nn.Module]


def load_model(
    run: str | Path, client: int | str | None = None, module: Own | None = None
) -> ClientModel:
    """A client's model, from the newest checkpoint of a run or from an exported file.

    Args:
        run: a run folder, a folder that `Result.export` or `scool export` wrote, or one file of it.
        client: its number or its name; not needed where there is one model only.
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
        return _assemble(*read_model(path), module, path)
    is_run = (path / "run.json").is_file()
    exported = {} if is_run else exported_models(path)
    if not exported:
        return _assemble(*params_of(path, client), module, path)
    number = _among(exported, client, path)
    return _assemble(*read_exported(exported[number].parent, number), module, path)


def _among(exported: Mapping[int, Path], client: int | str | None, path: Path) -> int:
    """The number of a client whose model is in a folder of exported ones."""
    if client is None:
        one_of = f"{path} has {len(exported)} models; give the number or the name of a client"
        require(len(exported) == 1, "client", client, one_of)
        return next(iter(exported))
    if isinstance(client, str):
        names = {number: read_model(file)[1].get("name") for number, file in exported.items()}
        known = [name for name in names.values() if name]
        require(bool(known), "client", client, "the models here have no names; give a number")
        return next((n for n, name in names.items() if name == client), None) or unknown(
            "client", client, known
        )
    first, last = (exported[n].name for n in (min(exported), max(exported)))
    remedy = f"{path} has models from {first} to {last}"
    require(client in exported, "client", client, remedy)
    return int(client)


def theta_of(folder: RunFolder) -> tuple[int, Tree]:
    """The models of all clients in the newest checkpoint of a run that is whole, and after how many
    rounds that was. Warns where a newer one is damaged. Needs nothing but the checkpoint."""
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
    """What a client's model holds in the newest checkpoint of a run, and what it is for."""
    folder = RunFolder.open(path)
    _, theta = theta_of(folder)
    clients = read_clients(folder)
    names = clients.client_names if clients else None
    number = find_client(client, len(next(iter(theta.values()))), names)
    tensors = {**read_fixed(folder), **unstack(theta, number)}
    return tensors, about_model(folder.header, clients, number)


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


def export_models(
    theta: Tree,
    fixed: Params,
    header: Mapping[str, Any],
    clients: Clients | None,
    folder: Path,
) -> dict[Path, str]:
    """One file per client, each with what the models have in common; their seals."""
    count = len(next(iter(theta.values())))
    paths = [folder / model_name(client) for client in range(count)]
    seals: dict[Path, str] = {}
    for client, path in enumerate(paths):
        tensors = {**fixed, **unstack(theta, client)}
        about = about_model(header, clients, client)
        seals[path] = write_model(path, tensors, about, header.get("run"))
    return seals


def _assemble(
    params: Params, about: Mapping[str, Any], module: Own | None, path: Path
) -> ClientModel:
    network = _network(about, module, path, "meta")
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
    network = _network(about, module, path, "cpu")
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
