"""Models on the data of others, and what is drawn of them, against naive loops in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from engine.naive import mean_loss, naive_cross_loss
from scool.data.arrays import from_arrays
from scool.data.federation import Federation
from scool.data.transform import ImageTransform
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD, draw_samples
from scool.learning.losses import CrossDraw
from scool.randomness import derive, uniform
from toys import (
    SIZES,
    assert_trees_close,
    classification,
    one,
    own_data,
    regression,
    scattered,
    start,
)

ALL = CrossDraw(cross_samples=0)
K = len(SIZES)
EVERY_PAIR = torch.ones(K, K, dtype=torch.bool)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_cross_losses_over_all_samples_equal_a_loop(task: str) -> None:
    federation = classification() if task == "classification" else regression()
    engine, theta0 = start(federation)
    theta = scattered(engine, theta0)
    expected = naive_cross_loss(federation, engine.model.module, theta)
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
        clients.append((x, torch.arange(size) % 2, 255 - x[:2], torch.tensor([0, 1])))
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
