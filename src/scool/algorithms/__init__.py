"""One method a file. `AnyAlgorithm` lists them: that line is all a new method adds here."""

from typing import TypeAlias

from scool.algorithms.dpsgd import DPSGD
from scool.algorithms.fedavg import FedAvg
from scool.algorithms.local_only import LocalOnly
from scool.algorithms.scool import SCooL
from scool.algorithms.truth import Truth

AnyAlgorithm: TypeAlias = SCooL | LocalOnly | FedAvg | DPSGD | Truth

__all__ = ["DPSGD", "AnyAlgorithm", "FedAvg", "LocalOnly", "SCooL", "Truth"]
