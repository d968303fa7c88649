"""The update fused into the backward pass takes the steps of plain SGD."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from scool.data.transform import CIFAR10, MNIST
from scool.engine.steps import formulation
from scool.engine.steps.fused import FusedStack, FusedStepper
from scool.engine.steps.local_steps import GradientStepper, vmap_gradient
from scool.engine.steps.phases import Batch
from scool.learning.local_sgd import LocalSGD, Rule
from scool.learning.losses import Loss, cross_entropy, squared_error
from scool.models import Functional, cnn2, cnn4, linear, mlp, parameters_of
from scool.types import Tree
from toys import assert_trees_close, assert_trees_equal, classification, softmax_regression, start

CLIENTS, BATCH, STEPS = 3, 4, 5


def stacked_models(build: Callable[[], nn.Module], dtype: torch.dtype) -> tuple[nn.Module, Tree]:
    """Different parameters for each client."""
    modules = []
    for seed in range(CLIENTS):
        torch.manual_seed(seed)
        modules.append(build().to(dtype))
    params = [parameters_of(module) for module in modules]
    return modules[0], {name: torch.stack([p[name] for p in params]) for name in params[0]}


def batches(shape: tuple[int, ...], dtype: torch.dtype, steps: int = STEPS) -> list[Batch]:
    """Batches of different lengths, padded."""
    rng = torch.Generator().manual_seed(9)
    weight = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=dtype)
    return [
        Batch(
            torch.randn(CLIENTS, BATCH, *shape, generator=rng).to(dtype),
            torch.randint(3, (CLIENTS, BATCH), generator=rng),
            weight.roll(step, 0),
        )
        for step in range(steps)
    ]


def compare(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    decay: float = 0.0,
    atol: float = 1e-9,
    steps: int = STEPS,
) -> None:
    """Both steppers from the same models on the same batches: models, losses and outputs."""
    module, theta = stacked_models(build, dtype)
    before = {name: t.clone() for name, t in theta.items()}
    stack = FusedStack.of(module)
    assert stack is not None
    sgd = LocalSGD(lr=0.05, weight_decay=decay)
    model = Functional(module)
    fused = FusedStepper(stack, cross_entropy, Rule(sgd))
    plain = GradientStepper(vmap_gradient(model, cross_entropy), Rule(sgd))
    found, expected = fused.begin(theta, None), plain.begin(theta, None)
    for again in range(2):  # the second time in the same buffers
        if again:
            fused.load(found, theta, None)
            plain.load(expected, theta, None)
        for batch in batches(shape, dtype, steps):
            active = torch.ones(CLIENTS, dtype=torch.float64)
            losses = [s.step(b, batch, active) for s, b in ((fused, found), (plain, expected))]
            torch.testing.assert_close(*losses, rtol=atol, atol=atol)
        assert_trees_close(fused.end(found), plain.end(expected), atol=atol)
    assert_trees_equal(theta, before)  # the caller's models are not touched
    assert all(t.is_contiguous() for t in fused.end(found).values())
    x = batches(shape, dtype)[0].x
    torch.testing.assert_close(stack.outputs(theta, x), vmap(model)(theta, x), rtol=0, atol=atol)
    trained = fused.end(found)
    moved = max(float((trained[name] - theta[name]).abs().max()) for name in theta)
    assert moved > 100 * atol  # there was something to compare


DENSE = {
    "linear": (lambda: linear((4,), 3), (4,)),
    "mlp": (lambda: mlp((2, 3), 3, (7, 5)), (2, 3)),
    "two-layers-without-relu": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), (4,)),
    "relu-on-the-outputs": (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()), (4,)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", [cross_entropy, squared_error])
@pytest.mark.parametrize("build", [lambda: mlp((5, 7), 3, (8, 6)), lambda: linear((6,), 3)])
def test_steps_written_out_are_those_of_autograd_to_the_bit(
    build: Callable[[], nn.Module], loss: Loss, dtype: torch.dtype
) -> None:
    module, theta = stacked_models(build, dtype)
    stack = FusedStack.of(module)
    assert stack is not None and stack.explicit is not None
    shape = (5, 7) if len(theta) > 2 else (6,)
    rule = Rule(LocalSGD(lr=0.3, weight_decay=0.01), strength=0.1, only=frozenset([*theta][2:]))
    for rule_ in (rule, Rule(rule.sgd)):
        stepper = FusedStepper(stack, loss, rule_)
        ends = [stepper.begin(theta, theta if rule_ is rule else None) for _ in range(2)]
        for batch in batches(shape, dtype):
            if loss is squared_error:
                batch = batch._replace(y=torch.randn(CLIENTS, BATCH, 3, dtype=dtype))
            weighted = batch._replace(weight=batch.weight * torch.rand(CLIENTS, BATCH, dtype=dtype))
            for given in (batch, weighted):
                found = stepper.step(ends[0], given, torch.ones(CLIENTS))
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(stack, "explicit", None)
                    expected = stepper.step(ends[1], given, torch.ones(CLIENTS))
                assert torch.equal(found, expected)
        assert_trees_equal(*ends)
        moves = rule_ is not rule or len(theta) > 2
        assert torch.equal(ends[0][[*theta][-1]], theta[[*theta][-1]]) is not moves
    x = torch.randn(CLIENTS, 9, *shape, dtype=dtype)
    written = stack.outputs(theta, x)
    stack.explicit = None
    assert torch.equal(written, stack.outputs(theta, x))


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", DENSE)
def test_dense_stacks_equal_sgd(name: str, decay: float) -> None:
    compare(*DENSE[name], decay=decay)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_dense_stacks_on_images(decay: float) -> None:
    """`mlp` on CIFAR: pixels keep the order of the module."""
    compare(lambda: mlp((3, 4, 5), 3, (7,)), (3, 4, 5), decay=decay)


def test_a_client_without_samples_stays() -> None:
    module, theta = stacked_models(lambda: mlp((4,), 3, (5,)), torch.float64)
    stack = FusedStack.of(module)
    assert stack is not None
    stepper = FusedStepper(stack, cross_entropy, Rule(LocalSGD(lr=0.1)))
    buffers = stepper.begin(theta, None)
    batch = batches((4,), torch.float64)[0]
    batch = batch._replace(weight=batch.weight * torch.tensor([[1.0], [0.0], [1.0]]).double())
    losses = stepper.step(buffers, batch, torch.tensor([1.0, 0.0, 1.0]))
    assert losses[1] == 0
    for name, t in stepper.end(buffers).items():
        assert torch.equal(t[1], theta[name][1]) and not torch.equal(t[0], theta[name][0])


def test_regression_loss() -> None:
    module, theta = stacked_models(lambda: mlp((4,), 2, (5,)), torch.float64)
    stack = FusedStack.of(module)
    assert stack is not None
    sgd = LocalSGD(lr=0.05, weight_decay=0.03)
    fused = FusedStepper(stack, squared_error, Rule(sgd))
    plain = GradientStepper(vmap_gradient(Functional(module), squared_error), Rule(sgd))
    found, expected = fused.begin(theta, None), plain.begin(theta, None)
    for batch in batches((4,), torch.float64):
        goal = batch._replace(y=torch.randn(CLIENTS, BATCH, 2, dtype=torch.float64))
        for stepper, buffers in ((fused, found), (plain, expected)):
            stepper.step(buffers, goal, torch.ones(CLIENTS))
    assert_trees_close(fused.end(found), plain.end(expected), atol=1e-9)


def test_which_modules_have_a_fused_form() -> None:
    assert FusedStack.of(cnn2((3, 16, 16), 4)) is not None
    assert FusedStack.of(cnn2((3, 16, 16), 4, relu_logits=True)) is not None
    assert FusedStack.of(cnn4((3, 60, 60), 3)) is not None
    for module in (
        nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.GroupNorm(3, 6), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Linear(4, 3),
        nn.Sequential(nn.Linear(4, 3, bias=False)),
        nn.Sequential(nn.Linear(4, 3), nn.Tanh()),
        nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten()),
    ):
        assert FusedStack.of(module) is None, module


# ---------------------------------------------------------------------- Triton


def conv_pool() -> nn.Module:
    """Odd sides: the pool drops a row; ReLU and maximum in either order; one without a pool."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 3),  # 2 x 11 x 9 -> 3 x 9 x 7
        nn.ReLU(),
        nn.MaxPool2d(2),  # 4 x 3
        nn.Conv2d(3, 5, (2, 1)),  # 3 x 3
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(45, 3),
    )


def pool_relu() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 17, 3),  # 3 x 8 x 8 -> 17 x 6 x 6, more outputs than a block of 16
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(17, 4, 2),  # 2 x 2; rows of 34 numbers
        nn.Flatten(),
        nn.Linear(16, 3),
        nn.ReLU(),
    )


def conv_norm(colours: int = 2) -> nn.Module:
    """GroupNorm behind a ReLU; windows that overlap, and windows that drop a row and a column."""
    net = nn.Sequential(
        nn.Conv2d(colours, 16, 3),  # 2 x 11 x 9 -> 16 x 9 x 7
        nn.ReLU(),
        nn.GroupNorm(4, 16),
        nn.MaxPool2d(2),  # 4 x 3
        nn.Conv2d(16, 8, (1, 2)),  # 4 x 2
        nn.ReLU(),
        nn.GroupNorm(1, 8),
        nn.MaxPool2d(2, stride=1),  # 3 x 1
        nn.Flatten(),
        nn.Linear(24, 3),
    )
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.GroupNorm):  # some channels turned around, so that signs matter
                layer.weight.copy_(torch.randn(layer.num_channels))
                layer.bias.copy_(torch.randn(layer.num_channels))
    return net


TRITON = {
    "conv-pool": (conv_pool, (2, 11, 9)),
    "pool-relu": (pool_relu, (3, 8, 8)),
    "conv-norm": (conv_norm, (2, 11, 9)),
    "conv-norm-of-large-filters": (lambda: conv_norm(8), (8, 11, 9)),
}


def compare_kernels() -> None:
    """What the subprocess does. float32 throughout: to 1e-5 after two steps."""
    for decay in (0.0, 0.1):
        for build, shape in TRITON.values():
            compare(build, shape, torch.float32, decay, atol=1e-5, steps=2)
    compare_shared()
    compare_updates()
    compare_linear()
    compare_loss()
    compare_images()


def compare_updates() -> None:
    """The step on a convolution: positions that lie in whole rows of outputs, and others; in one
    share and in several."""
    from scool.engine.kernels import layers as triton_layers

    torch.manual_seed(0)
    tile = triton_layers.UPDATE[0]
    usual = dict(tile)
    tile["BP"] = 32
    for oh, ow, rows, share in (
        (4, 28, 1, 2000),
        (6, 14, 2, 84),
        (4, 28, 0, 70),  # a row fills a block, but twelve rows are no five shares
        (4, 40, 0, 100),
        (3, 14, 0, 2000),
    ):
        tile["share"] = share
        batch, shares = 3, max(1, round(3 * oh * ow / share))
        assert triton_layers._rows_at_once(batch, oh, ow, shares, 32) == rows
        x, g = torch.randn(2, batch, oh + 2, ow + 2, 3), torch.randn(2, batch, oh, ow, 5)
        weight, bias = torch.randn(2, 3, 3, 3, 5), torch.randn(2, 5)
        w, b = weight.clone(), bias.clone()
        triton_layers.conv_update(x, g, w, b, lr=0.1, decay=1.0)
        for i in range(2):
            patches = x[i].unfold(1, 3, 1).unfold(2, 3, 1)  # (batch, oh, ow, 3, ky, kx)
            dw = torch.einsum("byxcij,byxo->ijco", patches, g[i])
            torch.testing.assert_close(w[i], 0.9 * weight[i] - 0.1 * dw, atol=1e-3, rtol=1e-4)
            db = g[i].sum((0, 1, 2))
            torch.testing.assert_close(b[i], 0.9 * bias[i] - 0.1 * db, atol=1e-3, rtol=1e-4)
    tile.update(usual)


def compare_shared() -> None:
    """All models on the same images, which are not copied for each."""
    for build, shape in TRITON.values():
        torch.manual_seed(0)
        module = build()
        fused = FusedStack.of(module)
        assert fused is not None
        theta = {n: torch.randn(3, *p.shape) for n, p in module.named_parameters()}
        x = torch.randn(4, *shape)
        found = fused.outputs(theta, x.expand(3, *x.shape))
        copied = x.expand(3, *x.shape).clone()
        torch.testing.assert_close(found, fused.outputs(theta, copied), atol=0, rtol=0)


def compare_linear() -> None:
    """Sides that no block divides; with and without the gradient of the inputs."""
    from scool.engine.kernels.linear import linear_backward

    torch.manual_seed(0)
    for batch, inputs, outputs in ((10, 70, 130), (3, 5, 2), (33, 64, 64)):
        x, g = torch.randn(2, batch, inputs), torch.randn(2, batch, outputs)
        weight, bias = torch.randn(2, outputs, inputs), torch.randn(2, outputs)
        w, b = weight.clone(), bias.clone()
        dx = linear_backward(x, g, w, b, lr=0.1, keep=0.9, needs_dx=True)
        assert dx is not None
        torch.testing.assert_close(dx, g @ weight, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(w, 0.9 * weight - 0.1 * g.mT @ x, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(b, 0.9 * bias - 0.1 * g.sum(1), atol=1e-4, rtol=1e-4)
        again, bias = weight.clone(), bias.clone()
        assert linear_backward(x, g, again, bias, 0.1, 0.9, needs_dx=False) is None
        torch.testing.assert_close(again, w)


def compare_loss() -> None:
    """Batches and classes that fill no block; padding; a client without samples; huge outputs."""
    from scool.engine.kernels.loss import mean_cross_entropy

    torch.manual_seed(0)
    for batch, classes in ((10, 10), (3, 5), (1, 2), (16, 100)):
        outputs = (30 * torch.randn(4, batch, classes)).requires_grad_()
        y = torch.randint(classes, (4, batch))
        weight = (torch.rand(4, batch) < 0.7).float()
        weight[0], weight[1] = 1.0, 0.0
        values = cross_entropy(outputs.flatten(0, 1), y.flatten()).view_as(weight)
        means = (values * weight).sum(1) / weight.sum(1).clamp(min=1)
        (gradient,) = torch.autograd.grad(means.sum(), outputs)
        found = mean_cross_entropy(outputs.detach(), y, weight)
        torch.testing.assert_close(found, (means.detach(), gradient))
        assert found[0][1] == 0 and not found[1][1].any()
        outputs = outputs.detach().clone()
        outputs[2, 0, 0], weight[2] = torch.nan, 1.0
        means, _ = mean_cross_entropy(outputs, y, weight)
        assert means.isfinite().tolist() == [True, True, False, True]  # only its own client


def compare_images() -> None:
    """One kernel against the transform written in torch."""
    from scool.engine.kernels.images import fetch_images

    torch.manual_seed(0)
    for transform, channels, height, width in (
        (CIFAR10, 3, 9, 8),
        (replace(CIFAR10, padding=0, saturation=0.0), 3, 8, 8),
        (MNIST, 1, 6, 7),
    ):
        pool = torch.randint(256, (5, channels, height, width), dtype=torch.uint8)
        rows, draws = torch.randint(5, (2, 3)), torch.rand(2, 3, 4, dtype=torch.float64)
        found = fetch_images(pool, rows, draws, transform, torch.float32)
        torch.testing.assert_close(found, transform.augment(pool[rows], draws))
        found = fetch_images(pool, rows, None, transform, torch.float32)
        torch.testing.assert_close(found, transform.evaluate(pool[rows]))


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_convolutions_in_triton() -> None:
    """The kernels in Triton's interpreter, which must be chosen before Triton is imported."""
    here = Path(__file__).resolve()
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from engine.test_fused import compare_kernels\n"
        "compare_kernels()\n"
    )
    paths = [str(here.parents[1]), *(path for path in sys.path if path)]
    done = subprocess.run(
        [sys.executable, "-c", script, *paths],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_vmap_is_tried_only_where_steps_go_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first use loads torch's compiler, which takes a second."""
    calls: list[Batch] = []

    def counted(model: Functional, loss: Callable[..., Tensor]) -> Callable[..., object]:
        gradient = vmap_gradient(model, loss)
        return lambda theta, batch: (calls.append(batch), gradient(theta, batch))[1]

    monkeypatch.setattr(formulation, "vmap_gradient", counted)
    engine, theta0 = start(classification(), softmax_regression())
    theta = engine.replicate(theta0)
    for round in range(2):
        engine.train(theta, LocalSGD(lr=0.1, steps=3), round)
    assert not calls
    for round in range(2):
        engine.train(theta, LocalSGD(lr=0.1, steps=3, momentum=0.5), round)
    sizes = [len(batch.x) for batch in calls]
    assert sizes == [1] + 6 * [engine.num_clients]  # one trial, on one client


def test_tensors_of_the_batches_are_padded() -> None:
    """The comparisons include padding, for every client in turn."""
    weights: list[Tensor] = [batch.weight for batch in batches((4,), torch.float64)]
    assert bool((torch.stack(weights).sum(dim=(0, 2)) < STEPS * BATCH).all())


@pytest.mark.parametrize(
    "build", [lambda: mlp((4,), 3, (5,)), lambda: cnn2((3, 16, 16), 3)], ids=["mlp", "cnn2"]
)
def test_buffers_are_filled_with_chosen_rows(build: Callable[[], nn.Module]) -> None:
    module, theta = stacked_models(build, torch.float64)
    stack = FusedStack.of(module)
    assert stack is not None
    rule = Rule(LocalSGD(momentum=0.5))
    rows = torch.arange(CLIENTS).roll(1)
    rows[0] = rows[1]
    for stepper in (
        FusedStepper(stack, cross_entropy, rule),
        GradientStepper(vmap_gradient(Functional(module), cross_entropy), rule),
    ):
        buffers = stepper.begin(theta, None)
        stepper.load(buffers, theta, None, rows)
        expected = {name: t[rows] for name, t in theta.items()}
        kept, lent = stepper.end(buffers), stepper.end(buffers, lend=True)
        assert_trees_equal(kept, expected)
        assert_trees_equal(lent, expected)
        for t in buffers.values():
            t.zero_()
        assert_trees_equal(kept, expected)
        is_lent = [not bool(t.any()) for t in lent.values()]
        assert all(is_lent) or (isinstance(stepper, FusedStepper) and any(is_lent))
