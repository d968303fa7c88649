"""Optimisers of the stack, and of the loop, against `torch.optim` on each client alone."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LRScheduler

from engine.naive import Optimiser, naive_training
from scool.data.federation import Federation
from scool.learning.local_sgd import LocalSGD
from toys import assert_trees_close, classification, scattered, start, tanh_net

ROUND = {"lr": 0.1, "epochs": 3, "batch_size": 2}
CASES: dict[str, tuple[LocalSGD, Optimiser]] = {
    "plain": (LocalSGD(**ROUND), lambda p: SGD(p, lr=0.1)),
    "momentum": (LocalSGD(**ROUND, momentum=0.9), lambda p: SGD(p, lr=0.1, momentum=0.9)),
    "nesterov": (
        LocalSGD(**ROUND, momentum=0.8, nesterov=True, weight_decay=0.02),
        lambda p: SGD(p, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.02),
    ),
    "decay": (LocalSGD(**ROUND, weight_decay=0.1), lambda p: SGD(p, lr=0.1, weight_decay=0.1)),
    "momentum-decay": (
        LocalSGD(**ROUND, momentum=0.5, weight_decay=0.1),
        lambda p: SGD(p, lr=0.1, momentum=0.5, weight_decay=0.1),
    ),
    "adam": (LocalSGD(**ROUND, optimizer="adam"), lambda p: Adam(p, lr=0.1)),
    "adam-decay": (
        LocalSGD(**ROUND, optimizer="adam", weight_decay=0.1),
        lambda p: Adam(p, lr=0.1, weight_decay=0.1),
    ),
    "adamw": (
        LocalSGD(**ROUND, optimizer="adamw", weight_decay=0.1),
        lambda p: AdamW(p, lr=0.1, weight_decay=0.1),
    ),
    "adamw-without-decay": (
        LocalSGD(**ROUND, optimizer="adamw"),
        lambda p: AdamW(p, lr=0.1, weight_decay=0.0),
    ),
    "clipped": (LocalSGD(**ROUND, clip_norm=0.3), lambda p: SGD(p, lr=0.1)),
    "clipped-momentum": (
        LocalSGD(**ROUND, clip_norm=0.3, momentum=0.9, weight_decay=0.05),
        lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05),
    ),
    "clipped-adam": (
        LocalSGD(**ROUND, clip_norm=0.1, optimizer="adam"),
        lambda p: Adam(p, lr=0.1),
    ),
}
EVEN = (4, 2, 8, 6)  # full batches: both loops draw the same numbers


def drawing_net() -> nn.Module:
    """Draws numbers by itself, so that the clients go one after another."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 9), nn.RReLU(), nn.Linear(9, 3)).double()


def check(federation: Federation, module: nn.Module, sgd: LocalSGD, optimiser: Optimiser) -> None:
    """Two rounds; the state of the optimiser does not survive the first."""
    engine, theta0 = start(federation, module)
    theta = scattered(engine, theta0)
    for round in (0, 1):
        expected, losses = naive_training(federation, module, theta, sgd, optimiser, round)
        found = engine.train(theta, sgd, round)
        assert_trees_close(found.theta, expected, atol=1e-9)
        torch.testing.assert_close(found.loss, losses, rtol=0, atol=1e-9)
        theta = found.theta


@pytest.mark.parametrize("name", CASES)
def test_stacked_optimisers(name: str) -> None:
    """Clients of 5, 3, 8 and 6 samples: short batches, and clients that finish earlier."""
    check(classification(), tanh_net(), *CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_optimisers_of_the_loop(name: str) -> None:
    check(classification(EVEN), drawing_net(), *CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_client_is_the_same_alone_and_in_the_stack(name: str) -> None:
    """Steps of longer clients do not move those that have finished: no decay, no momentum."""
    sgd, _ = CASES[name]
    whole, theta0 = start(classification())
    parts, _ = start(classification(), client_chunk=1)
    theta = scattered(whole, theta0)
    assert_trees_close(whole.train(theta, sgd, 0).theta, parts.train(theta, sgd, 0).theta)


def test_the_cases_differ() -> None:
    """Each option does something, so that the comparisons above can fail."""
    engine, theta0 = start(classification())
    theta = scattered(engine, theta0)
    ends: dict[str, Tensor] = {}
    for name, (sgd, _) in CASES.items():
        if name != "adamw-without-decay":  # is Adam
            trained = engine.train(theta, sgd, 0).theta
            ends[name] = torch.cat([t.flatten() for t in trained.values()])
    for one, other in itertools.combinations(ends, 2):
        assert float((ends[one] - ends[other]).abs().max()) > 1e-4, (one, other)


# ---------------------------------------------------------------------- schedules

SCHEDULES: dict[str, tuple[LocalSGD, Callable[[Optimizer], LRScheduler]]] = {
    "exponential": (
        LocalSGD(lr=0.2, epochs=1, lr_schedule="exponential", lr_decay=0.7),
        lambda steps: ExponentialLR(steps, gamma=0.7),
    ),
    "cosine": (
        LocalSGD(lr=0.2, epochs=1, lr_schedule="cosine", lr_decay=0.1, lr_rounds=8),
        lambda steps: CosineAnnealingLR(steps, T_max=8, eta_min=0.02),
    ),
}


def rates_of_torch(scheduler: Callable[[Optimizer], LRScheduler], rounds: int) -> list[float]:
    steps = SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    plan = scheduler(steps)
    rates = []
    for _ in range(rounds):
        rates.append(steps.param_groups[0]["lr"])
        steps.step()
        plan.step()
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_torch(name: str) -> None:
    sgd, scheduler = SCHEDULES[name]
    expected = rates_of_torch(scheduler, 9)
    assert [sgd.rate(round) for round in range(9)] == pytest.approx(expected, rel=1e-12)
    assert [sgd.at_round(round).lr for round in range(9)] == pytest.approx(expected, rel=1e-12)
    assert sgd.at_round(4).rate(7) == sgd.rate(4)  # a round's own rate is not scaled again
    last = 0.02 if name == "cosine" else 0.2 * 0.7**20
    assert sgd.rate(20) == pytest.approx(last)


def test_a_constant_rate() -> None:
    assert {LocalSGD(lr=0.3).rate(round) for round in range(5)} == {0.3}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rounds_are_trained_at_their_own_rate(name: str) -> None:
    sgd, scheduler = SCHEDULES[name]
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    theta = scattered(engine, theta0)
    for round, rate in enumerate(rates_of_torch(scheduler, 4)):

        def optimiser(parameters: list[nn.Parameter], rate: float = rate) -> Optimizer:
            return SGD(parameters, lr=rate)

        expected, _ = naive_training(federation, module, theta, sgd, optimiser, round)
        found = engine.train(theta, sgd, round).theta
        assert_trees_close(found, expected, atol=1e-9)
        theta = found


def test_the_longest_gradient_is_that_of_the_whole_model() -> None:
    """Clipping: one step moves a client by at most lr times the bound, over all its tensors."""
    engine, theta0 = start(classification())
    theta = scattered(engine, theta0)

    def moved(clip_norm: float) -> Tensor:
        half = engine.train(theta, LocalSGD(lr=0.1, steps=1, clip_norm=clip_norm), 0).theta
        return torch.cat([(half[n] - theta[n]).flatten(1) for n in theta], dim=1).norm(dim=1)

    free, bound = moved(0), 0.2
    assert bool((free > 0.1 * bound).any())
    torch.testing.assert_close(moved(bound), free.clamp(max=0.1 * bound), rtol=1e-5, atol=0)
