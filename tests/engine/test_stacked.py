"""Stacked layers give the outputs and gradients of the module, client by client."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from scool.engine.steps.stacked import stack_module
from scool.models import cnn2, cnn4, linear, mlp, parameters_of

NETWORKS = [
    (lambda: linear((4,), 3), (4,)),
    (lambda: mlp((2, 3), 3, (7, 5)), (2, 3)),
    (lambda: cnn2((3, 16, 20), 4), (3, 16, 20)),
    (lambda: cnn2((1, 16, 16), 4, relu_logits=True), (1, 16, 16)),
    (lambda: cnn4((3, 60, 60), 3), (3, 60, 60)),
]


@pytest.mark.parametrize(("build", "shape"), NETWORKS)
def test_outputs_and_gradients_equal_the_modules(build, shape: tuple[int, ...]) -> None:
    clients, batch = 2, 3
    modules = []
    for seed in range(clients):
        torch.manual_seed(seed)
        modules.append(build().double())
    stacked = stack_module(modules[0])
    if stacked is None:
        pytest.skip("no stacked form: goes through vmap")
    params = [parameters_of(m) for m in modules]
    theta = {n: torch.stack([p[n] for p in params]).requires_grad_() for n in params[0]}
    x = torch.randn(clients, batch, *shape, dtype=torch.float64)
    outputs = stacked(theta, x)
    weights = torch.randn_like(outputs)
    gradient = torch.autograd.grad((outputs * weights).sum(), list(theta.values()))
    for i, module in enumerate(modules):
        own = {n: p.clone().requires_grad_() for n, p in params[i].items()}
        expected = functional_call(module, own, (x[i],))
        torch.testing.assert_close(outputs[i], expected, rtol=0, atol=1e-10)
        grads = torch.autograd.grad((expected * weights[i]).sum(), list(own.values()))
        for found, g in zip(gradient, grads, strict=True):
            torch.testing.assert_close(found[i], g, rtol=0, atol=1e-9)


def test_modules_without_a_stacked_form_say_so() -> None:
    assert stack_module(nn.Sequential(nn.Linear(3, 4), nn.LSTM(4, 2))) is None
    assert stack_module(nn.Bilinear(2, 2, 2)) is None
