"""How fast: the engine against the loop over clients, on the same work in the same run."""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from scool.contracts import Evidence
from scool.data.arrays import from_arrays
from scool.data.federation import Federation
from scool.engine.local import LocalEngine
from scool.engine.machine import fitting_threads, resolve_device, tensor_cores
from scool.engine.steps.local_steps import one_by_one
from scool.engine.steps.phases import Phase
from scool.learning.local_sgd import LocalSGD, Rule, plan_batches
from scool.models import Functional, cnn2, mlp, parameters_of
from scool.priors import MMSBM, SBM
from scool.types import Tree


class Case(NamedTuple):
    """A model with the data it is timed on."""

    model: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    clients: int
    steps: int  # local steps per measurement


def small_cnn() -> nn.Module:
    """A small network for 28x28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def engine_cases(device: torch.device) -> list[Case]:
    """The three models of the targets; a CPU gets fewer clients of the large one."""
    is_cuda = device.type == "cuda"
    large = 100 if is_cuda else 20
    steps = 25 if is_cuda else 3
    return [
        Case("cnn2", lambda: cnn2((3, 32, 32), 10), (3, 32, 32), large, steps),
        Case("mlp", lambda: mlp((64,), 10), (64,), 100, 25 if is_cuda else 50),
        Case("cnn28", small_cnn, (1, 28, 28), 100, steps),
    ]


def random_federation(shape: tuple[int, ...], clients: int, samples: int = 40) -> Federation:
    """Noise with labels: enough to time, nothing to learn."""
    rng = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(samples, *shape, generator=rng), torch.arange(samples) % 10)
        for _ in range(clients)
    ]
    return from_arrays(data, name="noise", test_fraction=0.1)


def bench_engine(device_name: str, repeats: int = 0) -> Iterator[dict[str, Any]]:
    """One object per model: times, ratio to the loop, rates, and their share of the machine's."""
    device = resolve_device(device_name)
    repeats = repeats or (2 if device.type == "cuda" else 5)  # the loop is slow there
    rates = machine_rates(device)
    for case in engine_cases(device):
        torch.manual_seed(0)
        module = case.build()
        with fitting_threads(module, case.clients):
            row = _bench_case(case, module, device, repeats) | rates
        for what in ("bytes", "flops"):
            achieved = row["weight_bytes_per_second" if what == "bytes" else "flops_per_second"]
            row[f"{what}_fraction"] = achieved / row[f"machine_{what}_per_second"]
        yield row


def _bench_case(
    case: Case, module: nn.Module, device: torch.device, repeats: int
) -> dict[str, Any]:
    federation = random_federation(case.input_shape, case.clients)
    engine = LocalEngine(federation, module, seed=0, device=str(device))
    theta = engine.replicate(parameters_of(module))
    sgd = LocalSGD(steps=case.steps)
    loop = _loop(engine, theta, sgd)
    stacked = lambda: engine.train(theta, sgd, 0)  # noqa: E731
    fast, slow = _alternate(stacked, loop, device, repeats)
    samples = case.clients * case.steps * sgd.batch_size
    parameters = sum(p.numel() for p in module.parameters())
    traffic = 3 * 4 * parameters * case.clients * case.steps  # weights read twice, written once
    flops = 3 * _forward_flops(module, case.input_shape) * samples  # forward and twice backward
    return {
        "model": case.model,
        "device": str(device),
        "clients": case.clients,
        "parameters": parameters,
        "engine_ms_per_step": 1e3 * fast / case.steps,
        "loop_ms_per_step": 1e3 * slow / case.steps,
        "ratio": slow / fast,
        "samples_per_second": samples / fast,
        "weight_bytes_per_second": traffic / fast,
        "flops_per_second": flops / fast,
    }


def _loop(engine: LocalEngine, theta: Tree, sgd: LocalSGD) -> Callable[[], object]:
    """The same steps with torch.optim, one client after another."""
    source = engine.splits["train"]
    plan = plan_batches(sgd, source.split.mask, engine.owned, 0, engine.seed)
    phase = Phase(engine.owned, plan.position, plan.weight.to(engine.dtype), plan.active, None)
    model = Functional(engine.model.module)
    return lambda: one_by_one(model, engine.loss, source, theta, phase, Rule(sgd), None)


def _alternate(
    first: Callable[[], object], second: Callable[[], object], device: torch.device, repeats: int
) -> tuple[float, float]:
    """Medians of two things timed in turn, after one warm-up each."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(repeats + 1):
        for run, spent in zip((first, second), times, strict=True):
            began = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number:
                spent.append(time.perf_counter() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def _forward_flops(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Floating-point operations of one sample."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module.cpu()(torch.zeros(1, *shape))
    return counter.get_total_flops()


def machine_rates(device: torch.device) -> dict[str, float]:
    """What the machine does at best: bytes copied and products computed per second."""
    side = 4096 if device.type == "cuda" else 1024
    a = torch.randn(side, side, device=device)
    block = torch.empty((1 << 28) if device.type == "cuda" else (1 << 24), device=device)
    with tensor_cores():  # as the engine works
        copy, product = _alternate(lambda: block.clone(), lambda: a @ a, device, 5)
    return {
        "machine_bytes_per_second": 2 * block.numel() * 4 / copy,
        "machine_flops_per_second": 2 * side**3 / product,
    }


def bench_scaling(device_name: str, most: int = 1600) -> dict[str, Any]:
    """Time of a local phase over K, and the exponent of its growth."""
    device = resolve_device(device_name)
    module = mlp((64,), 10)
    sgd = LocalSGD(steps=20)
    clients = [100 * 2**n for n in range(12) if 100 * 2**n <= most]
    seconds: list[float] = []
    for count in clients:
        engine = LocalEngine(random_federation((64,), count), module, seed=0, device=str(device))
        theta = engine.replicate(parameters_of(module))
        run = lambda engine=engine, theta=theta: engine.train(theta, sgd, 0)  # noqa: E731
        seconds.append(_alternate(run, run, device, 3)[0])
    slope = statistics.linear_regression(
        [math.log(c) for c in clients], [math.log(s) for s in seconds]
    ).slope
    return {"model": "mlp", "clients": clients, "seconds": seconds, "exponent": slope}


def bench_estep() -> Iterator[dict[str, Any]]:
    """E-steps on planted problems: in-group loss 0.4, out-group 4, log-normal noise 0.3."""
    cases: list[tuple[str, Any, int]] = [
        ("sbm", SBM(num_blocks=10, tolerance=0.0), 1000),
        ("mmsbm", MMSBM(num_blocks=10, tolerance=0.0), 200),
    ]
    for name, prior, clients in cases:
        evidence = _planted(clients, 10)
        state = prior.init(clients, {}, 0)
        first = prior.e_step(state, evidence)
        cold, warm = _alternate(
            lambda p=prior, s=state, e=evidence: p.e_step(s, e),
            lambda p=prior, s=first, e=evidence: p.e_step(s, e),
            torch.device("cpu"),
            3,
        )
        yield {
            "prior": name,
            "clients": clients,
            "blocks": 10,
            "sweeps": prior.sweeps,
            "first_seconds": cold,
            "warm_seconds": warm,
        }


def _planted(clients: int, groups: int) -> Evidence:
    rng = torch.Generator().manual_seed(0)
    group = torch.arange(clients) % groups
    loss = torch.where(group[:, None] == group, 0.4, 4.0).double()
    noise: Tensor = torch.randn(clients, clients, generator=rng, dtype=torch.float64)
    seen = torch.ones(clients, clients, dtype=torch.bool)
    return Evidence(-loss * torch.exp(0.3 * noise), seen, uniform=-math.log(10))
