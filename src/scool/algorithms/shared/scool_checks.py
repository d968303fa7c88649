"""Which options of SCooL are possible, which go together, and what they need."""

from typing import TYPE_CHECKING

from scool.errors import ConfigError, check_fields, require
from scool.priors import Attention
from scool.priors.checks import check_prior

if TYPE_CHECKING:
    from scool.algorithms.scool import SCooL


def check_options(method: "SCooL") -> None:
    """Refuse what cannot be, or would be ignored.

    Raises:
        ConfigError: names the option, its value and the remedy.
    """
    check_fields(method)
    check_prior(method.prior)
    _check_numbers(method)
    if method.aggregate == "models":
        _check_models(method)
    if method.peers == "drawn":
        remedy = "peers = 'drawn' is for a graph that is sparse; give 0 or more"
        require(method.sparsify_round >= 0, "sparsify_round", method.sparsify_round, remedy)
        remedy = "nobody learns from peers' data here; leave it at 'best'"
        require(method.shares_data, "peers", method.peers, remedy)
    if method.cross_gradient == "exact":
        _check_exact(method)


def _check_numbers(method: "SCooL") -> None:
    for name in ("model_precision", "model_coupling"):
        require(getattr(method, name) >= 0, name, getattr(method, name), "give 0 or more")
    require(0 < method.fraction <= 1, "fraction", method.fraction, "give a fraction in (0, 1]")
    require(0 <= method.cross_ema < 1, "cross_ema", method.cross_ema, "give a number in [0, 1)")
    rounds = method.sparsify_round
    require(rounds >= -1, "sparsify_round", rounds, "give -1 or more")
    remedy = "give 4 or more, 0 for all peers, or -1 to choose by the number of clients"
    is_possible = method.candidates in (-1, 0) or method.candidates >= 4
    require(is_possible, "candidates", method.candidates, remedy)


def _check_models(method: "SCooL") -> None:
    """Averages of models instead of updates."""
    remedy = "this prior mixes models by itself; leave it at 'updates'"
    require(method.prior.mixes == "updates", "aggregate", method.aggregate, remedy)
    remedy = "only rows that sum to 1 can average models; leave weighting at 'row'"
    require(method.weighting == "row", "weighting", method.weighting, remedy)
    is_possible = method.cross_gradient == "local" and method.shares_data
    remedy = "without peers' data, or with exact gradients, leave it at 'updates'"
    require(is_possible, "aggregate", method.aggregate, remedy)


def _check_exact(method: "SCooL") -> None:
    """Cross gradients that travel."""
    if not method.shares_data:
        raise ConfigError(
            "cross_gradient = 'exact' is not possible in case 1.1: no model learns from a "
            "peer's data there. Leave it at 'local', or set likelihood to 'shared'"
        )
    if method.sgd.steps != 1:
        raise ConfigError(
            f"cross_gradient = 'exact' is not possible with steps = {method.sgd.steps}: an exact "
            "cross gradient is one of a single step. Give --steps 1, or cross_gradient local"
        )


def verbs_of(method: "SCooL") -> frozenset[str]:
    """The verbs of the engine that the options need; attention trains a common encoder."""
    found = {"train", "mix"}
    found |= {"cross_loss"} if method.shares_data else set()
    found |= {"gather", "total"} if isinstance(method.prior, Attention) else set()
    found |= {"squared_distances"} if method.model_coupling else set()
    found |= {"cross_gradient"} if method.cross_gradient == "exact" else set()
    return frozenset(found)
