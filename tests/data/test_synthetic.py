"""Planted groups."""

import pytest
import torch

from scool.data.federation import Task
from scool.data.synthetic import synthetic
from scool.errors import ConfigError


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize(("clients", "groups"), [(1, 1), (2, 1), (2, 2), (9, 3)])
def test_shapes(task: Task, clients: int, groups: int) -> None:
    f = synthetic(clients, groups, 30, task=task, seed=1, val_fraction=0.2)
    assert f.task == task and f.train.sizes.tolist() == [24] * clients
    assert f.num_outputs == (5 if task == "classification" else 1)
    assert f.truth is not None and f.groups is not None
    torch.testing.assert_close((f.truth > 0), f.groups[:, None] == f.groups[None, :])


def test_regression_groups_share_a_linear_map() -> None:
    f = synthetic(4, 2, 200, task="regression", noise=0.0, seed=2)
    maps = [
        torch.linalg.lstsq(f.train.x[f.train.index[i]], f.train.y[i]).solution for i in range(4)
    ]
    torch.testing.assert_close(maps[0], maps[2], rtol=0, atol=1e-4)
    assert float((maps[0] - maps[1]).norm()) > 0.5
    torch.testing.assert_close(f.test.x @ maps[1], f.test.y[1], rtol=0, atol=1e-3)


def test_noise_is_in_training_targets_only() -> None:
    clean, noisy = (synthetic(2, 1, task="regression", noise=n, seed=0) for n in (0.0, 1.0))
    assert float((clean.train.y - noisy.train.y).std()) == pytest.approx(1, abs=0.3)
    assert torch.equal(clean.test.y, noisy.test.y)


def test_groups_answer_the_same_question_differently() -> None:
    f = synthetic(4, 2, seed=3)
    assert torch.equal(f.test.y[0], f.test.y[2])
    assert float((f.test.y[0] == f.test.y[1]).float().mean()) < 0.6


def test_unequal_sizes_and_one_sample() -> None:
    sizes = synthetic(30, 3, unequal=True).train.sizes
    assert int(sizes.min()) < 30 < 50 < int(sizes.max())
    assert synthetic(5, 5, 1).train.sizes.tolist() == [1] * 5


def test_refuses() -> None:
    with pytest.raises(ConfigError, match="groups = 5"):
        synthetic(4, 5)
    with pytest.raises(ConfigError, match="samples_per_client = 0"):
        synthetic(4, 2, 0)
    with pytest.raises(ConfigError, match="did you mean 'regression'"):
        synthetic(task="regresion")  # pyright: ignore[reportArgumentType]
