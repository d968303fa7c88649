"""Running statistics belong to the client: trained, mixed, frozen, kept and brought back.

That they are those of torch, batch by batch, is in `test_architectures`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import scool
from engine.architectures import ResNet
from engine.naive import federation_of, naive_training
from engine.sharded_world import sharded
from scool.algorithms import METHODS, FedAvg, FedBN, FedPer, LocalOnly, SCooL
from scool.algorithms.shared.sharing import mix_updates
from scool.engine.steps import formulation
from scool.errors import Note
from scool.evaluation.scores import correct
from scool.learning.local_sgd import LocalSGD
from scool.models import parameters_of
from scool.models.layers import ClientNorm, is_statistic
from scool.priors import Attention
from toys import assert_trees_close, classification, row_stochastic, scattered, start

SGD = LocalSGD(lr=0.05, epochs=1, batch_size=4)
STATISTICS = {f"1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
NORMS = STATISTICS | {"1.weight", "1.bias"}


def small(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def fit(method: Any, module: nn.Module | None = None, rounds: int = 2, **options: Any) -> Any:
    federation = options.pop("federation", classification())
    return scool.fit(federation, module or small(), method, rounds=rounds, device="cpu", **options)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_keeps_sound_statistics(name: str) -> None:
    """Also with clients whose last batch is a single sample."""
    method = METHODS[name][1]
    federation = classification((5, 9, 8, 6))
    result = fit(replace(method, sgd=SGD), federation=federation, rounds=2)
    spreads = [t for n, t in result.theta.items() if n.endswith("1.running_var")]
    assert spreads and all(bool((t > 0).all()) for t in spreads)
    assert all(bool(t.isfinite().all()) for t in result.theta.values())
    assert not any("running" in key for key in str(result.summary()))


def rows_equal(t: Tensor) -> bool:
    return bool((t == t[0]).all())


def test_fedavg_averages_the_statistics_and_fedbn_keeps_them() -> None:
    common = fit(FedAvg(sgd=SGD)).theta
    assert all(rows_equal(t) for t in common.values())
    own = fit(FedBN(sgd=SGD)).theta
    assert {n for n, t in own.items() if not rows_equal(t)} == NORMS
    same = fit(FedPer(sgd=SGD, personal="norm")).theta
    assert_trees_close(own, same, atol=0)


def test_what_is_personal_does_not_travel() -> None:
    common, own = (fit(m(sgd=SGD), rounds=1) for m in (FedAvg, FedBN))
    norm = sum(t[0].numel() for n, t in common.theta.items() if n in NORMS)
    assert common.bytes_sent - own.bytes_sent == 2 * 4 * norm * 4  # two ways, four clients, bytes
    scool_own = fit(SCooL(sgd=SGD, personal="norm")).theta
    assert all(not rows_equal(scool_own[n]) for n in STATISTICS - {"1.num_batches_tracked"})


@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_updates_are_mixed_and_statistics_averaged(scale: float) -> None:
    """Whatever the rows of the weights sum to, statistics are a mean of statistics."""
    engine, theta0 = start(classification(), small(torch.float64))
    theta = scattered(engine, theta0, scale=0.02)
    half = engine.train(theta, SGD, 0).theta
    w = row_stochastic(4) * scale
    found = mix_updates(engine, w, theta, half)
    for name, t in found.items():
        change = torch.einsum("ij,j...->i...", w, half[name] - theta[name])
        mean = torch.einsum("ij,j...->i...", w / scale, half[name])
        expected = mean if is_statistic(name) else theta[name] + change
        torch.testing.assert_close(t, expected, rtol=0, atol=1e-12)


def test_priors_and_distances_do_not_look_at_statistics() -> None:
    engine, theta0 = start(classification(), small(torch.float64))
    state = SCooL(sgd=SGD, prior=Attention()).init(engine, theta0)
    assert not any(part.startswith(tuple(STATISTICS)) for part in state.graph.phi)
    theta = scattered(engine, theta0)
    moved = theta | {n: t + 100 for n, t in theta.items() if is_statistic(n)}
    assert torch.equal(engine.squared_distances(theta), engine.squared_distances(moved))
    assert torch.equal(engine.inner(theta, moved), engine.inner(theta, theta))
    gradients = engine.gradient(theta, "train").theta
    assert not any(bool(gradients[n].any()) for n in STATISTICS)


@pytest.mark.parametrize("by", ["parameters", "evaluation"])
def test_a_frozen_layer_keeps_what_it_brought(by: str, tmp_path: Path) -> None:
    module = small()
    module(torch.randn(50, 4) * 3 + 1)  # "pretrained": it has seen something
    before = {n: b.clone() for n, b in module[1].named_buffers()}
    if by == "parameters":
        module[1].requires_grad_(False)
    else:
        module[1].eval()
    result = fit(LocalOnly(sgd=SGD), module, out=tmp_path / "run")
    assert not STATISTICS & result.theta.keys()
    model = result.model(1)
    assert all(torch.equal(b, before[n]) for n, b in model[1].named_buffers())
    loaded = scool.load_model(tmp_path / "run", 1, module=small())
    x = torch.randn(6, 4)
    assert torch.equal(loaded(x), result.outputs(1, x))


def test_pretrained_statistics_are_where_training_begins() -> None:
    module = small()
    module(torch.randn(50, 4) * 3 + 1)
    theta0 = parameters_of(module)
    assert torch.equal(theta0["1.running_mean"], module[1].running_mean)
    assert float(theta0["1.num_batches_tracked"]) == 1
    trained = fit(LocalOnly(sgd=LocalSGD(lr=1e-9, steps=1)), module, rounds=1).theta
    assert trained["1.num_batches_tracked"].tolist() == [2.0] * 4
    share = (trained["1.running_var"] - 0.9 * theta0["1.running_var"]) / 0.1
    assert bool((share > 0).all())  # of the batch


def test_resumed_to_the_bit_exported_and_loaded(tmp_path: Path) -> None:
    federation = federation_of((4, 9, 9), (6, 5))
    options = {"federation": federation, "checkpoint_every": 1}
    torch.manual_seed(0)
    module = ResNet()
    whole = fit(SCooL(sgd=SGD), module, 3, **options)
    fit(SCooL(sgd=SGD), module, 2, out=tmp_path / "run", **options)
    parts = fit(SCooL(sgd=SGD), module, 3, out=tmp_path / "run", resume=True, **options)
    assert all(torch.equal(parts.theta[n], t) for n, t in whole.theta.items())
    x = federation.test.x[:3]
    expected = whole.outputs(1, x)
    assert torch.equal(scool.load_model(tmp_path / "run", 1, module=ResNet)(x), expected)
    whole.export(tmp_path / "models")
    exported = scool.load_model(tmp_path / "models", 1, module=ResNet)
    assert torch.equal(exported(x), expected)
    counted = exported.network.bn1.num_batches_tracked
    assert counted.dtype == torch.int64 and int(counted) > 0


def test_ranks_carry_them() -> None:
    module = small(torch.float64)
    engine, theta0 = start(classification(), module)
    other = sharded(classification(), module, seed=engine.seed, device="cpu")
    theta = scattered(engine, theta0)
    assert other.norms == NORMS
    found, expected = (e.train(theta, SGD, 0).theta for e in (other, engine))
    assert_trees_close(found, expected, atol=0)
    w = row_stochastic(4)
    assert_trees_close(other.mix(w, found), engine.mix(w, expected))
    score = [e.measure(found, "test", correct) for e in (other, engine)]
    assert torch.equal(*score)


def test_workers_carry_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formulation, "suits_workers", lambda module: True)
    federation = federation_of((4, 9, 9), (5, 6))
    torch.manual_seed(0)
    module = ResNet().double()
    engine, theta0 = start(federation, module)
    assert engine._formulation._has_workers
    theta = scattered(engine, theta0, scale=0.02)
    found = engine.train(theta, SGD, 0)
    plain = lambda parameters: torch.optim.SGD(parameters, lr=SGD.lr)  # noqa: E731
    expected, _ = naive_training(federation, module, theta, SGD, plain)
    assert_trees_close(found.theta, expected, atol=1e-9)


def test_only_what_learns_changes_its_statistics() -> None:
    engine, theta0 = start(classification(), small(torch.float64))
    theta = engine.replicate(theta0)
    head = frozenset({"3.weight", "3.bias"})
    found = engine.train(theta, SGD, 0, only=head).theta
    assert {n for n in theta if not torch.equal(found[n], theta[n])} == head


def test_a_layer_that_is_used_twice_sees_both_batches() -> None:
    norm = nn.BatchNorm1d(4)
    layer = ClientNorm(norm, is_frozen=False).train()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    layer.open(torch.ones(8))
    layer(layer(x) + 1)
    found = layer.fresh
    norm(norm(x) + 1)
    assert found is not None
    torch.testing.assert_close(found.running_mean, norm.running_mean)
    torch.testing.assert_close(found.running_var, norm.running_var)
    assert int(found.num_batches_tracked) == 2


def test_without_normalisation_there_is_a_note() -> None:
    with pytest.warns(Note, match="the model has no normalisation: FedBN is FedAvg"):
        fit(FedBN(sgd=SGD), nn.Linear(4, 3), rounds=1)
