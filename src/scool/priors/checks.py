"""What a person's own prior must be and give, said at its first use."""

from typing import Any, get_args

from scool.contracts import Evidence, SelfMode
from scool.errors import ConfigError, require, unknown


def check_prior(prior: Any) -> None:
    """Refuse what is no prior.

    Raises:
        ConfigError: it cannot infer a graph, or says nothing known about self-loops.
    """
    is_prior = hasattr(prior, "e_step") and not isinstance(prior, type)
    require(is_prior, "prior", prior, "give a prior, e.g. scool.SBM()")
    mode = getattr(prior, "self_mode", None)
    if mode not in get_args(SelfMode):
        unknown(f"self_mode of {type(prior).__name__}", str(mode), get_args(SelfMode))


def check_posterior(prior: Any, graph: Any, evidence: Evidence) -> None:
    """Refuse a posterior that is no (K, K) matrix of numbers: rows of NaN would leave their
    clients alone, and nobody would know.

    Raises:
        ConfigError: names the prior and what is wrong.
    """
    w, size = graph.w, tuple(evidence.seen.shape)
    if tuple(w.shape) == size and bool(w[evidence.seen].isfinite().all()):
        return
    odd = int((~w.isfinite()).sum())
    raise ConfigError(
        f"e_step of {type(prior).__name__} gave w of shape {tuple(w.shape)}, {odd} entries of it "
        f"not finite: give weights of shape {size}; see docs/own-prior-or-method.md"
    )
