"""What a person's own prior must be and give, said at its first use."""

from typing import Any, get_args

from torch import Tensor

from scool.contracts import Evidence, Mixes, SelfMode
from scool.errors import ConfigError, require, unknown


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
    """Refuse a posterior that is no (K, K) matrix of numbers: rows of NaN would leave their
    clients alone, and nobody would know.

    Raises:
        ConfigError: names the prior and what is wrong.
    """
    w, size = getattr(graph, "w", None), tuple(evidence.seen.shape)
    if not isinstance(w, Tensor):
        raise ConfigError(
            f"e_step of {type(prior).__name__} gave {type(w).__name__} as w: give a state with a "
            f"tensor w of shape {size}; see docs/own-prior-or-method.md"
        )
    if tuple(w.shape) == size and bool(w[evidence.seen].isfinite().all()):
        return
    odd = int((~w.isfinite()).sum())
    raise ConfigError(
        f"e_step of {type(prior).__name__} gave w of shape {tuple(w.shape)}, {odd} entries of it "
        f"not finite: give weights of shape {size}; see docs/own-prior-or-method.md"
    )
