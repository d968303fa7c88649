"""P(Y): the graph, its E-step and its M-step. The list of priors is the union `AnyPrior`."""

from typing import TypeAlias

from scool.priors.attention import Attention, AttentionState
from scool.priors.base import GraphPrior
from scool.priors.dirac import Dirac, DiracState
from scool.priors.encoder import LayerwiseRowEncoder
from scool.priors.mmsbm import MMSBM, MMSBMState
from scool.priors.sbm import SBM, SBMState

AnyPrior: TypeAlias = Dirac | SBM | Attention | MMSBM

__all__ = [
    "MMSBM",
    "SBM",
    "AnyPrior",
    "Attention",
    "AttentionState",
    "Dirac",
    "DiracState",
    "GraphPrior",
    "LayerwiseRowEncoder",
    "MMSBMState",
    "SBMState",
]
