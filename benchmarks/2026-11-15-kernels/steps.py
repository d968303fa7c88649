"""Milliseconds of a local step of all 100 clients on a GPU, and the kernels that take them.

    PYTHONPATH=src python benchmarks/2026-11-15-kernels/steps.py [--kernels]

The paper's two networks on random images, batch 10, in float32 (products in TF32) and bf16,
captured as in a run. First one step is compared with `vmap` in full float32: the largest relative
error of an update. `--kernels` lists what a step launches.
"""

import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from scool.data import transform
from scool.data.build import from_partition
from scool.data.federation import Federation
from scool.data.partition import noniid
from scool.engine.local import LocalEngine
from scool.engine.machine import tensor_cores
from scool.engine.steps.local_steps import GradientStepper, vmap_gradient
from scool.engine.steps.phases import Phase, stepwise
from scool.learning.local_sgd import LocalSGD, Rule, plan_batches
from scool.models import cnn2, cnn4, initial_params
from scool.types import Tree


def random_images(side: int, per_class: int) -> Federation:
    """A hundred clients with two of ten classes each."""
    y, tested = torch.arange(10).repeat_interleave(per_class), torch.arange(10)
    x = torch.randint(0, 256, (len(y), 3, side, side), dtype=torch.uint8)
    split = noniid(y, 100, 2, 0)
    return from_partition("random", x, y, x[:10], tested, split, transform=transform.CIFAR10)


def error_of_a_step(engine: LocalEngine, theta: Tree) -> float:
    """Of ten clients, by the engine's own kernels against `vmap` without tensor cores."""
    rule, ids = Rule(LocalSGD(steps=1)), engine.owned[:10]
    mine = {name: stacked[:10] for name, stacked in theta.items()}
    samples = engine.splits["train"]
    plan = plan_batches(rule.sgd, samples.split.mask[:10], ids, 0, 0)
    draws = samples.augmentation(1, ids, plan.position.shape[1:])
    phase = Phase(ids, plan.position, plan.weight.float(), plan.active, draws)
    plain = GradientStepper(vmap_gradient(engine.model, engine.loss), rule)
    wanted, _ = stepwise(plain, samples, mine, phase)
    formulation = engine._formulation
    with tensor_cores():
        stepper = formulation._stepper(rule, phase, None, mine)
        found, _ = stepwise(stepper, samples, mine, phase)
    return max(
        float((found[name] - wanted[name]).norm() / (wanted[name] - mine[name]).norm())
        for name in mine
    )


def show_kernels(engine: LocalEngine, theta: Tree, steps: int) -> None:
    sgd = LocalSGD(steps=steps)
    engine.train(theta, sgd, 0)  # captured
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        engine.train(theta, sgd, 1)
        torch.cuda.synchronize()
    rows = sorted(trace.key_averages(), key=lambda event: -event.device_time_total)
    for event in rows[:20]:
        share = event.device_time_total / steps
        print(f"  {share:8.1f} us, {event.count / steps:.1f} launches: {event.key[:70]}")


def measure(name: str, build: Callable[..., nn.Module], side: int, per_class: int) -> None:
    federation = random_images(side, per_class)
    module, first = initial_params(lambda: build((3, side, side), 10), 0)
    sgd = LocalSGD(steps=200)
    for precision in ("float32", "bf16"):
        engine = LocalEngine(federation, module, seed=0, device="cuda", precision=precision)
        theta = engine.train(engine.replicate(first), sgd, 0).theta
        error = error_of_a_step(engine, theta)
        torch.cuda.synchronize()
        began = time.perf_counter()
        engine.train(theta, sgd, 1)
        torch.cuda.synchronize()
        spent = (time.perf_counter() - began) / sgd.steps
        print(f"{name} {precision}: {spent * 1e3:.3f} ms a step, error {error:.3f}", flush=True)
        if "--kernels" in sys.argv:
            show_kernels(engine, theta, 50)


if __name__ == "__main__":
    measure("cnn2", cnn2, 32, 5000)
    measure("cnn4", cnn4, 84, 500)
