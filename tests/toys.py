"""Tiny federations, models and engines that the tests of several rooms share."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from scool.data.arrays import from_arrays
from scool.data.federation import Federation
from scool.engine.local import LocalEngine
from scool.models import parameters_of
from scool.types import Params, Tree

SIZES = (5, 3, 8, 6)


def classification(
    sizes: Sequence[int] = SIZES, classes: int = 3, groups: int = 2, seed: int = 0, tests: int = 9
) -> Federation:
    """Two groups that name the same clusters differently; labels in turn, so all are held."""
    rng = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(classes, 4, generator=rng)
    clients = []
    for client, size in enumerate(sizes):
        parts = []
        for count in (size, tests):
            cluster = torch.arange(count) % classes
            x = centres[cluster] + torch.randn(count, 4, generator=rng)
            parts += [x, (cluster + client % groups) % classes]
        clients.append(tuple(parts))
    return from_arrays(
        clients,
        name="toy",
        num_classes=classes,
        classes=torch.ones(len(sizes), classes, dtype=torch.bool),
        groups=[client % groups for client in range(len(sizes))],
    )


def regression(sizes: Sequence[int] = SIZES, seed: int = 0, outputs: int = 2) -> Federation:
    """Two groups with a linear map each."""
    rng = torch.Generator().manual_seed(seed)
    maps = torch.randn(2, 4, outputs, generator=rng)
    clients = []
    for client, size in enumerate(sizes):
        x, x_test = (torch.randn(n, 4, generator=rng) for n in (size, 9))
        clients.append((x, x @ maps[client % 2], x_test, x_test @ maps[client % 2]))
    groups = [client % 2 for client in range(len(sizes))]
    return from_arrays(clients, name="toy", task="regression", groups=groups)


def poisoned(federation: Federation, client: int) -> Federation:
    """The same, with one NaN among the inputs of one client."""
    x = federation.train.x.clone()
    x[federation.train.index[client, 0]] = torch.nan
    return replace(federation, train=federation.train._replace(x=x))


def overflowing(federation: Federation, client: int) -> Federation:
    """The same, with inputs of one client that are finite but whose losses are not."""
    x = federation.train.x.clone()
    x[federation.train.index[client]] = 1e30
    return replace(federation, train=federation.train._replace(x=x))


def tanh_net(inputs: int = 4, outputs: int = 3, hidden: int = 5) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def softmax_regression(inputs: int = 4, outputs: int = 3) -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(inputs, outputs)).double()


def start(
    federation: Federation, module: nn.Module | None = None, *, seed: int = 3, **options: Any
) -> tuple[LocalEngine, Params]:
    """An engine on the CPU and the common first model, float64 unless the module says otherwise."""
    module = module or tanh_net(outputs=federation.num_outputs)
    theta0 = parameters_of(module)
    options = {"device": "cpu"} | options
    return LocalEngine(federation, module, seed=seed, **options), theta0


def scattered(engine: LocalEngine, theta0: Params, scale: float = 0.3, seed: int = 5) -> Tree:
    """Different models for different clients, around theta0; counts of batches stay whole."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: stacked
        if name.endswith("num_batches_tracked")
        else stacked
        + scale * torch.randn(stacked.shape, generator=rng, dtype=stacked.dtype).to(stacked.device)
        for name, stacked in engine.replicate(theta0).items()
    }


def row_stochastic(K: int, seed: int = 1, density: float = 1.0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    w = torch.rand(K, K, generator=rng, dtype=torch.float64)
    keep = (torch.rand(K, K, generator=rng) < density) | torch.eye(K, dtype=torch.bool)
    w = w * keep
    return w / w.sum(dim=1, keepdim=True)


def own_data(federation: Federation, client: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one client, in its own order."""
    split = federation.train
    mine = split.mask[client]
    x, y = split.x[split.index[client][mine]].to(dtype), split.y[client][mine]
    return x, y if federation.task == "classification" else y.to(dtype)


def one(tree: Tree, client: int) -> Params:
    return {name: stacked[client] for name, stacked in tree.items()}


def assert_trees_close(found: Tree, expected: Tree, atol: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=atol, msg=name)


def assert_trees_equal(found: Tree, expected: Tree) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(
            found[name], expected[name], rtol=0, atol=0, equal_nan=True, msg=name
        )


def is_finite(tree: Tree) -> bool:
    return all(bool(torch.isfinite(stacked).all()) for stacked in tree.values())
