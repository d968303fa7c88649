"""Losses and weights of classes, against torch's own in plain loops."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import scool
from engine.sharded_world import sharded
from scool.algorithms import FedAvg, LocalOnly
from scool.data.federation import Federation
from scool.engine.local import LocalEngine
from scool.errors import ConfigError, RunError
from scool.learning.local_sgd import LocalSGD, plan_batches
from scool.learning.losses import CrossDraw, Objective, focal, weight_words
from scool.models import parameters_of
from toys import (
    assert_trees_close,
    classification,
    own_data,
    regression,
    scattered,
    start,
    tanh_net,
)

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
ALL = CrossDraw(cross_samples=0)
EVERY = torch.ones(4, 4, dtype=torch.bool)


def skewed() -> Federation:
    """Four clients in which classes are not equally frequent."""
    federation = classification((7, 5, 8, 6))
    y = federation.train.y.clone()
    y[0, 3:], y[1, 1:], y[2, :2] = 0, 2, 1
    return federation.__class__(**{**vars(federation), "train": federation.train._replace(y=y)})


def balanced(y: Tensor) -> Tensor:
    """As scikit-learn defines it, over the classes that are there."""
    present, counts = y.unique(return_counts=True)
    weights = torch.ones(3, dtype=torch.float64)
    weights[present] = len(y) / (len(present) * counts.double())
    return weights


def naive(
    federation: Federation, module: nn.Module, theta: Any, of: Callable[..., Tensor]
) -> dict[str, Tensor]:
    """Plain SGD, one client after another; `of` (client, outputs, y) gives a loss per sample."""
    plan = plan_batches(SGD, federation.train.mask, torch.arange(4), 0, 3)
    done = []
    for client in range(4):
        module.load_state_dict({n: t[client] for n, t in theta.items()})
        x, y = own_data(federation, client, torch.float64)
        steps = torch.optim.SGD(module.parameters(), lr=SGD.lr)
        for s in range(plan.position.shape[1]):
            rows = plan.position[client, s][plan.weight[client, s] > 0]
            if len(rows):
                steps.zero_grad()
                of(client, module(x[rows]), y[rows]).mean().backward()
                steps.step()
        done.append({n: p.detach().clone() for n, p in module.named_parameters()})
    return {n: torch.stack([d[n] for d in done]) for n in theta}


def weighted(federation: Federation, words: Any) -> Callable[..., Tensor]:
    def loss(client: int, outputs: Tensor, y: Tensor) -> Tensor:
        own = balanced(own_data(federation, client, torch.float64)[1])
        weights = own if words == "balanced" else torch.tensor(words, dtype=torch.float64)
        return F.cross_entropy(outputs, y, reduction="none") * weights[y]

    return loss


def looping_net() -> nn.Module:
    module = tanh_net()
    module[1] = nn.RReLU(0.25, 0.25)  # draws, so clients train one after another
    return module


def grouped_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 1), nn.Flatten(),
                         nn.Linear(12, 3)).double()  # fmt: skip


@pytest.mark.parametrize("words", ["balanced", [0.5, 2.0, 1.0]])
@pytest.mark.parametrize("build", [tanh_net, looping_net, grouped_net])
@pytest.mark.parametrize("momentum", [0.0, 1e-12])
def test_class_weights_scale_the_losses(
    words: Any, build: Callable[[], nn.Module], momentum: float
) -> None:
    """In the fused form, by vmap, and one after another."""
    federation, module = skewed(), build()
    objective = Objective(class_weights=weight_words(words))
    engine, theta0 = start(federation, module, objective=objective)
    theta = scattered(engine, theta0)
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=3, momentum=momentum)
    found = engine.train(theta, sgd, 0).theta
    assert_trees_close(found, naive(federation, build(), theta, weighted(federation, words)), 1e-8)
    other = sharded(federation, module, seed=engine.seed, device="cpu", objective=objective)
    assert_trees_close(other.train(theta, sgd, 0).theta, found, atol=1e-12)


def test_cross_losses_and_gradients_weigh_by_the_owner_of_the_data() -> None:
    federation, module = skewed(), tanh_net()
    engine, theta0 = start(federation, module, objective=Objective(class_weights=("balanced",)))
    theta = scattered(engine, theta0)
    few = torch.eye(4, dtype=torch.bool)
    dense, sparse = (engine.cross_loss(theta, p, ALL, 0) for p in (EVERY, few))
    loss = weighted(federation, "balanced")
    gradient = engine.gradient(theta, "train")
    for i in range(4):
        module.load_state_dict({n: t[i] for n, t in theta.items()})
        for j in range(4):
            x, y = own_data(federation, j, torch.float64)
            expected = loss(j, module(x), y).mean()
            torch.testing.assert_close(dense[i, j], expected.detach(), rtol=0, atol=1e-6)
            if i == j:
                torch.testing.assert_close(sparse[i, i], dense[i, i], rtol=0, atol=1e-6)
                grads = torch.autograd.grad(expected, list(module.parameters()))
                for name, g in zip(theta, grads, strict=True):
                    torch.testing.assert_close(gradient.theta[name][i], g, rtol=0, atol=1e-9)
    w = torch.eye(4, dtype=torch.float64)
    whole = engine.cross_gradient(theta, w, LocalSGD(steps=1, batch_size=20), 0)
    assert_trees_close(whole, gradient.theta, atol=1e-9)


def _without(loss: Callable[..., Tensor], client: int, outputs: Tensor, y: Tensor) -> Tensor:
    return loss(outputs, y)


def test_named_losses_and_one_of_ones_own() -> None:
    def cubic(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.02 * (outputs - targets).abs().pow(3).sum(dim=1)

    federation, module = regression(), tanh_net(outputs=2)
    for given, plain in (
        ("huber", lambda o, y: F.huber_loss(o, y, reduction="none").sum(1)),
        (cubic, cubic),
    ):
        settings = scool.RunSettings(loss=given)  # type: ignore[arg-type]
        engine, theta0 = start(federation, module, objective=settings.objective)
        theta = scattered(engine, theta0)
        expected = naive(federation, tanh_net(outputs=2), theta, partial(_without, plain))
        assert_trees_close(engine.train(theta, SGD, 0).theta, expected, atol=1e-8)
        found = engine.cross_loss(theta, EVERY, ALL, 0)
        module.load_state_dict({n: t[1] for n, t in theta.items()})
        x, y = own_data(federation, 2, torch.float64)
        assert abs(float(found[1, 2]) - plain(module(x), y).mean().item()) < 1e-6
        y = torch.cat([own_data(federation, c, torch.float64)[1] for c in range(4)])
        null = plain(y.mean(dim=0).expand_as(y), y).mean()
        assert engine.uniform_log_lik == pytest.approx(-float(null))


def test_the_focal_loss_and_the_predictor_that_knows_nothing() -> None:
    outputs, targets = torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 1])
    p = outputs.softmax(dim=1)[torch.arange(2), targets]
    torch.testing.assert_close(focal(outputs, targets), -((1 - p) ** 2) * p.log())
    third = torch.tensor(3.0).log()
    assert Objective().uninformed(3) == Objective("cross_entropy", ("balanced",)).uninformed(3)
    assert Objective("focal").uninformed(3) == pytest.approx(float(third) * (2 / 3) ** 2)
    halved = Objective(class_weights=("1.0", "0.5", "0.0001"))
    assert halved.uninformed(3) == pytest.approx(float(third) * 1.5001 / 3, rel=1e-5)


def test_r2_stays_r2_and_the_loss_is_the_one_asked_for() -> None:
    runs = [
        scool.fit(regression(), "linear", LocalOnly(sgd=SGD), rounds=1, device="cpu", loss=loss)
        for loss in ("auto", "huber")
    ]
    federation = regression()
    test = federation.test
    for run in runs:
        outputs = [run.outputs(c, test.x[test.index[c]]) for c in range(4)]
        missed = (outputs[0] - test.y[0]).square().sum()
        variance = (test.y[0] - test.y[0].mean(0)).square().sum()
        assert float(run.score[0]) == pytest.approx(float(1 - missed / variance), abs=1e-4)
    losses = [F.huber_loss(o, test.y[c]) * 2 for c, o in enumerate(outputs)]  # two targets
    mean = float(torch.stack(losses).mean())
    assert runs[1].history[-1]["test_loss"] == pytest.approx(mean, abs=1e-4)


def test_a_run_keeps_its_objective(tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "checkpoint_every": 1}
    weighted = {"class_weights": "balanced", **options}
    whole = scool.fit(skewed(), "mlp", FedAvg(sgd=SGD), rounds=2, **weighted)
    plain = scool.fit(skewed(), "mlp", FedAvg(sgd=SGD), rounds=2, **options)
    assert not torch.equal(whole.theta["1.weight"], plain.theta["1.weight"])
    scool.fit(skewed(), "mlp", FedAvg(sgd=SGD), rounds=1, out=tmp_path / "r", **weighted)
    again: dict[str, Any] = {"rounds": 2, "out": tmp_path / "r", "resume": True}
    with pytest.raises(RunError, match="another loss or other class_weights"):
        scool.fit(skewed(), "mlp", FedAvg(sgd=SGD), **again, **options)
    parts = scool.fit(skewed(), "mlp", FedAvg(sgd=SGD), **again, **weighted)
    assert all(torch.equal(parts.theta[n], t) for n, t in whole.theta.items())


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.huber_loss(outputs, targets)


def one_number(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (classification, {"loss": "focall"}, "did you mean 'focal'"),
        (classification, {"loss": "huber"}, r"for regression.*use cross_entropy, focal"),
        (classification, {"loss": huber}, "scool has a loss of that name"),
        (classification, {"loss": 3}, r"loss = 3 .*function"),
        (classification, {"loss": one_number}, r"gives \(\) for outputs .*one number per sample"),
        (regression, {"class_weights": "balanced"}, "a regression has no classes"),
        (classification, {"class_weights": [1, 2]}, "give 3 numbers"),
        (classification, {"class_weights": [1, 0, 2]}, "positive number"),
        (classification, {"class_weights": "even"}, "give 'balanced'"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(
    data: Callable[[], Federation], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        scool.fit(data(), "linear", LocalOnly(sgd=SGD), rounds=1, device="cpu", **options)


def test_label_noise_needs_the_likelihood() -> None:
    engine = LocalEngine(
        classification(), tanh_net(), seed=0, device="cpu", objective=Objective("focal")
    )
    theta = engine.replicate(parameters_of(tanh_net()))
    with pytest.raises(ConfigError, match=r"cross_noise = 0.1 .*not a log-likelihood"):
        engine.cross_loss(theta, EVERY, CrossDraw(cross_noise=0.1), 0)
