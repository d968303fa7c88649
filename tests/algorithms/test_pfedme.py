"""pFedMe against its formula, its limits and its traffic."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from reference.local_steps import average, local_steps, rows_of, size_of, stacked
from scool.algorithms import FedAvg, LocalOnly, PFedMe
from scool.algorithms.shared.sharing import participants
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import SIZES, assert_trees_close, assert_trees_equal, classification, start, tanh_net

SGD = LocalSGD(lr=0.1, epochs=3, batch_size=3)
K = len(SIZES)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("decay", [{}, {"lr_schedule": "exponential", "lr_decay": 0.5}])
def test_two_rounds_by_hand(steps: int, decay: dict[str, Any]) -> None:
    sgd = replace(SGD, steps=steps, **decay)
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = PFedMe(sgd=sgd, lam=0.8, outer_step=0.4, beta=0.7)
    state = method.init(engine, theta0)
    common, personal = theta0, [theta0] * K
    repetitions = 1 if steps else 3
    for t in range(2):
        state, info = method.step(engine, state, t)
        once = replace(SGD, steps=steps, epochs=1, lr=sgd.rate(t))
        copies = []
        for i in range(K):
            copy = common
            for r in range(repetitions):
                stream = t * repetitions + r
                pull = {"anchor": copy, "strength": 0.8}
                personal[i] = local_steps(federation, module, personal[i], i, once, stream, **pull)
                copy = {n: x - 0.4 * (x - personal[i][n]) for n, x in copy.items()}
            copies.append(copy)
        mean = average(copies, SIZES)
        common = {n: 0.3 * x + 0.7 * mean[n] for n, x in common.items()}
    assert_trees_close(state.theta, stacked(personal), 1e-10)
    assert_trees_close(state.common, stacked([common] * K), 1e-10)
    torch.testing.assert_close(info["graph"], rows_of([n / sum(SIZES) for n in SIZES], K))
    assert engine.ledger.messages == {"server": 2 * 2 * K}
    assert engine.ledger.total_bytes == 2 * 2 * K * size_of(state.theta)


def test_without_a_pull_it_is_local_sgd_to_the_bit() -> None:
    """So the repetitions go through the batches of the round, in their order."""
    engine, theta0 = start(classification())
    mine, local = PFedMe(sgd=SGD, lam=0.0), LocalOnly(sgd=SGD)
    a, b = mine.init(engine, theta0), local.init(engine, theta0)
    for t in range(3):
        a, b = mine.step(engine, a, t)[0], local.step(engine, b, t)[0]
        assert_trees_equal(a.theta, b.theta)


def test_without_a_pull_and_with_full_steps_the_first_round_is_fedavg() -> None:
    engine, theta0 = start(classification())
    mine, fedavg = PFedMe(sgd=SGD, lam=0.0, outer_step=1.0), FedAvg(sgd=SGD)
    a, _ = mine.step(engine, mine.init(engine, theta0), 0)
    b, _ = fedavg.step(engine, fedavg.init(engine, theta0), 0)
    assert_trees_close(a.common, b.theta)


def test_who_does_not_take_part_keeps_the_personal_model() -> None:
    engine, theta0 = start(classification((4,) * 6))
    method = PFedMe(sgd=SGD, participation=0.5)
    state, _ = method.step(engine, method.init(engine, theta0), 0)
    engine.ledger.close_round()
    after, info = method.step(engine, state, 1)
    chosen = participants(engine, 0.5, 1)
    for n, t in after.theta.items():
        assert torch.equal((t != state.theta[n]).flatten(1).any(dim=1), chosen)
        assert float((after.common[n] - after.common[n][0]).abs().max()) < 1e-14
    assert torch.equal(info["train_loss"].isfinite(), chosen)
    assert engine.ledger.messages == {"server": 6}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"lam": -1.0}, "lam"),
        ({"lam": 20.0}, "overshoots"),
        ({"outer_step": 0.0}, "outer_step"),
        ({"outer_step": 1.5}, "outer_step"),
        ({"beta": 0.0}, "beta"),
        ({"beta": 3.0}, "beta"),
        ({"participation": 0.0}, "participation"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        PFedMe(sgd=SGD, **options)
