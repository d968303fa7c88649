"""Per-FedAvg against its formula, and the Hessian against the exact one."""

import pytest
import torch
from torch.func import functional_call

from reference.local_steps import average, batch_gradient, stacked
from scool.algorithms import FedAvg, PerFedAvg
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import LOSSES
from toys import SIZES, assert_trees_close, classification, own_data, start, tanh_net

SGD = LocalSGD(lr=0.1, epochs=1, batch_size=3)
K = len(SIZES)


@pytest.mark.parametrize("hessian", ["none", "difference"])
def test_two_rounds_by_hand(hessian: str) -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = PerFedAvg(sgd=SGD, inner_lr=0.5, hessian=hessian)  # type: ignore[arg-type]
    state, x = method.init(engine, theta0), theta0
    most = max(-(-n // 3) for n in SIZES)

    def slope(y, i, number):
        return batch_gradient(federation, module, y, i, number, 3)

    for t in range(2):
        state, _ = method.step(engine, state, t)
        models = []
        for i, size in enumerate(SIZES):
            y = x
            for b in range(t * most, t * most + -(-size // 3)):
                inner = slope(y, i, b + 1)
                g = slope({n: y[n] - 0.5 * inner[n] for n in y}, i, b)
                bent = {n: torch.zeros_like(v) for n, v in y.items()}
                if hessian == "difference":
                    up, down = (
                        slope({n: y[n] + d * g[n] for n in y}, i, b + 2) for d in (0.01, -0.01)
                    )
                    bent = {n: (up[n] - down[n]) / 0.02 for n in y}
                y = {n: y[n] - 0.1 * (g[n] - 0.5 * bent[n]) for n in y}
            models.append(y)
        x = average(models, SIZES)
        personal = []
        for i in range(K):
            inputs, targets = own_data(federation, i, torch.float64)
            leaves = {n: v.clone().requires_grad_() for n, v in x.items()}
            LOSSES["classification"](
                functional_call(module, leaves, (inputs,)), targets
            ).mean().backward()
            personal.append({n: v.detach() - 0.5 * v.grad for n, v in leaves.items()})
        assert_trees_close(state.theta, stacked(personal), 1e-9)
    assert_trees_close(state.common, stacked([x] * K), 1e-9)


def test_the_difference_stands_for_the_hessian() -> None:
    """A step on one batch is the gradient of the loss after the inner step, up to the length of the
    difference; without it, it is not."""
    federation, module = classification((6,)), tanh_net()
    x, y = own_data(federation, 0, torch.float64)
    sgd = LocalSGD(lr=1e-2, epochs=1, batch_size=6)
    moved = {}
    for hessian in ("none", "difference"):
        engine, theta0 = start(federation, module)
        method = PerFedAvg(sgd=sgd, inner_lr=0.5, hessian=hessian)  # type: ignore[arg-type]
        state, _ = method.step(engine, method.init(engine, theta0), 0)
        moved[hessian] = {n: (theta0[n] - t[0]) / 1e-2 for n, t in state.common.items()}
    leaves = {n: t.clone().requires_grad_() for n, t in theta0.items()}
    loss = LOSSES["classification"](functional_call(module, leaves, (x,)), y).mean()
    slopes = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
    inner = {n: t - 0.5 * g for (n, t), g in zip(leaves.items(), slopes, strict=True)}
    meta = LOSSES["classification"](functional_call(module, inner, (x,)), y).mean()
    exact = dict(zip(leaves, torch.autograd.grad(meta, list(leaves.values())), strict=True))
    off = {k: max(float((m[n] - exact[n]).abs().max()) for n in exact) for k, m in moved.items()}
    assert off["difference"] < 1e-4 < 1e-2 < off["none"]


def test_a_tiny_inner_step_makes_it_fedavg() -> None:
    federation = classification((6,) * 4)  # equal sizes: both go through the same batches
    engine, theta0 = start(federation)
    meta, fedavg = PerFedAvg(sgd=SGD, inner_lr=1e-12), FedAvg(sgd=SGD)
    a, b = meta.init(engine, theta0), fedavg.init(engine, theta0)
    for t in range(2):
        a, _ = meta.step(engine, a, t)
        b, _ = fedavg.step(engine, b, t)
    assert_trees_close(a.theta, b.theta, 1e-10)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"inner_lr": 0.0}, "method fedavg"), ({"hessian": "all"}, "hessian")],
)
def test_impossible_options_are_refused(options: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        PerFedAvg(**options)
