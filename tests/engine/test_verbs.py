"""The verbs that the baselines need, each against a naive computation in float64."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from engine.sharded_world import sharded
from scool.data.build import with_validation
from scool.engine.local import LocalEngine
from scool.engine.steps.cpu_images import LARGE
from scool.errors import ConfigError
from scool.graph.edges import Edges
from scool.learning.local_sgd import LocalSGD, Pull, Push, plan_batches
from scool.learning.losses import LOSSES, CrossDraw
from scool.models import parameters_of
from scool.types import Params, Tree
from toys import (
    SIZES,
    assert_trees_close,
    assert_trees_equal,
    classification,
    one,
    own_data,
    poisoned,
    scattered,
    start,
    tanh_net,
)

K = len(SIZES)
ALL = CrossDraw(cross_samples=0)
PLAIN = LocalSGD(lr=0.1, epochs=2, batch_size=4)

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def mean_loss(module: nn.Module, params: Params, x: Tensor, y: Tensor, task: str) -> Tensor:
    return LOSSES[task](functional_call(module, params, (x,)), y).mean()


def linear_net() -> nn.Module:
    """Has a fused form on a CPU."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def drawing_net() -> nn.Module:
    """Goes one client after another, as it draws numbers; here from an interval of length 0."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 5), nn.RReLU(0.2, 0.2), nn.Linear(5, 3)).double()


def wide_net() -> nn.Module:
    """Large and convolutional: threads."""
    torch.manual_seed(7)
    side = LARGE // 100
    layers = nn.Conv2d(1, 100, 1), nn.Flatten(), nn.Linear(400, side // 2), nn.Linear(side // 2, 3)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 2)), *layers).double()


NETS = {"vmap": tanh_net, "fused": linear_net, "loop": drawing_net, "threads": wide_net}


def naive(
    engine: LocalEngine,
    module: nn.Module,
    theta: Tree,
    sgd: LocalSGD,
    pull: Pull | Push,
    only: set[str],
) -> Tree:
    """Each client alone with torch's optimiser and the proximal or linear term written out."""
    federation = engine.federation
    plan = plan_batches(sgd, federation.train.mask, engine.owned, 1, engine.seed)
    done = []
    for client in range(K):
        x, y = own_data(federation, client, torch.float64)
        params = {n: p.clone().requires_grad_() for n, p in one(theta, client).items()}
        learning = [p for n, p in params.items() if n in only]
        optimiser = torch.optim.SGD(
            learning, lr=sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
        )
        for s in range(plan.position.shape[1]):
            rows = plan.position[client, s][plan.weight[client, s] > 0]
            if len(rows):
                loss = mean_loss(module, params, x[rows], y[rows], federation.task)
                for n, p in params.items():
                    if isinstance(pull, Push):
                        loss = loss + (pull.slope[n][client] * p).sum()
                        continue
                    away = (p - pull.anchor[n][client]).square().sum()
                    loss = loss + pull.strength / 2 * away
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        done.append({n: p.detach() for n, p in params.items()})
    return {n: torch.stack([d[n] for d in done]) for n in theta}


@pytest.mark.parametrize("net", sorted(NETS))
@pytest.mark.parametrize("sizes", [SIZES, (4, 4, 4, 4)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_pull_and_push_are_terms_of_the_objective(
    net: str, sizes: tuple[int, ...], momentum: float
) -> None:
    module = NETS[net]()
    engine, theta0 = start(classification(sizes), module)
    theta, anchor = (scattered(engine, theta0, seed=seed) for seed in (1, 2))
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=4, weight_decay=0.01, momentum=momentum)
    for pull in (Pull(anchor, 0.7), Push(anchor)):
        if isinstance(pull, Push):
            sgd = replace(sgd, weight_decay=0.0)
        away = engine.train(theta, sgd, 1).theta
        found = engine.train(theta, sgd, 1, pull=pull).theta
        assert_trees_close(found, naive(engine, module, theta, sgd, pull, set(theta)), 1e-9)
        assert any(float((found[n] - away[n]).abs().max()) > 1e-3 for n in found)


@pytest.mark.parametrize("net", sorted(NETS))
def test_only_the_named_tensors_learn(net: str) -> None:
    module = NETS[net]()
    engine, theta0 = start(classification(), module)
    theta = scattered(engine, theta0)
    only = frozenset(list(theta)[-2:])
    found = engine.train(theta, PLAIN, 1, only=only).theta
    expected = naive(engine, module, theta, PLAIN, Pull(theta, 0.0), set(only))
    assert_trees_close(found, expected, 1e-9)
    for n in theta:
        assert torch.equal(found[n], theta[n]) == (n not in only)


def test_a_pull_towards_others_is_cut_to_the_chosen_and_the_chunk() -> None:
    federation = classification()
    engine, theta0 = start(federation)
    theta, anchor = (scattered(engine, theta0, seed=seed) for seed in (1, 2))
    chosen = torch.tensor([True, False, True, True])
    whole = engine.train(theta, PLAIN, 1, pull=Pull(anchor, 0.5)).theta
    small, _ = start(federation, client_chunk=2)
    found = small.train(theta, PLAIN, 1, among=chosen, pull=Pull(anchor, 0.5)).theta
    for n in theta:
        torch.testing.assert_close(found[n][chosen], whole[n][chosen], rtol=0, atol=1e-12)
        assert torch.equal(found[n][1], theta[n][1])


@pytest.mark.parametrize("net", sorted(NETS))
def test_a_pull_on_some_tensors_leaves_the_others_alone(net: str) -> None:
    module = NETS[net]()
    engine, theta0 = start(classification((4, 4, 4, 4)), module)
    theta, anchor = (scattered(engine, theta0, seed=seed) for seed in (1, 2))
    some = dict(list(anchor.items())[:2])
    one_step = LocalSGD(lr=0.1, steps=1, batch_size=4)
    plain, pulled = (
        engine.train(theta, one_step, 0, pull=pull).theta for pull in (None, Pull(some, 0.7))
    )
    for n in theta:
        expected = plain[n] - (0.07 * (theta[n] - some[n]) if n in some else 0)
        torch.testing.assert_close(pulled[n], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("net", sorted(NETS))
def test_the_step_that_breaks_a_model_is_named(net: str) -> None:
    """Found after the phase: the first step is computed with finite models, the second is not."""
    for steps, stop in ((0, 1), (1, 0)):  # a single step is found by the model it leaves
        engine, theta0 = start(classification(), NETS[net]())
        sgd = LocalSGD(lr=1e308, weight_decay=1e3, batch_size=2, steps=steps)
        found = engine.train(engine.replicate(theta0), sgd, 4)
        assert bool(found.loss.isnan().all())
        reason = f"loss or model in round 4, step {stop}"
        assert engine.health.words == dict.fromkeys(range(K), reason)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_training_at_a_host_is_the_hosts_own_training(chunk: int, device: str) -> None:
    engine, theta0 = start(classification(), client_chunk=chunk, device=device)
    theta = scattered(engine, theta0)
    alone = engine.train_at(theta, torch.eye(K, dtype=torch.bool), PLAIN, 1)
    own = engine.train(theta, PLAIN, 1)
    assert_trees_close(alone.theta, own.theta, 1e-12)
    torch.testing.assert_close(alone.loss.diagonal(), own.loss)
    assert engine.ledger.total_messages == 0
    pairs = torch.tensor([[1, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()
    found = engine.train_at(theta, pairs, PLAIN, 1)
    rows = {n: t.clone() for n, t in found.theta.items()}  # they are lent
    assert torch.equal(found.loss.isfinite(), pairs)
    for row, (i, j) in enumerate(pairs.nonzero().tolist()):
        moved = {n: t[i].expand(K, *t[i].shape).clone() for n, t in theta.items()}
        expected = engine.train(moved, PLAIN, 1)
        for n in theta:
            torch.testing.assert_close(rows[n][row], expected.theta[n][j], rtol=0, atol=1e-12)
        torch.testing.assert_close(found.loss[i, j], expected.loss[j])
    listed = engine.train_at(theta, Edges.of(pairs), PLAIN, 1)
    assert torch.equal(listed.loss, found.loss[pairs])
    assert_trees_close(listed.theta, rows, 0.0)
    size = sum(t[0].numel() * 8 for t in theta.values())
    assert engine.ledger.messages == {"train_at": 20} and engine.ledger.total_bytes == 20 * size


def test_nobody_trains_at_a_client_in_quarantine() -> None:
    engine, theta0 = start(poisoned(classification(), 2))
    theta = scattered(engine, theta0)
    pairs = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]).bool()
    found = engine.train_at(theta, pairs, PLAIN, 0)
    assert found.loss.isfinite().nonzero().tolist() == [[1, 1], [3, 3]]
    for n in theta:
        same = [torch.equal(found.theta[n][i], theta[n][i]) for i in range(K)]
        assert same == [True, False, True, False]
    nobody = engine.train_at(theta, torch.zeros(K, K, dtype=torch.bool), PLAIN, 0)
    assert {len(t) for t in nobody.theta.values()} == {0} and bool(nobody.loss.isnan().all())


def test_peer_losses_are_the_receivers_view() -> None:
    federation = with_validation(classification(), 0.4, seed=1)
    engine, theta0 = start(federation)
    theta = scattered(engine, theta0)
    pairs = torch.rand(K, K, generator=torch.Generator().manual_seed(0)) < 0.5
    found = engine.peer_loss(theta, pairs, ALL, 0)
    sent = dict(engine.ledger.messages)
    expected = engine.cross_loss(theta, pairs.T, ALL, 0).T
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert torch.equal(found.isfinite(), pairs)
    assert sent == {"peer_models": int((pairs & ~torch.eye(K, dtype=torch.bool)).sum())}
    val = engine.peer_loss(theta, torch.ones(K, K, dtype=torch.bool), ALL, 0, split="val")
    split, module = federation.val, tanh_net()
    for i in range(K):
        mine = split.mask[i]
        x, y = split.x[split.index[i][mine]].double(), split.y[i][mine]
        for j in range(K):
            expected = mean_loss(module, one(theta, j), x, y, "classification")
            torch.testing.assert_close(val[i, j], expected.detach())


@pytest.mark.parametrize("split", ["train", "val"])
def test_gradient_is_that_of_the_whole_split(split: str) -> None:
    federation = with_validation(classification(), 0.4, seed=1)
    engine, theta0 = start(federation, client_chunk=3)
    theta = scattered(engine, theta0)
    found = engine.gradient(theta, split)  # type: ignore
    part, module = getattr(federation, split), tanh_net()
    for i in range(K):
        params = {n: p.clone().requires_grad_() for n, p in one(theta, i).items()}
        mine = part.mask[i]
        x, y = part.x[part.index[i][mine]].double(), part.y[i][mine]
        loss = mean_loss(module, params, x, y, "classification")
        loss.backward()
        torch.testing.assert_close(found.loss[i], loss.detach())
        for n, p in params.items():
            torch.testing.assert_close(found.theta[n][i], p.grad)


def test_gradient_without_samples_is_zero() -> None:
    engine, theta0 = start(classification())
    found = engine.gradient(scattered(engine, theta0), "val")
    assert bool(found.loss.isnan().all()) and engine.val_sizes.tolist() == [0] * K
    assert all(not bool(t.any()) for t in found.theta.values())


def test_inner_products_and_mixing_what_is_held() -> None:
    engine, theta0 = start(classification())
    a, b = (scattered(engine, theta0, seed=seed) for seed in (1, 2))
    flat = [torch.cat([t.flatten(1) for t in tree.values()], dim=1) for tree in (a, b)]
    torch.testing.assert_close(engine.inner(a, b), flat[0] @ flat[1].T)
    w = torch.full((K, K), 1 / K, dtype=torch.float64)
    assert_trees_equal(engine.mix(w, a, via="held"), engine.mix(w, a))
    assert engine.ledger.total_messages == K * (K - 1)  # of the second mix alone


@pytest.mark.parametrize("build", [LocalEngine, sharded])
def test_weights_are_of_every_pair_and_finite(build: Any) -> None:
    engine = build(poisoned(classification(), 1), tanh_net(), seed=3, device="cpu")
    theta = engine.replicate(parameters_of(tanh_net()))
    w = torch.full((K, K), 1 / K, dtype=torch.float64)
    odd = w.clone()
    odd[0, 2], odd[3, 1] = torch.nan, torch.inf  # also where the share of another cannot be told
    mix = partial(engine.mix, tree=theta)
    for verb in (mix, lambda w: engine.cross_gradient(theta, w, LocalSGD(steps=1), 0)):
        for wrong in (w[:, 1:], w[1:], w[None], w.flatten()):
            with pytest.raises(ConfigError, match=r"^w = \(.*give a tensor .* of shape \(4, 4\)$"):
                verb(wrong)
        with pytest.raises(ConfigError, match=r"not finite in 2 of 4 rows \(0, 3\): give finite"):
            verb(odd)
    assert engine.ledger.total_messages == 0  # nothing has travelled
    w[1] = torch.nan
    for name, t in mix(w).items():
        assert torch.equal(t[1], theta[name][1]) and bool(t.isfinite().all())


@pytest.mark.parametrize("build", [LocalEngine, sharded])
def test_weights_may_be_negative_and_have_any_sum(build: Any) -> None:
    engine = build(classification(), tanh_net(), seed=3, device="cpu")
    theta = scattered(engine, parameters_of(tanh_net()))
    w = torch.randn(K, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = {n: torch.einsum("ij,j...->i...", w, t) for n, t in theta.items()}
    assert_trees_close(engine.mix(w, theta), expected)
