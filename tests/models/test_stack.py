"""Modules that can be trained side by side, and those that cannot."""

import pytest
import torch
from torch import nn

from scool.errors import ConfigError, ModelError
from scool.models import (
    Functional,
    ModelConfig,
    check_stackable,
    cnn2,
    cnn4,
    initial_params,
    parameters_of,
    unstack,
)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.InstanceNorm1d(4, track_running_stats=True),
    ],
)
def test_statistics_of_other_samples_are_refused_with_the_remedy(layer: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2))
    for refuse in (check_stackable, Functional):
        with pytest.raises(ModelError, match=r"layer '1' .*running statistics.*Leave out"):
            refuse(module)


def test_other_norms_are_welcome_and_an_empty_model_is_not() -> None:
    check_stackable(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4)))
    with pytest.raises(ModelError, match="no trainable parameters"):
        check_stackable(nn.Sequential(nn.Flatten()))


def test_parameter_counts_and_outputs() -> None:
    """D26."""
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert count(cnn2((3, 32, 32), 10)) == 878_538
    assert count(cnn2((3, 32, 32), 100)) == 924_708
    assert count(cnn4((3, 84, 84), 100)) == 108_996
    x = torch.randn(6, 3, 32, 32)
    assert bool((cnn2((3, 32, 32), 10, relu_logits=True)(x) >= 0).all())
    assert bool((cnn2((3, 32, 32), 10)(x) < 0).any())


@pytest.mark.parametrize("name", ["cnn2", "cnn4"])
def test_convolutions_need_images(name: str) -> None:
    with pytest.raises(ModelError, match="pixels"):
        ModelConfig(model=name).builder((8, 8), 10)()


def test_unknown_models_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cnn2'"):
        ModelConfig(model="cnn22")
    for hidden in ((0,), (8, -1)):
        with pytest.raises(ConfigError, match=r"hidden = .* widths of at least 1"):
            ModelConfig(hidden=hidden)
    assert len(list(ModelConfig("mlp", hidden=(7, 5)).builder((4,), 3)().parameters())) == 6


def test_first_parameters_follow_the_seed_alone() -> None:
    build = ModelConfig("mlp").builder((4,), 3)
    torch.manual_seed(1)
    _, first = initial_params(build, 5)
    after = torch.rand(1)
    torch.manual_seed(2)
    _, second = initial_params(build, 5)
    _, other = initial_params(build, 6)
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert any(not torch.equal(first[n], other[n]) for n in first)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)  # the global generator was left alone


def test_functional_equals_the_module_and_unstack_picks_a_client() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    params = parameters_of(module)
    x = torch.randn(5, 3)
    assert torch.equal(Functional(module)(params, x), module(x))
    stacked = {name: torch.stack([p, 2 * p]) for name, p in params.items()}
    assert all(torch.equal(unstack(stacked, 1)[n], 2 * params[n]) for n in params)
