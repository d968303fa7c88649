"""The batched transform against one written a pixel at a time, in float64."""

import pytest
import torch
from torch import Tensor

from scool.data.transform import CIFAR10, MNIST, ImageTransform
from scool.errors import ConfigError
from scool.randomness import derive, uniform


def naive(t: ImageTransform, image: Tensor, u: list[float]) -> Tensor:
    channels, height, width = image.shape
    pixels = image.double()
    if t.padding:
        padded = torch.full(
            (channels, height + 2 * t.padding, width + 2 * t.padding), float(t.fill)
        ).double()
        padded[:, t.padding : t.padding + height, t.padding : t.padding + width] = pixels
        top, left = (int(v * (2 * t.padding + 1)) for v in u[:2])
        pixels = padded[:, top : top + height, left : left + width]
    if t.flip and u[2] < 0.5:
        pixels = pixels.flip(2)
    if t.saturation and channels == 3:
        low = max(0.0, 1 - t.saturation)
        factor = low + u[3] * (1 + t.saturation - low)
        grey = 0.299 * pixels[0] + 0.587 * pixels[1] + 0.114 * pixels[2]
        pixels = (factor * pixels + (1 - factor) * grey).clamp(0, 255)
    mean, std = (torch.tensor(v).double()[:, None, None] for v in (t.mean, t.std))
    return (pixels / 255 - mean) / std


@pytest.mark.parametrize(
    "t",
    [
        CIFAR10,
        CIFAR10.plain(),
        ImageTransform(CIFAR10.mean, CIFAR10.std, flip=True),
        ImageTransform(CIFAR10.mean, CIFAR10.std, padding=3, fill=7),
        ImageTransform(CIFAR10.mean, CIFAR10.std, saturation=1.5),
        ImageTransform((0.1,), (0.3,), padding=2, flip=True, saturation=0.9),
    ],
)
def test_agrees_with_a_loop(t: ImageTransform) -> None:
    rng = torch.Generator().manual_seed(0)
    shape = (3, 20, len(t.mean), 8, 10)
    x = torch.randint(0, 256, shape, generator=rng, dtype=torch.uint8)
    draws = uniform(derive(0, "augment"), torch.arange(3), (20, t.num_draws))
    out = t.augment(x, draws)
    assert out.shape == shape and out.dtype == torch.float32
    for i in range(3):
        for b in range(20):
            expected = naive(t, x[i, b], draws[i, b].tolist())
            torch.testing.assert_close(out[i, b].double(), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(out[1], t.augment(x[1], draws[1]), rtol=0, atol=0)


def test_evaluate_normalises_only() -> None:
    x = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    expected = torch.stack([naive(CIFAR10.plain(), image, [0] * 4) for image in x])
    torch.testing.assert_close(CIFAR10.evaluate(x).double(), expected, rtol=0, atol=1e-5)
    plain = CIFAR10.plain().augment(x, torch.rand(4, 4))
    torch.testing.assert_close(plain, CIFAR10.evaluate(x), rtol=0, atol=0)


def test_extreme_draws_keep_to_the_padding() -> None:
    x = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    draws = torch.tensor([[0.0, 0.0, 0.9, 0.5], [1 - 1e-12, 1 - 1e-12, 0.9, 0.5]]).double()
    grey = CIFAR10.evaluate(torch.full((3, 1, 1), 128, dtype=torch.uint8))
    out = CIFAR10.augment(x, draws)
    for corner, number in ((out[0, :, :4], 4 * 32), (out[1, :, -4:], 4 * 32)):
        torch.testing.assert_close(corner, grey.expand_as(corner))
        assert corner[0].numel() == number
    assert not torch.allclose(out[0, :, 4:, 4:], grey)


def test_mnist_is_left_alone() -> None:
    x = torch.randint(0, 256, (2, 1, 28, 28), dtype=torch.uint8)
    torch.testing.assert_close(MNIST.augment(x, torch.rand(2, 4)), MNIST.evaluate(x))


@pytest.mark.parametrize(
    "options", [{"std": (0.1, 0.2)}, {"std": (0.0,)}, {"padding": -1}, {"fill": 300}]
)
def test_refuses_impossible_options(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        ImageTransform(**{"mean": (0.5,), "std": (0.5,), **options})
