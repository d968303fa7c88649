"""The in-process engine against naive loops over clients, in float64."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from engine.naive import mean_loss, naive_training
from scool.data.arrays import from_arrays
from scool.evaluation.scores import correct
from scool.learning.local_sgd import LocalSGD, plan_batches
from scool.learning.losses import CrossDraw
from scool.models.layers import StreamDropout
from toys import (
    SIZES,
    assert_trees_close,
    assert_trees_equal,
    classification,
    one,
    own_data,
    poisoned,
    regression,
    row_stochastic,
    scattered,
    start,
    tanh_net,
)

ALL = CrossDraw(cross_samples=0)
K = len(SIZES)
EVERY_PAIR = torch.ones(K, K, dtype=torch.bool)


def sgd_of(sgd: LocalSGD) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """torch's own, with the same options."""
    options = {"lr": sgd.lr, "momentum": sgd.momentum, "weight_decay": sgd.weight_decay}
    return lambda parameters: torch.optim.SGD(parameters, **options)


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
        expected, losses = naive_training(federation, module, theta, sgd, sgd_of(sgd), round)
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
    undropped = dropout_net()
    undropped[2] = nn.Identity()
    plain, _ = naive_training(federation, undropped, theta, sgd, sgd_of(sgd), 1)
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
    expected, losses = naive_training(federation, module, theta, sgd, sgd_of(sgd))
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
