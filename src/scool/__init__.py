"""Learn personal models without a server: find out who should learn from whom.

>>> import scool
>>> federation = scool.digits(num_clients=4, groups=2, seed=0)
>>> result = scool.fit(federation, "mlp", scool.SCooL(prior=scool.SBM(num_blocks=2)), rounds=2)
>>> result.graph.shape
torch.Size([4, 4])
"""

from scool import isolation

isolation.leave_working_directory()  # before anything is imported that might lie there

from scool import algorithms
from scool.algorithms import *  # noqa: F403  # every method
from scool.data.arrays import from_arrays
from scool.data.catalogue import DataConfig, load
from scool.data.digits import digits
from scool.data.federation import Federation, Split
from scool.data.frames import from_frame
from scool.data.owners import heart_disease
from scool.data.sources import from_datasets, from_image_folder, from_npz
from scool.data.synthetic import synthetic
from scool.errors import ScoolError
from scool.evaluation.metrics import Metric
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.models import ModelConfig
from scool.priors import MMSBM, SBM, Attention, Dirac
from scool.run.graph import Graph
from scool.run.load import load_model
from scool.run.loop import fit
from scool.run.options import Changes, RunSettings
from scool.run.plugins import register_method
from scool.run.result import Result
from scool.sweep.own import compare, tune
from scool.sweep.results import ComparisonResult
from scool.sweep.tune import SearchResult
from scool.version import __version__ as __version__

__all__ = [
    "MMSBM",
    "SBM",
    "Attention",
    "Changes",
    "ComparisonResult",
    "CrossDraw",
    "DataConfig",
    "Dirac",
    "Federation",
    "Graph",
    "LocalSGD",
    "Metric",
    "ModelConfig",
    "Result",
    "RunSettings",
    "ScoolError",
    "SearchResult",
    "Split",
    "compare",
    "digits",
    "fit",
    "from_arrays",
    "from_datasets",
    "from_frame",
    "from_image_folder",
    "from_npz",
    "heart_disease",
    "load",
    "load_model",
    "register_method",
    "synthetic",
    "tune",
]
__all__ += algorithms.__all__
