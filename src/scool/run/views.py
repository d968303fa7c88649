"""A result as a person wants to see it and hand it on: tables, HTML, files."""

from typing import TYPE_CHECKING, Any

from scool.errors import need
from scool.evaluation.metrics import metric_columns

if TYPE_CHECKING:
    from scool.run.result import Result


def rounds_frame(result: "Result") -> Any:
    """One row per round: the numbers of the history."""
    pandas = need("pandas", "to_pandas")
    kept = [
        {name: v for name, v in row.items() if isinstance(v, int | float | None)}
        for row in result.history
    ]
    return pandas.DataFrame(kept).set_index("round")


def clients_frame(result: "Result") -> Any:
    """One row per client: score, metrics and block of the last round, group, samples."""
    pandas = need("pandas", "to_pandas")
    frame = result.federation.to_pandas()
    last = result.history[-1] if result.history else {}
    if last.get("blocks") is not None:
        frame.insert(0, "block", pandas.array(last["blocks"], dtype="Int64"))  # may lack some
    for metric, values in reversed((last.get("metrics") or {}).items()):
        frame.insert(0, metric, pandas.array(values, dtype="Float64"))  # None: not defined
    name = "accuracy" if result.federation.task == "classification" else "r2"
    frame.insert(0, name, result.score.tolist())
    return frame


def result_html(result: "Result") -> str:
    """The key figures and the graph, for a notebook."""
    from scool.display.html import html_table

    summary = result.summary()
    name = "accuracy" if result.federation.task == "classification" else "r2"
    mean, std = summary[f"{name}_mean"], summary[f"{name}_std"]
    unit = " %" if name == "accuracy" else ""
    score = "–" if mean is None else f"{mean:.3f} ± {std or 0:.3f}{unit}, mean ± std over clients"
    rows: list[tuple[str, Any]] = [
        ("method", result.method),
        ("data", f"{result.federation.name}, {result.federation.num_clients} clients"),
        ("rounds", f"{result.rounds} in {result.seconds:.1f} s, seed {result.seed}"),
        ("test accuracy" if name == "accuracy" else "test R²", score),
    ]
    for column in metric_columns([summary]):
        rows.append((column.words, column.text(summary[column.name])))
    if summary["graph_l1"] is not None:
        rows.append(("graph L1", f"{summary['graph_l1']:.3f}, distance to the true graph, 0 to 2"))
    rows.append(("sent", f"{result.bytes_sent / 1e6:,.1f} MB in {result.messages:,} messages"))
    if summary["quarantined"]:
        rows.append(("in quarantine", ", ".join(summary["quarantined"])))
    if result.run_dir is not None:
        rows.append(("records", result.run_dir))
    graph = result.graph
    return html_table(rows) + ("" if graph is None else graph._repr_html_())
