"""Meta-L2C against autograd through the whole round, torch's own Adam, and its traffic."""

import pytest
import torch
from torch import Tensor

from reference.judged import loss_on
from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import MetaL2C
from scool.data.build import with_validation
from scool.errors import ConfigError, DataError
from scool.learning.local_sgd import LocalSGD
from scool.priors.encoder import LayerwiseRowEncoder
from scool.types import Params, Tree
from toys import (
    assert_trees_close,
    assert_trees_equal,
    classification,
    one,
    poisoned,
    scattered,
    start,
    tanh_net,
)

SIZES = (8, 6, 9, 7)
K = len(SIZES)
SGD = LocalSGD(lr=0.3, epochs=2, batch_size=3)


def federation_of(sizes: tuple[int, ...] = SIZES):
    return with_validation(classification(sizes), 0.4, seed=1)


def naive_scores(phi: Params, updates: Tree, scale: str) -> Tensor:
    """<u_i, u_j>: the mean over tensors of the mean over rows of the inner products."""
    total = torch.zeros(K, K, dtype=torch.float64)
    flat = torch.cat([t.flatten(1) for t in updates.values()], dim=1)
    size = flat.square().mean(dim=1).sqrt() if scale == "rms" else flat.norm(dim=1)
    for name, t in updates.items():
        rows = (t / size.view(-1, *[1] * (t.dim() - 1))).reshape(K, t.shape[1], -1)
        inner = torch.tanh(rows @ phi[f"{name}/in_weight"].T + phi[f"{name}/in_bias"])
        outer = torch.tanh(inner @ phi[f"{name}/out_weight"].T + phi[f"{name}/out_bias"])
        total = total + torch.einsum("irk,jrk->ij", outer, outer) / t.shape[1] / len(updates)
    return total


@pytest.mark.parametrize("scale", ["rms", "norm"])
def test_two_rounds_by_autograd(scale: str) -> None:
    federation, module = federation_of(), tanh_net()
    engine, theta0 = start(federation, module)
    method = MetaL2C(sgd=SGD, input_scale=scale, meta_lr=0.2, meta_decay=0.03)  # type: ignore
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    theta = state.theta
    phi = {n: x.clone().requires_grad_() for n, x in state.phi.items()}
    adam = torch.optim.Adam(phi.values(), lr=0.2, weight_decay=0.03)
    for t in range(2):
        state, info = method.step(engine, state, t)
        half = stacked(
            [local_steps(federation, module, one(theta, i), i, SGD, t) for i in range(K)]
        )
        updates = {n: x - theta0[n] for n, x in half.items()}
        w = naive_scores(phi, updates, scale).softmax(dim=1)
        mixed = {n: x + torch.einsum("ij,j...->i...", w, half[n] - x) for n, x in theta.items()}
        losses = [loss_on(federation, "val", module, one(mixed, i), i) for i in range(K)]
        adam.zero_grad()
        (sum(losses, torch.zeros(())) / K).backward()
        adam.step()
        theta = {n: x.detach() for n, x in mixed.items()}
        torch.testing.assert_close(info["graph"], w.detach(), rtol=0, atol=1e-9)
    assert_trees_close(state.theta, theta, 1e-9)
    assert_trees_close(state.phi, {n: x.detach() for n, x in phi.items()}, 1e-6)


def test_rows_of_unit_norm_hardly_differ_and_rows_of_unit_mean_square_do() -> None:
    """Why `rms` is the default."""
    engine, theta0 = start(federation_of(), tanh_net(hidden=200))
    spread = {}
    for scale in ("rms", "norm"):
        method = MetaL2C(sgd=SGD, input_scale=scale)  # type: ignore
        state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
        _, info = method.step(engine, state, 0)
        spread[scale] = float(info["graph"].std())
    assert spread["rms"] > 10 * spread["norm"]


def test_traffic_of_updates_embeddings_and_the_encoder() -> None:
    engine, theta0 = start(federation_of((6,) * 8))
    method = MetaL2C(sgd=SGD, sparsify_round=0, fraction=0.25)
    state = method.init(engine, theta0)
    phi = sum(x.numel() * 8 for x in state.phi.values())
    rows = sum(5 * t.shape[1] for t in state.theta.values())  # encoder_out numbers a row
    for t in range(2):
        state, info = method.step(engine, state, t)
        spent = engine.ledger.close_round()
        edges = 8 * 7 if t == 0 else 8 * 2
        assert spent.messages == {"mix": edges, "gather": 8 * 7, "sum": 2 * 7 * len(state.phi)}
        assert spent.bytes == {
            "mix": edges * size_of(state.theta),
            "gather": 8 * 7 * rows * 8,
            "sum": 2 * 7 * phi,
        }
        assert torch.equal(info["graph"] > 0, state.neighbours) == (t > 0)
    assert bool((state.neighbours.sum(dim=1) == 3).all())


def test_a_client_in_quarantine_is_in_no_row() -> None:
    engine, theta0 = start(poisoned(federation_of(), 1))
    method = MetaL2C(sgd=SGD)
    state = method.init(engine, theta0)
    for t in range(2):
        state, info = method.step(engine, state, t)
    assert info["graph"][:, 1].tolist() == [0, 1, 0, 0]
    assert all(bool(x.isfinite().all()) for x in state.phi.values())


def test_the_encoder_is_that_of_the_attention_prior() -> None:
    engine, theta0 = start(federation_of())
    state = MetaL2C(encoder_hidden=4, encoder_out=3).init(engine, theta0)
    assert_trees_equal(state.phi, LayerwiseRowEncoder(4, 3).init(theta0, engine.seed))


@pytest.mark.parametrize(
    "options",
    [
        {"input_scale": "unit"},
        {"meta_lr": 0.0},
        {"meta_decay": -0.1},
        {"encoder_hidden": 0},
        {"encoder_out": 0},
        {"fraction": 0.0},
        {"sparsify_round": -2},
        {"validation": 0.0},
    ],
)
def test_options_that_are_not_possible(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        MetaL2C(**options)


def test_validation_samples_are_needed() -> None:
    engine, theta0 = start(classification(SIZES))
    with pytest.raises(DataError, match="no validation samples"):
        MetaL2C().init(engine, theta0)
