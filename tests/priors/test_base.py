"""Logarithms at the edge, and the prior one writes oneself."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reference.worlds import noise
from scool.contracts import Prior, SelfMode
from scool.priors import MMSBM, SBM, Attention, Dirac, GraphPrior
from scool.priors.base import bernoulli_entropy, masked_log_softmax
from scool.priors.blocks import log_B


def test_logs_are_finite_at_the_edge():
    edge = torch.tensor([[0.0, 1e-6], [1 - 1e-6, 1.0]], dtype=torch.float64)
    tables = log_B(edge)
    assert all(bool(x.isfinite().all()) for x in (tables.on, tables.off, tables.logit))
    h = bernoulli_entropy(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    torch.testing.assert_close(h, torch.tensor([0.0, math.log(2), 0.0], dtype=torch.float64))


def test_softmax_of_a_row_without_columns_is_zero():
    mask = torch.tensor([[True, True], [False, False]])
    p = masked_log_softmax(torch.tensor([[1e4, -1e4], [0.0, 0.0]]), mask).exp()
    assert p.tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_every_prior_keeps_the_contract():
    priors: list[Prior] = [Dirac("ring"), SBM(), MMSBM(), Attention()]
    assert [p.mixes for p in priors] == ["models", "updates", "updates", "updates"]
    assert [p.self_mode for p in priors] == ["gated", "gated", "always", "gated"]


class OnlyW(NamedTuple):
    w: Tensor


@dataclass(frozen=True)
class Softmax(GraphPrior[OnlyW]):
    """One's own prior in one screen."""

    self_mode: SelfMode = "gated"

    def init(self, num_clients, theta0, seed):
        return OnlyW(torch.eye(num_clients))

    def e_step(self, state, evidence):
        return OnlyW(evidence.log_lik.softmax(1))

    def elbo(self, state, evidence):
        return (state.w * evidence.log_lik).sum()


def test_a_prior_of_ones_own_needs_three_methods():
    prior, evidence = Softmax(), noise(4)
    state = prior.e_step(prior.init(4, {}, 0), evidence)
    assert prior.m_step(state, evidence) is state
    assert torch.equal(prior.ranking(state, evidence), state.w)
    assert prior.pull(state, evidence) is None and prior.mixes == "updates"
