"""Which methods run on peers. What cannot is refused before anybody connects."""

from typing import Any

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


def _knows_its_graph(method: Method[Any]) -> bool:
    from scool.algorithms.truth import Truth

    return not isinstance(method.plain, Truth)
