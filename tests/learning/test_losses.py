"""Losses are minus log-likelihoods, one number a sample."""

import math

import torch

from scool.learning.losses import LOSSES, cross_entropy, squared_error


def test_cross_entropy_is_minus_the_log_probability() -> None:
    logits = torch.randn(6, 4, dtype=torch.float64)
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    for i in range(6):
        total = sum(math.exp(v) for v in logits[i].tolist())
        expected = -math.log(math.exp(float(logits[i, targets[i]])) / total)
        assert abs(float(cross_entropy(logits, targets)[i]) - expected) < 1e-12


def test_squared_error_is_a_gaussian_without_its_constant() -> None:
    outputs, targets = torch.randn(2, 5, 3, dtype=torch.float64)
    normal = torch.distributions.Normal(outputs, 1.0)
    constant = 1.5 * math.log(2 * math.pi)
    expected = -normal.log_prob(targets).sum(dim=1) - constant
    torch.testing.assert_close(squared_error(outputs, targets), expected)
    assert set(LOSSES) == {"classification", "regression"}
