"""Which methods run on peers. What cannot is refused before anybody connects."""

from dataclasses import replace
from typing import Any

from scool.algorithms.scool import SCooL
from scool.algorithms.truth import Truth
from scool.contracts import Method
from scool.errors import ConfigError

VERBS = frozenset({"train", "gradient", "measure", "judge", "cross_loss", "peer_loss", "mix"})
"""The verbs of the engine that peers have; all but the last three stay at home."""
REMEDY = "Use scool-sbm, or dpsgd; docs/peers.md lists what runs on peers"


def check_method(method: Method[Any], name: str = "") -> None:
    """Refuse a method that needs a server, the true graph, or verbs that peers do not have.

    Raises:
        ConfigError: says what is missing and what to use.
    """
    name = name or type(method.plain).__name__
    why = ""
    if method.meets == "server":
        why = "it needs a server, and peers have none"
    elif not method.verbs:
        why = "it does not say which verbs of the engine it uses. Declare `verbs`"
    elif missing := method.verbs - VERBS:
        why = f"it needs {', '.join(sorted(missing))}, which peers do not offer"
    elif not _knows_its_graph(method):
        why = "it needs the true graph, which no peer knows"
    if why:
        raise ConfigError(f"method {name!r} does not run on peers: {why}. {REMEDY}")


def check_elastic(method: Method[Any], name: str = "") -> None:
    """Refuse a method that does not bear missing peers.

    Raises:
        ConfigError: says why and what to set.
    """
    plain = method.plain
    name = name or type(plain).__name__
    if getattr(plain, "form", "") == "primal-dual":
        raise ConfigError(
            f"method {name!r} is not possible with mode = 'elastic' and form = 'primal-dual': its "
            "dual variables would add up what is missing. Set form = 'gossip', or mode = 'strict'"
        )
    if isinstance(plain, SCooL) and plain.prior.mixes == "updates" and plain.shares_data:
        if plain.aggregate == "updates":
            raise ConfigError(
                "aggregate = 'updates' is not possible with mode = 'elastic': a peer that misses "
                "updates drifts away from its group and never comes back. Set aggregate = "
                "'models' in the options of the method, or mode = 'strict'"
            )


def averaging_models(method: Method[Any]) -> Method[Any]:
    """The same with `aggregate="models"`, where it would average updates: what `check_elastic`
    wants of SCooL."""
    if isinstance(method, SCooL) and method.prior.mixes == "updates" and method.shares_data:
        return replace(method, aggregate="models")
    return method


def _knows_its_graph(method: Method[Any]) -> bool:
    return not isinstance(method.plain, Truth)
