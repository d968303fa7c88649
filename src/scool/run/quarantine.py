"""Clients whose numbers are not finite: who is left out, what is said, what is recorded."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from scool.contracts import Engine
from scool.data.federation import Federation
from scool.errors import QuarantineError, first_few
from scool.graph.edges import SMALL, Edges
from scool.graph.normalise import edges_without, without
from scool.health import BROKEN_DATA, Reason, not_finite


def check_anybody(engine: Engine) -> None:
    """Stop when there is nobody left to learn."""
    if not bool(engine.active.any()):
        why = ", ".join(sorted(set(engine.health.words.values())))
        raise QuarantineError(
            f"all {engine.num_clients} clients are in quarantine (non-finite {why}): nobody is "
            "left to learn. Lower lr, or clean the data"
        )


def warn_quarantined(row: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> None:
    """Where nobody watches: who was left out in this round."""
    known = before[-1]["quarantined"] if before else {}
    for client, why in row["quarantined"].items():
        if client not in known:
            when, remedy = f"after round {row['round'] + 1}", "Lower lr, or look at its data"
            if Reason.read(why).code == "data":
                when, remedy = "from the start", "Mend its data"
            words = f"client {client} is left out {when}: non-finite {why}. {remedy}"
            warnings.warn(words, stacklevel=4)


def as_mixed(info: Mapping[str, Any], active: Tensor) -> dict[str, Any]:
    """Nobody mixes what clients in quarantine have, whatever weights a method gives them. (One that
    mixes before it trains did so a last time in the round in which a client breaks.) The graph of
    few clients is given on as a matrix, which people and records find easier."""
    graph = info["graph"]
    if not isinstance(graph, Edges):
        return {**info, "graph": without(graph, active.to(graph.device))}
    graph = edges_without(graph, active)
    return {**info, "graph": graph.dense() if len(graph) <= SMALL else graph}


def check_test(federation: Federation, strict: bool, is_first: bool) -> None:
    """Say whose test data are no numbers; those clients get no score.

    Raises:
        QuarantineError: there are some, and the run is strict.
    """
    broken = (~federation.test.is_finite()).nonzero()[:, 0].tolist()
    if broken and strict:
        raise not_finite(broken[0], f"test {BROKEN_DATA.words}")
    if broken and is_first:
        warnings.warn(
            f"{len(broken)} of {federation.num_clients} clients have non-finite test "
            f"{BROKEN_DATA.words} (clients {first_few(broken)}): they get no score. Fix these "
            "samples, or leave them out",
            stacklevel=4,
        )
