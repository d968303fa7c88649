"""A result as a person wants to see it and hand it on: tables, HTML, files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scool.errors import RunError, need
from scool.models import fixed_tensors
from scool.recording.clients import Clients, describe_clients
from scool.recording.folder import is_taken, make_folder
from scool.recording.seals import Manifest, whole_file
from scool.run.graph import Graph
from scool.run.load import export_models
from scool.types import Params, Tree

if TYPE_CHECKING:
    from scool.run.result import Result


def rounds_frame(result: "Result") -> Any:
    """One row a round: the numbers of the history."""
    pandas = need("pandas", "to_pandas")
    kept = [
        {name: v for name, v in row.items() if isinstance(v, int | float | None)}
        for row in result.history
    ]
    return pandas.DataFrame(kept).set_index("round")


def clients_frame(result: "Result") -> Any:
    """One row a client: group, samples, block and score of the last round."""
    pandas = need("pandas", "to_pandas")
    frame = result.federation.to_pandas()
    last = result.history[-1] if result.history else {}
    if last.get("blocks") is not None:
        frame.insert(0, "block", pandas.array(last["blocks"], dtype="Int64"))  # may lack some
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
    if summary["graph_l1"] is not None:
        rows.append(("graph L1", f"{summary['graph_l1']:.3f}, distance to the true graph, 0 to 2"))
    rows.append(("sent", f"{result.bytes_sent / 1e6:,.1f} MB in {result.messages:,} messages"))
    if summary["quarantined"]:
        rows.append(("in quarantine", ", ".join(summary["quarantined"])))
    if result.run_dir is not None:
        rows.append(("records", result.run_dir))
    graph = result.graph
    return html_table(rows) + ("" if graph is None else graph._repr_html_())


def export_result(result: "Result", folder: Path) -> list[Path]:
    """The graph and the models of a result as files."""
    header = {
        "run": result.run,
        "method": result.method,
        "model": result.network,
        "complete": True,
    }
    clients = describe_clients(result.federation)
    fixed = fixed_tensors(result.module)
    return write_export(result.graph, result.theta, fixed, header, clients, folder)


def write_export(
    graph: Graph | None,
    theta: Tree,
    fixed: Params,
    header: Mapping[str, Any],
    clients: Clients | None,
    folder: Path,
) -> list[Path]:
    """`graph.graphml`, `graph.csv`, and `models/` with one file per client; `manifest.json` has
    their checksums.

    Raises:
        RunError: the folder holds something, which models of two runs would be mixed with.
    """
    if is_taken(folder):
        raise RunError(f"{folder} exists already: choose another folder (--out)")
    make_folder(folder / "models")
    try:
        paths: list[Path] = []
        if graph is not None:
            paths += [
                graph.write_graphml(folder / "graph.graphml"),
                graph.write_csv(folder / "graph.csv"),
            ]
        seals = export_models(theta, fixed, header, clients, folder / "models")
        files = {path.name: whole_file(path) for path in paths}
        files |= {f"models/{path.name}": seal for path, seal in seals.items()}
        Manifest(header.get("run") or "", files).write(folder)
    except RunError as error:
        raise RunError(f"{error}. {folder} is not whole: delete it before the next try") from error
    return [*paths, *seals]
