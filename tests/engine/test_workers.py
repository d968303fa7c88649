"""Clients shared out over threads give the models of the loop."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from scool.bench.engine import _loop, random_federation
from scool.engine.local import LocalEngine
from scool.engine.steps import formulation
from scool.engine.steps.cpu_images import suits_workers
from scool.learning.local_sgd import LocalSGD
from scool.models import cnn2, mlp, parameters_of


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 3, padding=1),
        nn.Flatten(),
        nn.Linear(27, 10),
    ).double()


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("sgd", [LocalSGD(lr=0.1), LocalSGD(lr=0.1, momentum=0.9, batch_size=7)])
def test_workers_agree_with_the_loop_whatever_their_number(
    sgd: LocalSGD, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = network()
    federation = random_federation((1, 8, 8), 5, samples=12)
    monkeypatch.setattr(formulation, "suits_workers", lambda module: True)
    engine = LocalEngine(federation, module, seed=3, device="cpu")
    assert engine._formulation._has_workers
    theta = engine.replicate(parameters_of(module))
    expected, _ = _loop(engine, theta, sgd)()  # type: ignore[misc]
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(engine.train(theta, sgd, 0).theta)
        assert torch.get_num_threads() == count
    for name, stacked in expected.items():
        torch.testing.assert_close(found[0][name], stacked, rtol=0, atol=1e-9)
        assert torch.equal(found[0][name], found[1][name])
        assert torch.equal(found[0][name], found[2][name])


def test_large_convolutions_are_for_workers_and_small_models_are_not() -> None:
    assert suits_workers(cnn2((3, 32, 32), 10))
    assert not suits_workers(network())
    assert not suits_workers(mlp((3, 32, 32), 10, (512,)))
