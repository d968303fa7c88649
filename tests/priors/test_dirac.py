"""The Dirac prior is a fixed graph; a soft coupling keeps part of the own model."""

import pytest
import torch

from reference.worlds import noise
from scool.errors import ConfigError
from scool.graph.topology import mixing_matrix
from scool.priors import Dirac


def test_the_graph_is_the_topology_and_stays():
    prior = Dirac("ring")
    state = prior.init(6, {}, 0)
    assert torch.equal(state.w.dense(), mixing_matrix("ring", 6))
    evidence = noise(6)
    after = prior.m_step(prior.e_step(state, evidence), evidence)
    assert (
        torch.equal(after.w.dense(), state.w.dense()) and float(prior.elbo(after, evidence)) == 0.0
    )
    assert prior.ranking(after, evidence) is state.w
    assert prior.pull(after, evidence) is None and prior.mixes == "models"


@pytest.mark.parametrize(("coupling", "rate"), [(1.0, 0.1), (0.3, 0.1), (0.0, 0.2)])
def test_mixing_is_a_gradient_step_on_the_unordered_pair_penalty(coupling, rate):
    K, lam = 5, coupling / rate
    given = mixing_matrix("ring", K)
    theta = torch.randn(K, 3, dtype=torch.float64, requires_grad=True)
    target = torch.randn(K, 3, dtype=torch.float64)
    loss = 0.5 * (theta - target).square().sum()
    gaps = (theta[:, None] - theta[None]).square().sum(-1)
    penalty = lam / 2 * (given * gaps).triu(1).sum()
    (full,) = torch.autograd.grad(loss + penalty, theta, retain_graph=True)
    (local,) = torch.autograd.grad(loss, theta)
    w = Dirac(matrix=given, coupling=coupling).init(K, {}, 0).w.dense()
    torch.testing.assert_close(theta - rate * full, w @ theta - rate * local, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"coupling": 1.5}, "coupling"),
        ({"degree": 0}, "degree"),
        ({"topology": "rnig"}, "ring"),
        ({"self_mode": "always"}, "self_mode"),
        ({"matrix": torch.ones(2, 3)}, "square"),
        ({"matrix": torch.tensor([[0.5, 0.5], [0.2, 0.8]])}, "symmetric"),
        ({"matrix": torch.ones(2, 2)}, "not 1"),
        ({"matrix": torch.tensor([[2.0, -1.0], [-1.0, 2.0]])}, "negative"),
    ],
)
def test_impossible_options_are_refused(options, word):
    with pytest.raises(ConfigError, match=word):
        Dirac(**options)


def test_a_matrix_of_the_wrong_size_is_refused():
    with pytest.raises(ConfigError, match="3 clients"):
        Dirac(matrix=torch.eye(2)).init(3, {}, 0)
