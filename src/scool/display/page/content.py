"""Everything a page shows, as plain values and compressed graphs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scool.columns import flatten_options, shown
from scool.display.differences import group_runs, options_of
from scool.display.layout import learned_order, positions
from scool.display.order import known_order
from scool.display.page.pack import pack_graphs, pack_matrix, rounded
from scool.display.records import RunRecord, are_regression
from scool.display.series import (
    against_local,
    cumulative,
    curves,
    figures,
    final_scores,
    local_of,
)
from scool.evaluation.advice import advice
from scool.evaluation.metrics import metric_columns

GRAPH_BUDGET = 8_000_000
"""Characters of all graphs of a page; with Plotly and the rest it stays below 12 MB."""


class Content(NamedTuple):
    """What `page.js` reads."""

    values: dict[str, Any]
    blobs: dict[str, str]  # name -> gzip in base64


def page_content(records: Sequence[RunRecord], title: str, problems: Sequence[str] = ()) -> Content:
    """All runs side by side. Runs that differ in the seed alone share a line."""
    groups = group_runs(records)
    blobs: dict[str, str] = {}
    keys = list(dict.fromkeys(record.federation_key for record in records))
    first = {key: next(r for r in records if r.federation_key == key) for key in keys}
    federations = [_federation(number, first[key], blobs) for number, key in enumerate(keys)]
    left = GRAPH_BUDGET
    label_of = {run: label for label, runs in groups.items() for run in runs}
    runs: list[dict[str, Any]] = []
    for number, record in enumerate(records):
        # What a run does not use of its share is left to the runs after it.
        runs.append(
            _run(number, record, label_of[number], keys, left // (len(records) - number), blobs)
        )
        left -= len(blobs.get(f"graph-{number}", ""))
    for run, record in zip(runs, records, strict=True):
        run |= {"local": local_of(record, records), "kin": _kin(record, records)}
    lines = [
        {
            "label": label,
            "runs": members,
            **curves([records[m] for m in members]),
            "figures": figures([records[m] for m in members]),
            "against": against_local([records[m] for m in members], records),
            "sparsify_round": _sparsify_round([records[m] for m in members]),
        }
        for label, members in groups.items()
    ]
    metrics = metric_columns(r.evaluated[-1] for r in records if r.evaluated)
    known = [c for c in shown("page") if any(n["figures"][c.name] is not None for n in lines)]
    values = {
        "title": title,
        "regression": are_regression(records),
        "lines": lines,
        "runs": runs,
        "federations": federations,
        "problems": list(problems),
        "metrics": [c._asdict() for c in metrics if c.name.endswith("_mean")],
        "columns": [column._asdict() for column in (*metrics, *known)],
        **_configuration(groups, records),
    }
    return Content(rounded(values), blobs)


def _run(
    number: int,
    record: RunRecord,
    label: str,
    keys: Sequence[str],
    budget: int,
    blobs: dict[str, str],
) -> dict[str, Any]:
    """One run: what the views of the graph and of single clients need."""
    last = record.rows[-1] if record.rows else {}
    packed, memberships = pack_graphs(record, budget), _memberships(record, last)
    graph: dict[str, Any] | None = None
    problems = list(record.problems)  # with what was just found damaged
    if packed is not None:
        problems += packed.problems
        graph = packed.about | {"blob": f"graph-{number}"} | _drawing(record)
        blobs[graph["blob"]] = packed.blob
    elif record.graph_files:
        problems.append("no graph file can be read: the cooperation graph is missing")
    return {
        "label": label,
        "method": record.method,
        "seed": record.seed,
        "folder": record.path.name,
        "status": record.status,
        "federation": keys.index(record.federation_key),
        "problems": problems,
        "quarantined": last.get("quarantined") or {},
        "fallback": [
            [row["round"], int(row["fallback"])] for row in record.rows if row.get("fallback")
        ],
        "final": [_short(s) for s in final_scores(record)],
        "evaluated": [row["round"] for row in record.evaluated],
        "scores": [[_short(s) for s in row["scores"]] for row in record.evaluated],
        "metrics": _last_metrics(record),
        "graph": graph,
        "advice": _advice(record),
        "memberships": memberships,
        **_traces(record),
    }


def _advice(record: RunRecord) -> list[str] | None:
    """What each client may learn from the run."""
    found, clients = record.last_graph(), record.clients
    names = clients.client_names if clients else None
    return advice(record.rows, None if found is None else found[1], names)


def _last_metrics(record: RunRecord) -> dict[str, list[float | None]]:
    """Each client's value of each metric, by the name of the metric's column."""
    found = record.evaluated[-1].get("metrics") or {} if record.evaluated else {}
    return {f"{name}_mean": [_short(v) for v in values] for name, values in found.items()}


def _memberships(record: RunRecord, last: Mapping[str, Any]) -> list[list[float | None]] | None:
    """How much each client belongs to each block; those in quarantine belong to none."""
    found, idle = record.memberships(), last.get("quarantined") or {}
    if found is None:
        return None
    rows = rounded(found.tolist(), 3)
    return [[None] * len(row) if str(i) in idle else row for i, row in enumerate(rows)]


def _short(score: float | None) -> float | None:
    return None if score is None else round(score, 4 if abs(score) < 2 else 2)


def _traces(record: RunRecord) -> dict[str, Any]:
    """What a round says about the graph and the traffic, column by column."""
    found: dict[str, Any] = {"rounds": [row["round"] for row in record.rows]}
    spent_or_reached = (c.field for c in shown("page") if c.of != "run")
    for name in (*spent_or_reached, "elbo", "edges", "blocks"):
        values = [row.get(name) for row in record.rows]
        found[name] = values if any(v is not None for v in values) else None
    purposes = sorted({purpose for row in record.rows for purpose in row.get("traffic") or {}})
    found["traffic"] = {
        purpose: [(row.get("traffic") or {}).get(purpose, 0) for row in record.rows]
        for purpose in purposes
    }
    found["total_bytes"] = max(cumulative(record, "bytes").values(), default=None)
    return found


def _drawing(record: RunRecord) -> dict[str, Any]:
    """Orders and places of the clients in the pictures of a graph, from its last round."""
    found = record.last_graph()
    assert found is not None
    order, blocks = learned_order(record, found[1])
    return {"learned_order": order, "learned_blocks": blocks, "places": positions(found[1])}


def _federation(number: int, record: RunRecord, blobs: dict[str, str]) -> dict[str, Any]:
    """The clients: names, classes, groups and the true graph, as far as they are recorded."""
    clients = record.clients
    about: dict[str, Any] = {
        "name": record.federation_name,
        "clients": record.num_clients or 0,
        "names": None,
        "classes": None,
        "counts": None,
        "groups": None,
        "true_order": None,
        "true_words": None,
        "truth": None,
    }
    if clients is None:
        return about
    outputs = clients.counts["train"].shape[1]
    numbers = [str(c) for c in range(outputs)]
    about |= {
        "names": clients.client_names,
        "classes": ["samples"] if clients.task == "regression" else clients.class_names or numbers,
        "counts": {part: counts.tolist() for part, counts in clients.counts.items()},
    }
    if clients.groups is not None:
        about["groups"] = clients.groups.tolist()
    if known := known_order(clients.groups, clients.held):
        about["true_order"], about["true_words"] = known
    if clients.truth is not None:
        drawn, blob = pack_matrix(clients.truth)
        blobs[f"truth-{number}"] = blob
        about["truth"] = drawn | {
            "blob": f"truth-{number}",
            "places": positions(clients.truth),
        }
        if about["true_order"] is None:
            about["true_order"] = learned_order(record, clients.truth)[0]
            about["true_words"] = "true graph"
    return about


def _kin(record: RunRecord, records: Sequence[RunRecord]) -> int:
    """The first run of the same clients: equal for runs that can be compared client by client."""
    return next(n for n, other in enumerate(records) if record.same_clients(other))


def _sparsify_round(records: Sequence[RunRecord]) -> int | None:
    """The round after which peers were dropped, where it was reached."""
    chosen = records[0].algorithm.get("sparsify_round")
    reached = isinstance(chosen, int) and 0 <= chosen < max(r.rounds for r in records) - 1
    return chosen if reached else None


def _configuration(
    groups: Mapping[str, Sequence[int]], records: Sequence[RunRecord]
) -> dict[str, Any]:
    """Options that all methods share, and those in which they differ."""
    by_label = {label: options_of(records[runs[0]]) for label, runs in groups.items()}
    names = list(dict.fromkeys(name for options in by_label.values() for name in options))
    names = [name for name in names if name.split(".")[-1] != "seed"]
    common: dict[str, str] = {}
    different: dict[str, dict[str, str]] = {}
    for name in names:
        values = {label: options.get(name) for label, options in by_label.items()}
        if all(value == next(iter(values.values())) for value in values.values()):
            common[name] = _word(next(iter(values.values())))
        elif name != "method":
            different[name] = {
                label: _word(value) for label, value in values.items() if name in by_label[label]
            }
    header = records[0].header
    machine = flatten_options({n: header.get(n) or {} for n in ("versions", "hardware")})
    about = {name: _word(value) for name, value in machine.items() if name}
    command = header.get("command")
    if command:
        about["command"] = " ".join(map(str, command))
    return {"common": common, "different": different, "machine": about}


def _word(value: Any) -> str:
    return "none" if value is None or value == {} else str(value)
