"""Adding a prior of one's own is one short class."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scool import LocalSGD, SCooL, fit
from scool.contracts import Evidence, Prior, SelfMode
from scool.priors import MMSBM, SBM, Attention, Dirac, GraphPrior
from scool.types import Params
from toys import classification, is_finite


class SoftState(NamedTuple):
    w: Tensor


@dataclass(frozen=True)
class SoftLoss(GraphPrior[SoftState]):
    """w_i. = softmax(l_i. / T): no structure at all."""

    temperature: float = 0.5
    self_mode: SelfMode = "gated"

    def init(self, num_clients: int, theta0: Params, seed: int) -> SoftState:
        return SoftState(torch.zeros(num_clients, num_clients, dtype=torch.float64))

    def e_step(self, state: SoftState, evidence: Evidence) -> SoftState:
        log_lik, seen = evidence.dense()
        logits = (log_lik / self.temperature).masked_fill(~seen, -torch.inf)
        return SoftState(logits.softmax(dim=1))

    def elbo(self, state: SoftState, evidence: Evidence) -> Tensor:
        return (state.w * evidence.dense()[0]).sum()


def test_a_prior_of_ones_own_runs_in_scool(tmp_path) -> None:
    federation = classification((12, 12, 12, 12, 12, 12))
    algorithm = SCooL(
        prior=SoftLoss(),  # type: ignore[arg-type]
        sgd=LocalSGD(lr=0.2, epochs=3, batch_size=4),
        sparsify_round=3,
        fraction=0.4,
    )
    result = fit(federation, "mlp", algorithm, rounds=6, device="cpu", out=tmp_path / "run")
    assert is_finite(result.theta) and len(result.elbo) == 6
    assert result.graph is not None and result.graph.shape == (6, 6)
    inside = result.graph * (federation.groups[:, None] == federation.groups[None])
    assert float(inside.sum() / result.graph.sum()) > 0.9  # it found the groups
    again = fit(
        federation, "mlp", algorithm, rounds=6, device="cpu", out=tmp_path / "run", resume=True
    )
    assert torch.equal(again.score, result.score)


def test_every_prior_has_the_members_of_the_contract() -> None:
    names = [n for n in vars(Prior) if not n.startswith("_")]
    assert {"init", "e_step", "m_step", "elbo", "ranking", "pull", "describe"} <= set(names)
    for prior in (SBM(), Attention(), MMSBM(), Dirac(), SoftLoss()):
        assert all(hasattr(prior, n) for n in names)
