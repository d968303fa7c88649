"""One method a file. `AnyAlgorithm` lists them: that line is all a new method adds here."""

from typing import TypeAlias

from scool.algorithms.cga import CGA
from scool.algorithms.dada import Dada
from scool.algorithms.ditto import Ditto
from scool.algorithms.dpsgd import DPSGD
from scool.algorithms.fedamp import FedAMP
from scool.algorithms.fedavg import FedAvg
from scool.algorithms.fedfomo import FedFomo
from scool.algorithms.fedper import FedPer
from scool.algorithms.fedprox import FedProx
from scool.algorithms.fedrep import FedRep
from scool.algorithms.ifca import IFCA
from scool.algorithms.l2c import L2C
from scool.algorithms.local_only import LocalOnly
from scool.algorithms.meta_l2c import MetaL2C
from scool.algorithms.pens import PENS
from scool.algorithms.pfedgraph import PFedGraph
from scool.algorithms.pfedme import PFedMe
from scool.algorithms.scool import SCooL
from scool.algorithms.spdb import SPDB
from scool.algorithms.truth import Truth

AnyAlgorithm: TypeAlias = (
    SCooL
    | LocalOnly
    | FedAvg
    | DPSGD
    | Truth
    | Ditto
    | FedAMP
    | FedPer
    | FedProx
    | FedRep
    | IFCA
    | PFedMe
    | CGA
    | Dada
    | FedFomo
    | L2C
    | MetaL2C
    | PENS
    | PFedGraph
    | SPDB
)

__all__ = [
    "CGA",
    "DPSGD",
    "IFCA",
    "L2C",
    "PENS",
    "SPDB",
    "AnyAlgorithm",
    "Dada",
    "Ditto",
    "FedAMP",
    "FedAvg",
    "FedFomo",
    "FedPer",
    "FedProx",
    "FedRep",
    "LocalOnly",
    "MetaL2C",
    "PFedGraph",
    "PFedMe",
    "SCooL",
    "Truth",
]
