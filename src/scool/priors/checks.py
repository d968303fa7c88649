"""What a person's own prior must be and give, said at its first use."""

from typing import Any, get_args

from torch import Tensor

from scool.contracts import Evidence, Mixes, SelfMode
from scool.errors import ConfigError, require, unknown
from scool.graph.edges import Edges, values_at

SLACK = 1e-6  # a graph that a person gives may be as far below 0, see `check_mixing_matrix`


def check_prior(prior: Any) -> None:
    """Refuse what is no prior.

    Raises:
        ConfigError: it cannot infer a graph, or says nothing known about self-loops.
    """
    is_prior = hasattr(prior, "e_step") and not isinstance(prior, type)
    require(is_prior, "prior", prior, "give a prior, e.g. scool.SBM()")
    for name, known in (("self_mode", get_args(SelfMode)), ("mixes", get_args(Mixes))):
        value = getattr(prior, name, None)
        if value not in known:
            unknown(f"{name} of {type(prior).__name__}", str(value), known)


def check_posterior(prior: Any, graph: Any, evidence: Evidence) -> None:
    """Refuse a posterior that is not a (K, K) matrix of finite weights of 0 or more: rows of NaN
    would leave their clients alone, and nobody would know.

    Raises:
        ConfigError: names the prior and what is wrong.
    """
    w, pairs = getattr(graph, "w", None), Edges.of(evidence.seen)
    size = tuple(pairs.shape)
    if not isinstance(w, Tensor | Edges):
        raise ConfigError(
            f"e_step of {type(prior).__name__} gave {type(w).__name__} as w: give a state with a "
            f"tensor w of shape {size}; see docs/own-prior-or-method.md"
        )
    if tuple(w.shape) == size:
        measured = values_at(w, pairs)
        if bool(measured.isfinite().all()) and bool((measured >= -SLACK).all()):
            return
    found = w.values if isinstance(w, Edges) else w
    odd, negative = int((~found.isfinite()).sum()), int((found < -SLACK).sum())
    raise ConfigError(
        f"e_step of {type(prior).__name__} gave w of shape {tuple(w.shape)}, {odd} entries of it "
        f"not finite and {negative} negative: give weights of 0 or more of shape {size}; see "
        "docs/own-prior-or-method.md"
    )
