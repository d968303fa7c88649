"""The row encoder: size, range, agreement with naive loops, edge cases."""

import pytest
import torch

from reference import attention as reference
from scool.priors.encoder import LayerwiseRowEncoder

CNN2 = {
    "conv1.weight": (32, 3, 5, 5),
    "conv1.bias": (32,),
    "conv2.weight": (64, 32, 5, 5),
    "conv2.bias": (64,),
    "fc1.weight": (512, 1600),
    "fc1.bias": (512,),
    "fc2.weight": (10, 512),
    "fc2.bias": (10,),
}
SMALL = {"a.weight": (4, 2, 3), "a.bias": (4,), "b.weight": (2, 4)}


def draw(shapes, n=None, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    lead = () if n is None else (n,)
    return {k: torch.randn((*lead, *s), generator=rng, dtype=dtype) for k, s in shapes.items()}


@pytest.mark.parametrize(("out", "count"), [(20, 31_750), (5, 30_430)])
def test_number_of_parameters_on_the_cifar_network(out, count):
    theta0 = {name: torch.empty(shape) for name, shape in CNN2.items()}
    phi = LayerwiseRowEncoder(10, out).init(theta0, 0)
    assert sum(x.numel() for x in phi.values()) == count
    for name, x in phi.items():
        tensor, part = name.split("/")
        fan_in = theta0[tensor][0].numel() if part.startswith("in") else 10
        assert x.abs().max() <= fan_in**-0.5 and x.dtype == torch.float32


def test_scores_equal_the_loops():
    encoder = LayerwiseRowEncoder(10, 5)
    phi, updates = encoder.init(draw(SMALL), 1), draw(SMALL, 3)
    u = encoder.embed(phi, updates)
    numbers = {k: v.numpy() for k, v in phi.items()}
    rows = [
        reference.embed_rows({k: v[i].numpy() for k, v in updates.items()}, numbers)
        for i in range(3)
    ]
    expected = torch.tensor([[reference.score(a, b) for b in rows] for a in rows])
    torch.testing.assert_close(u @ u.T, expected.double())


def test_scores_are_bounded_by_the_output_size():
    encoder = LayerwiseRowEncoder(10, 20)
    phi = {k: 100 * x for k, x in encoder.init(draw(SMALL), 0).items()}
    u = encoder.embed(phi, draw(SMALL, 6))
    f = u @ u.T
    assert f.abs().max() <= 20 + 1e-9 and f.max() > 15


def test_only_the_direction_of_an_update_counts():
    encoder = LayerwiseRowEncoder()
    phi, updates = encoder.init(draw(SMALL), 0), draw(SMALL, 3)
    longer = {k: 7 * x for k, x in updates.items()}
    turned = {k: -x for k, x in updates.items()}
    u = encoder.embed(phi, updates)
    torch.testing.assert_close(encoder.embed(phi, longer), u)
    torch.testing.assert_close(encoder.embed(phi, turned, sign=-1.0), u)


def test_models_that_did_not_move_and_scalar_parameters():
    shapes = {"scale": (), "w": (2, 3)}
    encoder = LayerwiseRowEncoder()
    phi = encoder.init(draw(shapes), 0)
    still = {k: torch.zeros(2, *s, dtype=torch.float64).requires_grad_() for k, s in shapes.items()}
    u = encoder.embed(phi, still)
    u.sum().backward()
    assert torch.isfinite(u).all() and all(bool(x.grad.isfinite().all()) for x in still.values())


def test_the_encoder_keeps_the_dtype_of_the_updates():
    encoder = LayerwiseRowEncoder()
    phi = encoder.init(draw(SMALL), 0)
    assert encoder.embed(phi, draw(SMALL, 2, torch.float32)).dtype == torch.float32
