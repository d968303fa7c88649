"""Which methods run on peers. What cannot is refused before anybody connects."""

from dataclasses import replace
from typing import Any

from scool.algorithms.scool import SCooL
from scool.algorithms.truth import Truth
from scool.contracts import Method
from scool.errors import ConfigError
from scool.run.checks import check_rate

AT_HOME = frozenset({"train", "gradient", "measure", "judge", "inner", "squared_distances"})
VERBS = AT_HOME | {"cross_loss", "peer_loss", "mix", "gather", "view"}
"""The verbs of the engine that peers have; those at home send nothing."""
BY_SERVER = frozenset({"inner", "squared_distances"})
"""What a server knows of the models of all, and a peer of its own."""
REMEDY = "Use scool-sbm, or dpsgd; docs/peers.md lists what runs on peers"


def check_method(method: Method[Any], name: str = "") -> None:
    """Refuse a method that needs a server, the true graph, or verbs that peers do not have.

    Raises:
        ConfigError: says what is missing and what to use.
    """
    name = name or type(method.plain).__name__
    check_rate(method)
    why = ""
    missing = method.verbs - VERBS
    if method.meets == "server" and (missing or method.verbs & BY_SERVER):
        why = "it needs a server, and peers have none"
    elif not method.verbs:
        why = "it does not say which verbs of the engine it uses. Declare `verbs`"
    elif missing:
        why = f"it needs {', '.join(sorted(missing))}, which peers do not offer"
    elif _needs_all_distances(method):
        why = "it needs the distances between models of other peers, which no peer knows"
    elif not _knows_its_graph(method):
        why = "it needs the true graph, which no peer knows"
    if why:
        raise ConfigError(f"method {name!r} does not run on peers: {why}. {REMEDY}")
    if getattr(method.plain, "evidence", "") == "samples":
        raise ConfigError(
            f"method {name!r} does not run on peers with evidence = 'samples': losses of single "
            "samples stay with their owner. Leave evidence out, or set it to 'sums'"
        )


def on_peers(method: Method[Any]) -> Method[Any]:
    """The method with the options that it has on peers by default: a method that weighs kinds by
    held-out samples is told sums over them."""
    is_told = hasattr(method, "evidence")
    return replace(method, evidence="sums") if is_told else method  # type: ignore[call-arg]


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
    if sums := getattr(plain, "adds_up", ""):
        raise ConfigError(
            f"method {name!r} is not possible with mode = 'elastic': its {sums} would add up what "
            "is missing. Take another method, or mode = 'strict'"
        )
    if option := _averages_updates(plain):
        raise ConfigError(
            f"{option} = 'updates' is not possible with mode = 'elastic': a peer that misses "
            f"updates drifts away from its group and never comes back. Set {option} = 'models' in "
            "the options of the method, or mode = 'strict'"
        )


def _averages_updates(plain: Any) -> str:
    """The option by which a method averages updates; empty where it averages models."""
    return getattr(plain, "averages_updates", "")


def averaging_models(method: Method[Any]) -> Method[Any]:
    """The same with `models` where it would average updates: what `check_elastic` wants."""
    if option := _averages_updates(method):
        return replace(method, **{option: "models"})  # type: ignore[call-arg]
    return method


def _needs_all_distances(method: Method[Any]) -> bool:
    """Each peer knows those of its own model only."""
    return isinstance(method.plain, SCooL) and method.plain.model_coupling > 0


def _knows_its_graph(method: Method[Any]) -> bool:
    return not isinstance(method.plain, Truth)
