"""One round as one line of numbers."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from scool.contracts import Engine
from scool.data.federation import Federation
from scool.evaluation.scores import Scores, adjusted_rand, communities, graph_l1
from scool.graph.edges import SMALL, Edges, Matrix, as_matrix
from scool.run.result import finite, spread
from scool.types import Info


def describe_round(
    t: int, info: Info, scores: Scores | None, engine: Engine, federation: Federation
) -> dict[str, Any]:
    """The row of round t. Nothing in it depends on the clock. Closes the ledger's round."""
    traffic = engine.ledger.close_round()
    row: dict[str, Any] = {"round": t, "train_loss": finite(_mean(info["train_loss"]))}
    if scores is not None:
        row |= _describe_scores(scores, federation)
        row |= describe_graph(info["graph"], engine.active, federation, engine.health.absent)
    for name, value in info.items():
        if name in ("graph", "train_loss"):
            continue
        row[name] = _plain(value)
    if isinstance(blocks := row.get("blocks"), list):  # who is in quarantine is in none
        row["blocks"] = [None if i in engine.health.reasons else b for i, b in enumerate(blocks)]
    row |= {
        "messages": traffic.total_messages,
        "bytes": traffic.total_bytes,
        "epochs": traffic.samples / int(engine.sizes.sum()),
        "traffic": {name: traffic.bytes[name] for name in sorted(traffic.bytes)},
        "quarantined": {str(client): why for client, why in engine.health.words.items()},
    }
    return row


def _plain(value: Tensor | float | Mapping[str, Any]) -> Any:
    """Numbers and lists that JSON can hold; whole numbers stay whole."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if not isinstance(value, Tensor) or value.dim() == 0:
        return finite(value)
    return [_plain(v) for v in value] if value.is_floating_point() else value.tolist()


def _mean(value: Tensor | float) -> Tensor | float:
    return value.nanmean() if isinstance(value, Tensor) else value


def _describe_scores(scores: Scores, federation: Federation) -> dict[str, Any]:
    """Accuracy in percent (or R^2), mean and spread over clients, and each client's own."""
    is_class = federation.task == "classification"
    name, score = ("accuracy", 100 * scores.score) if is_class else ("r2", scores.score)
    row = {
        f"{name}_mean": finite(score.nanmean()),
        f"{name}_std": finite(spread(score)),
        "test_loss": finite(scores.loss.nanmean()),
        "scores": [finite(s) for s in score],
    }
    for metric, values in scores.metrics.items():
        row[f"{metric}_mean"] = finite(values.nanmean())
        row[f"{metric}_std"] = finite(spread(values))
        row[f"{metric}_undefined"] = int((values.isnan() & ~scores.loss.isnan()).sum())
    if scores.metrics:
        row["metrics"] = {m: [finite(v) for v in values] for m, values in scores.metrics.items()}
    if scores.unmasked is not None:
        row["unmasked_accuracy_mean"] = finite(100 * scores.unmasked.nanmean())
    return row


def describe_owners(engine: Engine, slow: list[int]) -> dict[str, Any]:
    """Who took no part in the round and who did fewer steps, where any did; of many clients
    how many."""
    absent = engine.health.absent.nonzero()[:, 0].tolist()
    shown = {"absent": absent, "slow": [c for c in slow if bool(engine.active[c])]}
    is_few = engine.num_clients <= SMALL
    return {name: who if is_few else len(who) for name, who in shown.items() if who}


def describe_graph(
    graph: Matrix | float, active: Tensor, federation: Federation, absent: Tensor | None = None
) -> dict[str, Any]:
    """Distance to the true graph, and whether its groups show among those who are not in
    quarantine, as the others belong to none."""
    assert isinstance(graph, Tensor | Edges)
    row: dict[str, Any] = {}
    if federation.truth is None and federation.groups is None:
        return row
    graph = as_matrix(graph)  # as large as the true one
    present = None if absent is None else ~absent
    if federation.truth is not None:  # who is absent mixed nothing
        row["graph_l1"] = graph_l1(graph.cpu(), federation.truth.cpu(), present)
    if federation.groups is not None:
        groups, among = federation.groups.cpu()[active], graph.cpu()[active][:, active]
        found = communities(among, int(groups.unique().numel()))
        row["graph_ari"] = adjusted_rand(found, groups)
    return row
