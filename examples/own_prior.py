"""Your own prior: the client picks one source, all equally likely beforehand."""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

import scool
from scool.contracts import Evidence, SelfMode
from scool.priors import GraphPrior
from scool.priors.base import categorical_entropy, masked_log_softmax
from scool.types import Params


class FlatState(NamedTuple):
    w: Tensor  # (K, K)


@final
@dataclass(frozen=True)
class Flat(GraphPrior[FlatState]):
    r"""$Y_{i\cdot} \sim \mathrm{Cat}(1/K)$, so $w_{i\cdot} = \mathrm{softmax}_j(l_{ij}/T)$."""

    temperature: float = 1.0
    """T, divides the log-likelihood."""
    self_mode: SelfMode = "gated"

    def init(self, num_clients: int, theta0: Params, seed: int) -> FlatState:
        return FlatState(torch.zeros(num_clients, num_clients, dtype=torch.float64))

    def e_step(self, state: FlatState, evidence: Evidence) -> FlatState:
        log_lik, seen = evidence.dense()
        return FlatState(masked_log_softmax(log_lik / self.temperature, seen).exp())

    def elbo(self, state: FlatState, evidence: Evidence) -> Tensor:
        log_lik, _ = evidence.dense()
        gain = log_lik / self.temperature - math.log(len(state.w))
        return (state.w * gain).sum() + categorical_entropy(state.w).sum()


federation = scool.digits(seed=0)
sgd = scool.LocalSGD(lr=0.2, batch_size=8)
for name, prior in {"flat": Flat(), "flat, T=0.3": Flat(0.3), "SBM": scool.SBM()}.items():
    algorithm = scool.SCooL(prior=prior, sgd=sgd, fraction=0.225)
    result = scool.fit(federation, "mlp", algorithm, rounds=12)
    line = result.summary()
    print(f"{name:<12} {line['accuracy_mean']:.1f} %  graph error {line['graph_l1']:.2f}")
