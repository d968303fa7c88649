"""FedRep against its formula and its traffic."""

from dataclasses import replace

import pytest
import torch

from reference.local_steps import average, local_steps, size_of, stacked
from scool.algorithms import FedRep
from scool.algorithms.shared.sharing import participants
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from toys import SIZES, assert_trees_close, classification, start, tanh_net

K = len(SIZES)
BODY, HEAD = ("0.weight", "0.bias"), ("2.weight", "2.bias")


@pytest.mark.parametrize("steps", [0, 1])
def test_two_rounds_by_hand(steps: int) -> None:
    sgd = LocalSGD(lr=0.1, epochs=2, steps=steps, batch_size=3)
    passes = replace(sgd, epochs=3, steps=0)
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = FedRep(sgd=sgd, head_epochs=3)
    state, models = method.init(engine, theta0), [theta0] * K
    for t in range(2):
        state, _ = method.step(engine, state, t)
        half = []
        for i, m in enumerate(models):
            m = local_steps(federation, module, m, i, passes, t, only=HEAD)
            half.append(local_steps(federation, module, m, i, sgd, t, only=BODY))
        common = average(half, SIZES)
        models = [m | {n: common[n] for n in BODY} for m in half]
    assert_trees_close(state.theta, stacked(models), 1e-10)
    size = size_of({n: state.theta[n] for n in BODY})
    assert engine.ledger.messages == {"server": 2 * 2 * K}
    assert engine.ledger.total_bytes == 2 * 2 * K * size


def test_heads_stay_and_the_body_is_common() -> None:
    engine, theta0 = start(classification((4,) * 6))
    method = FedRep(participation=0.5)
    state = method.init(engine, theta0)
    after, info = method.step(engine, state, 1)
    chosen = participants(engine, 0.5, 1)
    for n in BODY:
        assert float((after.theta[n] - after.theta[n][0]).abs().max()) < 1e-14
    for n in HEAD:
        moved = (after.theta[n] != state.theta[n]).flatten(1).any(dim=1)
        assert torch.equal(moved, chosen)
    assert torch.equal(info["train_loss"].isfinite(), chosen)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"head_epochs": 0}, "head_epochs"),
        ({"personal": " , "}, "fedavg"),
        ({"participation": -1.0}, "participation"),
    ],
)
def test_impossible_options_are_refused(options: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        FedRep(**options)


def test_a_layer_that_the_model_lacks_is_refused() -> None:
    engine, theta0 = start(classification())
    with pytest.raises(ConfigError, match="'3'"):
        FedRep(personal="3").init(engine, theta0)
