"""One method per file, and all methods in one list: a new one adds its lines here."""

from typing import Any, TypeAlias

from scool.algorithms.apfl import APFL
from scool.algorithms.cga import CGA
from scool.algorithms.cobo import CoBo
from scool.algorithms.dada import Dada
from scool.algorithms.dfedpgp import DFedPGP
from scool.algorithms.ditto import Ditto
from scool.algorithms.dpfl import DPFL
from scool.algorithms.dpsgd import DPSGD
from scool.algorithms.fedala import FedALA
from scool.algorithms.fedamp import FedAMP
from scool.algorithms.fedavg import FedAvg
from scool.algorithms.fedavg_ft import FedAvgFT
from scool.algorithms.fedbn import FedBN
from scool.algorithms.fedfomo import FedFomo
from scool.algorithms.fedper import FedPer
from scool.algorithms.fedprox import FedProx
from scool.algorithms.fedrep import FedRep
from scool.algorithms.ifca import IFCA
from scool.algorithms.l2c import L2C
from scool.algorithms.local_only import LocalOnly
from scool.algorithms.meta_l2c import MetaL2C
from scool.algorithms.pens import PENS
from scool.algorithms.per_fedavg import PerFedAvg
from scool.algorithms.pfedgraph import PFedGraph
from scool.algorithms.pfedme import PFedMe
from scool.algorithms.scaffold import Scaffold
from scool.algorithms.scool import SCooL
from scool.algorithms.spdb import SPDB
from scool.algorithms.tracks import Tracks
from scool.algorithms.truth import Truth
from scool.learning.losses import CrossDraw
from scool.priors import MMSBM, SBM, Attention, Dirac

__all__ = [
    "APFL",
    "CGA",
    "DPFL",
    "DPSGD",
    "IFCA",
    "L2C",
    "PENS",
    "SPDB",
    "CoBo",
    "DFedPGP",
    "Dada",
    "Ditto",
    "FedALA",
    "FedAMP",
    "FedAvg",
    "FedAvgFT",
    "FedBN",
    "FedFomo",
    "FedPer",
    "FedProx",
    "FedRep",
    "LocalOnly",
    "MetaL2C",
    "PFedGraph",
    "PFedMe",
    "PerFedAvg",
    "SCooL",
    "Scaffold",
    "Tracks",
    "Truth",
]

AnyAlgorithm: TypeAlias = Any
"""One of these, or a method of your own: `contracts.Method`, with its options as fields."""

METHODS: dict[str, tuple[str, AnyAlgorithm]] = {
    "scool": ("the one to take: for each owner the kinds of cooperation that pay", Tracks()),
    "local": ("every client for itself", LocalOnly()),
    "fedavg": ("one common model through a server", FedAvg()),
    "fedavg-ft": ("the same, fine-tuned by each client before it is used", FedAvgFT()),
    "dpsgd": ("gossip on a fixed graph", DPSGD()),
    "fedprox": ("FedAvg, local steps pulled to the common model", FedProx()),
    "scaffold": ("FedAvg, local steps corrected for drift", Scaffold()),
    "fedper": ("a common body, a personal head", FedPer()),
    "fedbn": ("FedAvg, each client's own normalisation", FedBN()),
    "fedrep": ("the same, head first and then body", FedRep()),
    "per-fedavg": ("a common model that is good after one step by each client", PerFedAvg()),
    "ditto": ("personal models pulled to a common one", Ditto()),
    "apfl": ("each client's own blend of a personal and a common model", APFL()),
    "pfedme": ("personal models by Moreau envelopes", PFedMe()),
    "fedala": ("the common model number by number, as far as it helps", FedALA()),
    "fedamp": ("attentive message passing between close models", FedAMP()),
    "ifca": ("clustered federated averaging", IFCA()),
    "fedfomo": ("fetched models, weighed by what helps validation", FedFomo()),
    "cga": ("gossip with steps that contradict no neighbour", CGA()),
    "spdb": ("gossip of the body, a personal head", SPDB()),
    "dfedpgp": ("bodies pushed to random peers, a personal head", DFedPGP()),
    "dada": ("models and an undirected graph, in turn", Dada()),
    "cobo": ("partners whose gradients agree half-way", CoBo()),
    "dpfl": ("sets of partners that do well together on validation data", DPFL()),
    "l2c": ("mixing weights learned on validation data", L2C()),
    "meta-l2c": ("the same by a common encoder", MetaL2C()),
    "pfedgraph": ("a graph by the similarity of models", PFedGraph()),
    "pens": ("gossip with those whose models suit their own data", PENS()),
    "truth": ("mixing by the true graph, where it is known", Truth()),
    "scool-dirac": ("SCooL, Dirac prior: D-PSGD", SCooL(prior=Dirac())),
    "scool-sbm": ("SCooL, stochastic block model", SCooL(prior=SBM())),
    "scool-sbm-learned": ("the same, block matrix learned", SCooL(prior=SBM(learn_B=True))),
    "scool-attention": ("SCooL, attention prior", SCooL(prior=Attention())),
    "scool-drawn": (
        "SCooL, new peers drawn in every round, for tasks that overlap",
        SCooL(prior=SBM(), peers="drawn", aggregate="models"),
    ),
    "scool-mmsbm": ("SCooL, mixed-membership blocks", SCooL(prior=MMSBM())),
    "scool-sbm-released": (
        "what the authors' SBM program computes",
        SCooL(
            prior=SBM(
                num_blocks=2, temperature=2.0, null_loglik=0.0, warm_start=False, compat="released"
            ),
            draw=CrossDraw(cross_samples=10, cross_draw="pair"),
            keep_self=False,
        ),
    ),
    "scool-attention-released": (
        "what the authors' attention program computes",
        SCooL(
            prior=Attention(
                temperature=2.0,
                encoder_out=20,
                prior_lr=0.2,
                prior_betas=(0.9, 0.99),
                prior_optimizer="adamw",
                encoder_target="likelihood",
                compat="released",
            ),
            draw=CrossDraw(cross_samples=10, cross_draw="pair"),
            keep_self=False,
        ),
    ),
}
"""All methods by name, each with a short description."""
