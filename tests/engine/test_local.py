"""The in-process engine against naive loops over clients, in float64."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from engine.sharded_world import sharded
from scool.data.arrays import from_arrays
from scool.data.federation import Federation
from scool.data.transform import ImageTransform
from scool.engine.device import resolve_device
from scool.engine.local import LocalEngine
from scool.errors import ConfigError, QuarantineError
from scool.evaluation.accuracy import correct
from scool.health import Reason
from scool.learning.cross import CrossDraw
from scool.learning.local_sgd import LocalSGD, draw_samples, plan_batches
from scool.learning.losses import LOSSES
from scool.models import parameters_of
from scool.models.stack import StreamDropout
from scool.randomness import derive, uniform
from scool.types import Params, Tree
from toys import (
    SIZES,
    assert_trees_close,
    assert_trees_equal,
    classification,
    is_finite,
    one,
    own_data,
    poisoned,
    regression,
    row_stochastic,
    scattered,
    softmax_regression,
    start,
    tanh_net,
)

ALL = CrossDraw(cross_samples=0)
K = len(SIZES)
EVERY_PAIR = torch.ones(K, K, dtype=torch.bool)


def mean_loss(module: nn.Module, params: Params, x: Tensor, y: Tensor, task: str) -> Tensor:
    return LOSSES[task](functional_call(module, params, (x,)), y).mean()


def naive_training(
    federation: Federation, module: nn.Module, theta: Tree, sgd: LocalSGD, round: int, seed: int
) -> tuple[Tree, Tensor]:
    """One client after another with torch's own SGD, batches of the plan."""
    plan = plan_batches(
        sgd, federation.train.mask, torch.arange(federation.num_clients), round, seed
    )
    done: list[Params] = []
    means = []
    for client in range(federation.num_clients):
        x, y = own_data(federation, client, torch.float64)
        params = {n: p.clone().requires_grad_() for n, p in one(theta, client).items()}
        optimiser = torch.optim.SGD(
            params.values(), lr=sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
        )
        losses = []
        for s in range(plan.position.shape[1]):
            rows = plan.position[client, s][plan.weight[client, s] > 0]
            if len(rows) == 0:
                continue
            optimiser.zero_grad()
            loss = mean_loss(module, params, x[rows], y[rows], federation.task)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        done.append({n: p.detach() for n, p in params.items()})
        means.append(sum(losses) / len(losses))
    return {n: torch.stack([d[n] for d in done]) for n in theta}, torch.tensor(
        means, dtype=torch.float64
    )


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize(
    "sgd",
    [
        LocalSGD(lr=0.1, epochs=3, batch_size=2),
        LocalSGD(lr=0.1, epochs=2, batch_size=3, momentum=0.9, weight_decay=0.05),
        LocalSGD(lr=0.1, steps=4, batch_size=4, weight_decay=0.1),
        LocalSGD(lr=0.1, epochs=2, batch_size=4, momentum=0.5),
    ],
)
def test_training_equals_a_loop_over_clients(task: str, sgd: LocalSGD) -> None:
    federation = classification() if task == "classification" else regression()
    module = tanh_net(outputs=federation.num_outputs)
    engine, theta0 = start(federation, module)
    theta = scattered(engine, theta0)
    before = {n: t.clone() for n, t in theta.items()}
    for round in (0, 3):
        found = engine.train(theta, sgd, round)
        expected, losses = naive_training(federation, module, theta, sgd, round, engine.seed)
        assert_trees_close(found.theta, expected, atol=1e-10)
        torch.testing.assert_close(found.loss, losses, rtol=0, atol=1e-10)
    assert_trees_equal(theta, before)  # the caller's models are not touched


def test_one_step_gives_the_stochastic_gradient() -> None:
    """D19: with S = 1 the pseudo-gradient over eta is the gradient of the first batch."""
    federation = classification()
    module = tanh_net()
    engine, theta0 = start(federation, module)
    theta = scattered(engine, theta0)
    sgd = LocalSGD(lr=0.03, steps=1, batch_size=3)
    half = engine.train(theta, sgd, 1).theta
    plan = plan_batches(sgd, federation.train.mask, torch.arange(K), 1, engine.seed)
    for client in range(K):
        x, y = own_data(federation, client, torch.float64)
        rows = plan.position[client, 0][plan.weight[client, 0] > 0]
        params = {n: p.clone().requires_grad_() for n, p in one(theta, client).items()}
        loss = mean_loss(module, params, x[rows], y[rows], federation.task)
        gradient = torch.autograd.grad(loss, list(params.values()))
        for name, g in zip(params, gradient, strict=True):
            delta = (theta[name][client] - half[name][client]) / sgd.lr
            torch.testing.assert_close(delta, g, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_results_do_not_depend_on_the_chunk(chunk: int) -> None:
    federation = classification()
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=2, momentum=0.9)
    whole, theta0 = start(federation)
    parts, _ = start(federation, client_chunk=chunk)
    theta = scattered(whole, theta0)
    expected, found = whole.train(theta, sgd, 2), parts.train(theta, sgd, 2)
    assert_trees_close(found.theta, expected.theta)
    torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-12)
    w = row_stochastic(K)
    gradients = [e.cross_gradient(theta, w, replace(sgd, steps=1), 0) for e in (whole, parts)]
    assert_trees_close(*gradients)
    scores = [e.measure(theta, "test", correct) for e in (whole, parts)]
    assert torch.equal(*scores)


def dropout_net() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)).double()


def test_dropout_belongs_to_the_client_and_the_round() -> None:
    federation = classification()
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=2, momentum=0.5, weight_decay=0.01)
    whole, theta0 = start(federation, dropout_net())
    theta = whole.replicate(theta0)
    torch.manual_seed(123)  # the global generator has no say, and is left alone
    state = torch.get_rng_state()
    expected = whole.train(theta, sgd, 1)
    assert torch.equal(torch.get_rng_state(), state)
    for chunk in (1, 3):
        parts, _ = start(federation, dropout_net(), client_chunk=chunk)
        assert_trees_equal(parts.train(theta, sgd, 1).theta, expected.theta)
    other = whole.train(theta, sgd, 2).theta
    assert any(not torch.equal(other[n], expected.theta[n]) for n in other)
    plain, _ = naive_training(federation, dropout_net().eval(), theta, sgd, 1, whole.seed)
    assert any(not torch.allclose(plain[n], expected.theta[n]) for n in plain)  # it did drop
    first, second = (whole.measure(theta, "test", correct) for _ in range(2))
    assert torch.equal(first, second)  # evaluation does not drop


class TwoDrops(nn.Module):
    """Numbers and whole channels, at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.channels = nn.Conv1d(1, 6, 2), nn.Dropout1d(0.5)
        self.inner = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(18, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.channels(self.conv(x[:, None]).relu()))


@pytest.mark.parametrize("build", [dropout_net, lambda: TwoDrops().double()])
def test_dropout_is_vectorised_and_equals_the_loop(build: Callable[[], nn.Module]) -> None:
    """The same numbers are dropped one client after another, in batches that are not padded."""
    torch.manual_seed(7)
    module = build()
    engine, theta0 = start(classification(), module)
    assert not engine.model.draws_by_itself  # no loop is needed
    theta = scattered(engine, theta0)
    sgd = LocalSGD(lr=0.1, epochs=3, batch_size=2)
    found = engine.train(theta, sgd, 1)
    engine.model._found.loops |= {True, False}
    looped = engine.train(theta, sgd, 1)
    assert_trees_close(found.theta, looped.theta, atol=1e-10)
    torch.testing.assert_close(found.loss, looped.loss, rtol=0, atol=1e-10)


def test_dropout_drops_the_right_share_and_keeps_the_mean() -> None:
    layer = StreamDropout(0.3, "x", per_channel=False).train()
    layer.stream = torch.tensor(5)
    x = torch.ones(400, 500)
    out = layer(x)
    assert abs(float((out == 0).double().mean()) - 0.3) < 0.005
    assert abs(float(out.mean()) - 1) < 0.01
    layer.stream = torch.tensor(6)
    assert not torch.equal(layer(x), out)
    whole = StreamDropout(0.5, "x", per_channel=True).train()
    whole.stream = torch.tensor(5)
    rows = whole(torch.ones(40, 6, 7)).flatten(2)
    assert bool(((rows == 0).all(dim=2) | (rows == 2).all(dim=2)).all())
    assert not StreamDropout(1.0, "x", per_channel=False).train()(x).isnan().any()


def test_dropout_of_zero_is_the_plain_network() -> None:
    """Both formulations of the hot loop agree: with p near 0 nothing is dropped."""
    federation = classification()
    module = dropout_net()
    module[2].p = 1e-300
    engine, theta0 = start(federation, module)
    theta = scattered(engine, theta0)
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=3, momentum=0.5, weight_decay=0.01)
    expected, losses = naive_training(federation, module.eval(), theta, sgd, 0, engine.seed)
    found = engine.train(theta, sgd, 0)
    assert_trees_close(found.theta, expected, atol=1e-10)
    torch.testing.assert_close(found.loss, losses, rtol=0, atol=1e-10)


def test_only_the_chosen_train() -> None:
    engine, theta0 = start(classification())
    theta = scattered(engine, theta0)
    among = torch.tensor([True, False, False, True])
    half, loss = engine.train(theta, LocalSGD(lr=0.1, epochs=1), 0, among=among)
    assert loss.isnan().tolist() == [False, True, True, False]
    for name in theta:
        same = (half[name] == theta[name]).flatten(1).all(dim=1)
        assert same.tolist() == [False, True, True, False]


# ---------------------------------------------------------------------- mixing


def test_mix_is_the_matrix_product() -> None:
    engine, theta0 = start(classification())
    x, y = scattered(engine, theta0, seed=1), scattered(engine, theta0, seed=2)
    A, B = row_stochastic(K, 1), row_stochastic(K, 2, density=0.5)
    eye = torch.eye(K, dtype=torch.float64)
    naive = {
        n: torch.stack([sum(A[i, j] * t[j] for j in range(K)) for i in range(K)])  # type: ignore
        for n, t in x.items()
    }
    assert_trees_close(engine.mix(A, x), naive)
    assert_trees_equal(engine.mix(eye, x), x)
    assert_trees_close(engine.mix(A, engine.mix(B, x)), engine.mix(A @ B, x))
    both = {n: 2 * x[n] - 3 * y[n] for n in x}
    mx, my = engine.mix(A, x), engine.mix(A, y)
    assert_trees_close(engine.mix(A, both), {n: 2 * mx[n] - 3 * my[n] for n in x})


# ---------------------------------------------------------------------- cross losses


def test_a_sparse_mix_is_the_matrix_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of different lengths, an empty one, and a client in quarantine."""
    monkeypatch.setattr("scool.engine.common.LARGE", 3)
    monkeypatch.setattr("scool.engine.common.THIN", 0.5)
    w = torch.tensor(
        [[0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.3, 0.0, 0.7], [0.0, 0.0, 0.0, 1.0]],
        dtype=torch.float64,
    )
    engine, theta0 = start(classification())
    tree = scattered(engine, theta0)
    for name, mixed in engine.mix(w, tree).items():
        expected = torch.einsum("ij,j...->i...", w, tree[name])
        torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-12)
    ill, _ = start(poisoned(classification(), 1))
    found = ill.mix(w, tree)
    monkeypatch.setattr("scool.engine.common.LARGE", 500)
    assert_trees_close(found, ill.mix(w, tree))


def naive_cross_loss(engine: LocalEngine, theta: Tree) -> Tensor:
    """Every model on all of every client's data."""
    federation = engine.federation
    result = torch.empty(K, K, dtype=torch.float64)
    for i in range(K):
        for j in range(K):
            x, y = own_data(federation, j, torch.float64)
            result[i, j] = mean_loss(engine.model.module, one(theta, i), x, y, federation.task)
    return result.detach()


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_cross_losses_over_all_samples_equal_a_loop(task: str) -> None:
    federation = classification() if task == "classification" else regression()
    engine, theta0 = start(federation)
    theta = scattered(engine, theta0)
    expected = naive_cross_loss(engine, theta)
    dense = engine.cross_loss(theta, EVERY_PAIR, ALL, 0)
    torch.testing.assert_close(dense, expected, rtol=1e-6, atol=1e-6)
    few = torch.eye(K, dtype=torch.bool)
    few[0, 2] = few[3, 1] = True
    for draw in (ALL, CrossDraw(cross_samples=0, cross_draw="pair")):
        sparse = engine.cross_loss(theta, few, draw, 0)
        torch.testing.assert_close(sparse[few], expected[few], rtol=1e-6, atol=1e-6)
        assert bool(sparse[~few].isnan().all())


def test_with_label_noise_a_sample_says_no_more_than_the_noise_allows() -> None:
    federation = classification()
    engine, theta0 = start(federation)
    theta = {name: 50 * t for name, t in scattered(engine, theta0).items()}  # very sure models
    draw = CrossDraw(cross_samples=0, cross_noise=0.2)
    classes = federation.num_outputs
    few = EVERY_PAIR & (torch.rand(K, K, generator=torch.Generator().manual_seed(0)) < 0.4)
    found = engine.cross_loss(theta, EVERY_PAIR, draw, 0)
    sparse = engine.cross_loss(theta, few, draw, 0)
    torch.testing.assert_close(sparse[few], found[few], rtol=1e-9, atol=1e-9)
    for i in range(K):
        for j in range(K):
            x, y = own_data(federation, j, torch.float64)
            logits = torch.func.functional_call(engine.model.module, one(theta, i), x)
            right = logits.softmax(dim=1).gather(1, y[:, None])
            expected = -(0.8 * right + 0.2 / classes).log().mean()
            torch.testing.assert_close(found[i, j], expected.detach(), rtol=1e-9, atol=1e-9)
    assert float(found.max()) <= math.log(classes / 0.2)
    assert float(engine.cross_loss(theta, EVERY_PAIR, ALL, 0).max()) > math.log(classes / 0.2)


def test_label_noise_needs_labels() -> None:
    engine, theta0 = start(regression())
    with pytest.raises(ConfigError, match=r"cross_noise = 0.1 .* regression"):
        engine.cross_loss(engine.replicate(theta0), EVERY_PAIR, CrossDraw(cross_noise=0.1), 0)


def test_cross_losses_of_a_draw_dense_sparse_and_naive() -> None:
    federation = classification()
    engine, theta0 = start(federation)
    theta = scattered(engine, theta0)
    draw = CrossDraw(cross_samples=3)
    dense = engine.cross_loss(theta, EVERY_PAIR, draw, 2)
    key = derive(engine.seed, "cross", 2)
    position, weight = draw_samples(federation.train.mask, torch.arange(K), 3, key)
    for j in range(K):
        x, y = own_data(federation, j, torch.float64)
        rows = position[j][weight[j] > 0]
        for i in range(K):
            value = mean_loss(
                engine.model.module, one(theta, i), x[rows], y[rows], "classification"
            )
            assert abs(float(dense[i, j]) - value.item()) < 1e-6
    ring = torch.eye(K, dtype=torch.bool) | torch.eye(K, dtype=torch.bool).roll(1, 0)
    sparse = engine.cross_loss(theta, ring, draw, 2)
    torch.testing.assert_close(sparse[ring], dense[ring], rtol=0, atol=1e-6)
    other = engine.cross_loss(theta, EVERY_PAIR, draw, 3)
    assert not torch.allclose(other, dense)  # a fresh draw every round


def test_cross_draw_by_pair_gives_every_pair_its_own_samples() -> None:
    sizes = (40,) * 4
    federation = classification(sizes)
    engine, theta0 = start(federation)
    theta = engine.replicate(theta0)  # equal models: only the draw can make rows differ
    pair = engine.cross_loss(theta, EVERY_PAIR, CrossDraw(5, "pair"), 0)
    shared = engine.cross_loss(theta, EVERY_PAIR, CrossDraw(5, "shared"), 0)
    assert torch.equal(shared, shared[:1].expand(4, 4))
    assert all(len(set(pair[:, j].tolist())) == 4 for j in range(4))
    key = derive(engine.seed, "cross", 0)
    streams = 2 * K + torch.arange(K)  # reader 2
    position, _ = draw_samples(federation.train.mask, streams, 5, key)
    x, y = own_data(federation, 3, torch.float64)
    rows = position[3]
    value = mean_loss(engine.model.module, one(theta, 2), x[rows], y[rows], "classification")
    assert abs(float(pair[2, 3]) - value.item()) < 1e-6


def images(transform: ImageTransform) -> Federation:
    rng = torch.Generator().manual_seed(0)
    clients = []
    for size in (4, 6, 3):
        x = torch.randint(256, (size, 3, 6, 6), generator=rng, dtype=torch.uint8)
        clients.append((x, torch.arange(size) % 2, x[:2], torch.tensor([0, 1])))
    return from_arrays(clients, num_classes=2, transform=transform)


def image_net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 2)).double()


def test_augmented_cross_losses_follow_their_own_draws() -> None:
    moving = ImageTransform((0.5,) * 3, (0.25,) * 3, padding=2, flip=True, saturation=0.5)
    federation = images(moving)
    engine, theta0 = start(federation, image_net())
    theta = scattered(engine, theta0, scale=0.1)
    pairs = torch.ones(3, 3, dtype=torch.bool)

    def expected(augment: bool) -> Tensor:
        result = torch.empty(3, 3, dtype=torch.float64)
        key, more = (derive(engine.seed, name, 1) for name in ("cross", "cross-augment"))
        position, weight = draw_samples(federation.train.mask, torch.arange(3), 3, key)
        numbers = uniform(more, torch.arange(3), (3, moving.num_draws))
        for j in range(3):
            rows = federation.train.index[j, position[j]]
            x = federation.train.x[rows]
            x = moving.augment(x, numbers[j]) if augment else moving.evaluate(x)
            y = federation.train.y[j, position[j]]
            for i in range(3):
                logits = functional_call(engine.model.module, one(theta, i), (x.double(),))
                values = F.cross_entropy(logits, y, reduction="none")
                result[i, j] = (values * weight[j]).sum() / weight[j].sum()
        return result.detach()

    for augment in (True, False):
        draw = CrossDraw(3, cross_augment=augment)
        found = engine.cross_loss(theta, pairs, draw, 1)
        torch.testing.assert_close(found, expected(augment), rtol=1e-5, atol=1e-5)
        few = torch.eye(3, dtype=torch.bool)
        torch.testing.assert_close(
            engine.cross_loss(theta, few, draw, 1)[few], found[few], rtol=1e-5, atol=1e-5
        )
    assert not torch.allclose(expected(True), expected(False))


def test_augmentation_in_training_is_independent_of_chunks() -> None:
    moving = ImageTransform((0.5,) * 3, (0.25,) * 3, padding=2, flip=True)
    plain = moving.plain()
    sgd = LocalSGD(lr=0.01, epochs=2, batch_size=2)
    engine, theta0 = start(images(moving), image_net())
    theta = engine.replicate(theta0)
    whole = engine.train(theta, sgd, 0).theta
    parts = start(images(moving), image_net(), client_chunk=1)[0].train(theta, sgd, 0).theta
    still = start(images(plain), image_net())[0].train(theta, sgd, 0).theta
    assert_trees_close(parts, whole)
    assert any(not torch.allclose(still[n], whole[n]) for n in whole)


# ---------------------------------------------------------------------- cross gradients


def test_cross_gradient_is_the_gradient_of_the_weighted_sum() -> None:
    federation = classification()
    module = tanh_net()
    engine, theta0 = start(federation, module)
    theta = scattered(engine, theta0)
    w = row_stochastic(K, density=0.6)
    sgd = LocalSGD(lr=0.1, steps=1, batch_size=4)
    found = engine.cross_gradient(theta, w, sgd, 1)
    plan = plan_batches(sgd, federation.train.mask, torch.arange(K), 1, engine.seed)
    for i in range(K):
        params = {n: p.clone().requires_grad_() for n, p in one(theta, i).items()}
        total = torch.zeros((), dtype=torch.float64)
        for j in range(K):
            x, y = own_data(federation, j, torch.float64)
            rows = plan.position[j, 0][plan.weight[j, 0] > 0]
            total = total + w[i, j] * mean_loss(module, params, x[rows], y[rows], "classification")
        gradient = torch.autograd.grad(total, list(params.values()))
        for name, g in zip(params, gradient, strict=True):
            torch.testing.assert_close(found[name][i], g, rtol=0, atol=1e-12)


def test_squared_distances() -> None:
    engine, theta0 = start(classification())
    theta = scattered(engine, theta0)
    flat = torch.cat([t.flatten(1) for t in theta.values()], dim=1)
    expected = (flat[:, None] - flat[None]).square().sum(dim=2)
    found = engine.squared_distances(theta)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert found.diagonal().tolist() == [0.0] * K


# ---------------------------------------------------------------------- evaluation


def test_measure_takes_each_clients_own_samples() -> None:
    rng = torch.Generator().manual_seed(0)
    counts = (4, 1, 0, 7)
    clients = [
        {
            "x_train": torch.randn(3, 4, generator=rng),
            "y_train": torch.tensor([0, 1, 2]),
            "x_test": torch.randn(n, 4, generator=rng),
            "y_test": torch.arange(n) % 3,
        }
        for n in counts
    ]
    federation = from_arrays(clients)
    module = tanh_net()
    engine, theta0 = start(federation, module)
    theta = scattered(engine, theta0)
    found = engine.measure(theta, "test", correct)
    for i, n in enumerate(counts):
        if n == 0:
            assert found[i].isnan()
            continue
        logits = functional_call(module, one(theta, i), (clients[i]["x_test"].double(),))
        share = (logits.argmax(dim=1) == clients[i]["y_test"]).double().mean()
        assert abs(float(found[i]) - float(share)) < 1e-12
    assert bool(engine.measure(theta, "val", correct).isnan().all())  # nobody has any


# ---------------------------------------------------------------------- what travels


def test_ledger_counts_messages_and_bytes() -> None:
    engine, theta0 = start(classification())
    theta = engine.replicate(theta0)
    size = 8 * (4 * 5 + 5 + 5 * 3 + 3)  # float64
    w = torch.tensor([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0.2, 0.3, 0.5, 0], [0, 0, 1, 0]]).double()
    engine.mix(w, theta)
    assert (engine.ledger.messages, engine.ledger.bytes) == ({"mix": 4}, {"mix": 4 * size})
    assert engine.ledger.close_round().total_bytes == 4 * size
    assert engine.ledger.total_messages == 0

    average = torch.tensor([0.5, 0.5, 0, 0]).double().expand(4, 4)
    engine.mix(average, theta, via="server")  # two take part: one model down, one up each
    assert engine.ledger.close_round().bytes == {"server": 4 * size}

    pairs = torch.eye(4, dtype=torch.bool)
    pairs[0, 1] = pairs[0, 2] = pairs[3, 0] = True
    engine.cross_loss(theta, pairs, ALL, 0)
    closed = engine.ledger.close_round()
    assert closed.messages == {"cross_models": 3, "cross_losses": 3, "rows": 12}
    assert closed.bytes == {"cross_models": 3 * size, "cross_losses": 12, "rows": 12 * 4 * 3}

    engine.cross_gradient(theta, w, LocalSGD(steps=1), 0)
    assert engine.ledger.close_round().bytes == {"cross_gradients": 2 * 4 * size}
    engine.train(theta, LocalSGD(), 0)
    engine.measure(theta, "test", correct)
    assert engine.ledger.close_round().total_messages == 0


def test_float32_models_travel_as_four_bytes_a_number() -> None:
    engine, theta0 = start(classification(), tanh_net().float())
    engine.mix(torch.full((4, 4), 0.25), engine.replicate(theta0))
    assert engine.ledger.total_bytes == 12 * 4 * 43


# ---------------------------------------------------------------------- quarantine


def test_a_client_with_nan_inputs_is_left_out_and_the_others_do_not_notice() -> None:
    clean, theta0 = start(classification())
    dirty, _ = start(poisoned(classification(), 1))
    assert dirty.active.tolist() == [True, False, True, True]
    assert dirty.health.words == {1: "inputs or targets"}
    theta = scattered(clean, theta0)
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=2)
    expected, found = clean.train(theta, sgd, 0), dirty.train(theta, sgd, 0)
    others = [0, 2, 3]
    for name in theta:
        assert torch.equal(found.theta[name][others], expected.theta[name][others])
        assert torch.equal(found.theta[name][1], theta[name][1])
    assert found.loss.isnan().tolist() == [False, True, False, False]
    for draw in (ALL, CrossDraw(2), CrossDraw(2, "pair")):
        losses = dirty.cross_loss(theta, EVERY_PAIR, draw, 0)
        assert bool(losses[1].isnan().all()) and bool(losses[:, 1].isnan().all())
        assert bool(losses[others][:, others].isfinite().all())


def test_the_share_of_a_quarantined_client_goes_to_the_rest_of_the_row() -> None:
    engine, theta0 = start(poisoned(classification(), 1))
    theta = scattered(engine, theta0)
    w = torch.full((4, 4), 0.25).double()
    mixed = engine.mix(w, theta)
    for name, t in theta.items():
        expected = (t[0] + t[2] + t[3]) / 3
        for i in (0, 2, 3):
            torch.testing.assert_close(mixed[name][i], expected)
        assert torch.equal(mixed[name][1], t[1])  # it keeps to itself
    assert engine.ledger.messages == {"mix": 6}


def test_regression_targets_are_checked_too() -> None:
    federation = regression()
    y = federation.train.y.clone()
    y[2, 1, 0] = torch.inf
    broken = replace(federation, train=federation.train._replace(y=y))
    assert start(broken)[0].health.words == {2: "inputs or targets"}


def test_nan_in_padding_harms_nobody() -> None:
    federation = regression()
    y = federation.train.y.clone()
    y[~federation.train.mask] = torch.nan
    engine, _ = start(replace(federation, train=federation.train._replace(y=y)))
    assert engine.health.words == {}


def test_an_exploding_learning_rate_puts_clients_into_quarantine() -> None:
    engine, theta0 = start(regression())
    theta = engine.replicate(theta0)
    half, loss = engine.train(theta, LocalSGD(lr=1e200, epochs=3, batch_size=2), 5)
    assert not engine.active.any() and bool(loss.isnan().all())
    found = set(engine.health.words.values())
    assert found == {"loss or model in round 5, step 1"}  # step 0 was computed with theta0
    assert_trees_equal(half, theta)  # they keep the models they came with
    again, loss = engine.train(theta, LocalSGD(), 6)  # nobody is left; nothing breaks
    assert_trees_equal(again, theta) and bool(loss.isnan().all())
    assert is_finite(engine.mix(row_stochastic(K), half))
    assert bool(engine.cross_loss(half, EVERY_PAIR, ALL, 6).isnan().all())


def test_strict_stops_instead() -> None:
    with pytest.raises(QuarantineError, match=r"client 1 has non-finite inputs"):
        start(poisoned(classification(), 1), strict=True)
    engine, theta0 = start(regression(), strict=True)
    with pytest.raises(QuarantineError, match="lower --lr"):
        engine.train(engine.replicate(theta0), LocalSGD(lr=1e200, batch_size=2), 0)


def test_cross_gradients_of_the_others_survive_nan_inputs() -> None:
    clean, theta0 = start(classification())
    dirty, _ = start(poisoned(classification(), 1))
    theta = scattered(clean, theta0)
    w = row_stochastic(K)
    w[[0, 2, 3], 1] = 0  # the clean federation does not use client 1 either
    sgd = LocalSGD(steps=1, batch_size=20)
    expected, found = (e.cross_gradient(theta, w, sgd, 0) for e in (clean, dirty))
    for name in theta:
        for i in (0, 2, 3):
            torch.testing.assert_close(found[name][i], expected[name][i])


@pytest.mark.parametrize("build", [LocalEngine, sharded])
def test_cross_gradients_of_weight_0_do_not_count_even_if_they_are_not_finite(build: Any) -> None:
    """The loss of model 1 is finite on the data of client 1 alone, that of model 2 on none."""
    federation = regression()
    x = federation.train.x.clone()
    x[federation.train.index[1]] = 0.0
    federation = replace(federation, train=federation.train._replace(x=x))
    module = softmax_regression(outputs=2)
    engine = build(federation, module, seed=3, device="cpu")
    engine.quarantine({2: Reason.read("loss")})
    theta = engine.replicate(parameters_of(module))
    theta["0.weight"][1:3] = 1e308
    w, sgd = row_stochastic(K), LocalSGD(steps=1, batch_size=20)
    w[1] = torch.eye(K)[1]
    found = engine.cross_gradient(theta, w, sgd, 0)
    assert is_finite(found) and all(not t[2].any() for t in found.values())
    alone = engine.gradient(theta, "train").theta
    for name, t in found.items():
        torch.testing.assert_close(t[1], alone[name][1])


def test_an_infinite_model_in_quarantine_does_not_leak_into_a_mix() -> None:
    engine, theta0 = start(classification())
    theta = engine.replicate(theta0)
    next(iter(theta.values()))[1] = torch.inf
    half, _ = engine.train(theta, LocalSGD(), 0)
    assert engine.active.tolist() == [True, False, True, True]
    mixed = engine.mix(row_stochastic(K), half)
    assert is_finite({n: t[[0, 2, 3]] for n, t in mixed.items()})


def test_the_null_model_of_a_regression_ignores_the_quarantined() -> None:
    federation = regression()
    y = federation.train.y.clone()
    y[1, 0] = torch.nan
    dirty, _ = start(replace(federation, train=federation.train._replace(y=y)))
    y = torch.cat([own_data(federation, i, torch.float64)[1] for i in (0, 2, 3)])
    expected = -0.5 * float(y.var(dim=0, correction=0).sum())
    assert abs(dirty.uniform_log_lik - expected) < 1e-6


def test_the_server_does_not_count_clients_in_quarantine() -> None:
    engine, theta0 = start(poisoned(classification(), 1))
    share = torch.tensor([0.5, 0, 0.5, 0]).double().expand(4, 4)
    engine.mix(share, engine.replicate(theta0), via="server")
    assert engine.ledger.messages == {"server": 4}


# ---------------------------------------------------------------------- devices and the rest


def test_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="auto, cpu or cuda"):
        resolve_device("gpu0")
    if not torch.cuda.is_available():
        for name in ("cuda", "cuda:1"):
            with pytest.raises(ConfigError, match="sees no CUDA"):
                start(classification(), device=name)
        assert resolve_device("auto").type == "cpu"


def test_uninformed_predictor() -> None:
    engine, _ = start(classification())
    assert abs(engine.uniform_log_lik + float(torch.tensor(3.0).log())) < 1e-6


def test_a_client_with_one_sample_trains() -> None:
    engine, theta0 = start(classification((1, 6, 1)), softmax_regression())
    half, loss = engine.train(engine.replicate(theta0), LocalSGD(lr=0.1), 0)
    assert is_finite(half) and bool(loss.isfinite().all())
