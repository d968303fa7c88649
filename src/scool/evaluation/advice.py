"""The findings of the recommended method for each owner, in a sentence or two."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

WORDS = {
    "alone": "learning alone",
    "body": "a shared body",
    "graph": "the graph",
    "common": "one model for all",
    "drawn": "drawn peers",
}
LEAST = 0.05  # least weight of a kind that an owner is advised to use
MANY = 1000  # percent of additional error from which on no number is told
PEERS = 3  # peers that are named


def advice(
    rows: Sequence[Mapping[str, Any]], graph: Tensor | None, names: Sequence[str] | None
) -> list[str] | None:
    """Words for each client; None if no row has weights of kinds of cooperation.

    Args:
        rows: those of a run; `tracks` has the weights of each kind and `held_out` its score on
            samples that were held out: percent, or minus the mean squared error.
        graph: (K, K) of the last round.
        names: of the clients; None: their numbers.
    """
    row = next((row for row in reversed(rows) if row.get("tracks")), None)
    if row is None:
        return None
    clients = len(next(iter(row["tracks"].values())))
    names = names or [f"client {i}" for i in range(clients)]
    return [_words(row, i, graph, names) for i in range(clients)]


def _words(row: Mapping[str, Any], i: int, graph: Tensor | None, names: Sequence[str]) -> str:
    weights = {kind: values[i] or 0.0 for kind, values in row["tracks"].items()}
    used = sorted((k for k in weights if weights[k] >= LEAST), key=lambda kind: -weights[kind])
    own = weights.get("alone", 0.0)
    verdict = "learns mostly alone" if own > 0.5 else "gains from others"
    if own <= 0.5 and _is_against(row["held_out"], used, i):
        verdict = "learns from others, since that suits most owners"
    shares = ", ".join(f"{weights[kind]:.0%} {WORDS[kind]}" for kind in used)
    found = [f"{names[i]} {verdict}: {shares}."]
    scores = {kind: values[i] for kind, values in row["held_out"].items()}
    if gains := _gains(scores):
        found.append(f"On its held-out samples, against learning alone: {gains}.")
    elif all(score is None for score in scores.values()):
        found.append("It was never judged itself and does what suits the others.")
    if own <= 0.5 and graph is not None and (peers := _peers(graph, i, names)):
        found.append(f"It learns most from {peers}.")
    return " ".join(found)


def _is_against(held_out: Mapping[str, Sequence[float | None]], used: list[str], i: int) -> bool:
    """Whether on a client's own samples learning alone is better than each kind that it uses."""
    alone = held_out["alone"][i] if "alone" in held_out else None
    others = [
        score for kind in used if kind != "alone" and (score := held_out[kind][i]) is not None
    ]
    return alone is not None and bool(others) and max(others) < alone


def _gains(scores: Mapping[str, float | None]) -> str:
    """The gain of each kind over learning alone, the best first; empty if unknown."""
    alone = scores.get("alone")
    if alone is None or not math.isfinite(alone):
        return ""
    is_error = alone < 0 or any(score is not None and score < 0 for score in scores.values())
    found: list[tuple[float, str]] = []
    for kind, score in scores.items():
        if kind == "alone" or score is None:
            continue
        if not is_error:
            found.append((score - alone, f"{WORDS[kind]} {score - alone:+.1f} points"))
        elif alone:
            change = 100 * (score - alone) / alone  # of the squared error
            words = f"{change:+.0f} % error" if change < MANY else "many times the error"
            found.append((-change, f"{WORDS[kind]} {words}"))
    return ", ".join(words for _, words in sorted(found, reverse=True))


def _peers(graph: Tensor, i: int, names: Sequence[str]) -> str:
    """The peers that stand out: with at least twice the weight of equal shares."""
    row = graph[i].double().clone()
    row[i] = 0
    best = row.argsort(descending=True, stable=True)[:PEERS].tolist()
    return ", ".join(f"{names[j]} ({row[j]:.2f})" for j in best if row[j] * len(row) > 2)
