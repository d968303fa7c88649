"""First models from a file, a run, a result or tensors by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import scool
from engine.sharded_world import sharded
from scool.algorithms import IFCA, METHODS, FedAvg, LocalOnly, SCooL
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from scool.models import parameters_of
from toys import assert_trees_close, assert_trees_equal, classification, start, tanh_net

SGD = LocalSGD(lr=0.1, epochs=1, batch_size=4)
STILL = LocalSGD(lr=1e-12, steps=1)  # what comes out is what went in


def fit(method: Any, model: Any = "mlp", rounds: int = 1, **options: Any) -> scool.Result:
    federation = options.pop("federation", classification())
    return scool.fit(federation, model, method, rounds=rounds, device="cpu", **options)


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> scool.Result:
    out = tmp_path_factory.mktemp("former") / "run"
    return fit(LocalOnly(sgd=SGD), rounds=2, seed=5, out=out, checkpoint_every=1)


def test_all_clients_from_one(former: scool.Result, tmp_path: Path) -> None:
    state = former.model(2).state_dict()
    save_file(state, tmp_path / "body.safetensors")
    former.export(tmp_path / "models")
    exported = next((tmp_path / "models").rglob("client-0002.safetensors"))
    for given in (state, tmp_path / "body.safetensors", str(exported)):
        found = fit(LocalOnly(sgd=STILL), start=given).theta
        assert_trees_close(found, {n: t.expand(4, *t.shape) for n, t in state.items()}, 1e-9)


def test_each_client_goes_on_from_its_own(former: scool.Result, tmp_path: Path) -> None:
    former.export(tmp_path / "models")
    for given in (former, former.run_dir, str(tmp_path / "models")):
        assert_trees_close(fit(LocalOnly(sgd=STILL), start=given).theta, former.theta, 1e-9)
    mean = {n: t.mean(dim=0).expand_as(t) for n, t in former.theta.items()}
    sizes = torch.tensor([5.0, 3, 8, 6])
    weighted = {n: torch.einsum("j,j...->...", sizes / 22, t) for n, t in former.theta.items()}
    common = fit(FedAvg(sgd=STILL), start=former).theta
    assert_trees_close(common, {n: t.expand_as(mean[n]) for n, t in weighted.items()}, 1e-6)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_goes_on(name: str, former: scool.Result) -> None:
    result = fit(METHODS[name][1], start=former)
    assert all(bool(t.isfinite().all()) for t in result.theta.values())


def test_it_helps_and_a_resumed_run_goes_on_to_the_bit(
    former: scool.Result, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"start": former.run_dir, "checkpoint_every": 1}
    whole = fit(SCooL(sgd=SGD), rounds=3, **options)
    cold = fit(SCooL(sgd=SGD), rounds=3)
    assert whole.history[0]["train_loss"] < cold.history[0]["train_loss"]
    fit(SCooL(sgd=SGD), rounds=2, out=tmp_path / "run", **options)
    parts = fit(SCooL(sgd=SGD), rounds=3, out=tmp_path / "run", resume=True, **options)
    assert_trees_equal(parts.theta, whole.theta)


def test_ranks_hold_the_rows_of_their_clients() -> None:
    module = tanh_net()
    engine, theta0 = start(classification(), module)
    other = sharded(classification(), module, seed=engine.seed, device="cpu")
    rows = {n: torch.randn(4, *p.shape, dtype=p.dtype) for n, p in theta0.items()}
    for one in (engine, other):
        one.begin_with(rows)
        assert_trees_equal(one.replicate(theta0), rows)
        one.begin_with(None)
        assert torch.equal(one.replicate(theta0)["0.bias"][3], theta0["0.bias"])
    engine.begin_with(rows)
    clusters = IFCA(num_clusters=2).init(engine, theta0).clusters
    assert torch.equal(clusters["0.bias"][0], theta0["0.bias"])  # not the model of one client


def frozen() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    module[:2].requires_grad_(False)
    return module


def test_a_frozen_body_comes_along(former: scool.Result, tmp_path: Path) -> None:
    body = frozen()
    body(torch.randn(40, 4) + 2)  # it has statistics
    first = fit(LocalOnly(sgd=SGD), body, out=tmp_path / "run", checkpoint_every=1)
    assert first.theta.keys() == {"3.weight", "3.bias"}
    for given in (first, tmp_path / "run"):
        again = fit(LocalOnly(sgd=STILL), frozen(), start=given)
        assert torch.equal(again.model(1)[0].weight, body[0].weight)
        assert torch.equal(again.model(1)[1].running_mean, body[1].running_mean)
    whole = frozen().requires_grad_(True)
    thawed = fit(LocalOnly(sgd=STILL), whole, start=first)
    torch.testing.assert_close(thawed.theta["0.weight"][1], body[0].weight)
    assert torch.equal(parameters_of(whole)["0.weight"], frozen()[0].weight)  # not touched
    with pytest.raises(ConfigError, match=r"0.weight is frozen .* each client has its own"):
        fit(LocalOnly(sgd=SGD), frozen(), start=fit(LocalOnly(sgd=SGD), whole))


def wrong(former: scool.Result, path: Path) -> list[tuple[Any, Any, str]]:
    linear: dict[str, Tensor] = scool.fit(
        classification(), "linear", LocalOnly(sgd=SGD), rounds=1, device="cpu"
    ).model(0).state_dict()  # fmt: skip
    text = path / "notes.txt"
    text.write_text("not tensors")
    return [
        (linear, None, r"does not fit the model: 1.weight is \(3, 4\) there and \(64, 4\)"),
        ({}, None, r"1.weight is missing there"),
        (text, None, "not a safetensors file"),
        (path / "nowhere", None, "give a .safetensors file"),
        (7, None, "start = 'int'.*state dict"),
        (former, classification((4, 4)), "models of 4 clients, the federation has 2"),
    ]


def test_what_does_not_fit_gets_a_sentence(former: scool.Result, tmp_path: Path) -> None:
    for given, federation, words in wrong(former, tmp_path):
        options = {} if federation is None else {"federation": federation}
        with pytest.raises(ConfigError, match=words):
            fit(LocalOnly(sgd=SGD), start=given, **options)
