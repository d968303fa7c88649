"""Run folders for tests, written as runs write them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scool.data.federation import Federation
from scool.recording.clients import NAME, clients_file
from scool.recording.folder import METRICS, RunFolder
from scool.recording.log import Log
from scool.recording.seals import SEAL, with_seal
from scool.recording.writer import RunWriter


def change_header(run: Path, **changes: Any) -> None:
    """`run.json` with other values; None takes a field away."""
    header = json.loads((run / "run.json").read_text()) | changes
    header = {n: v for n, v in header.items() if n != SEAL and (v is not None or n not in changes)}
    sealed = with_seal(header) if "run" in header else header
    (run / "run.json").write_text(json.dumps(sealed))


def change_rows(run: Path, change: Any, name: str = METRICS) -> None:
    """A log with other rows, sealed; `change` gets the list and may give another."""
    rows = RunFolder(run).rows(name)
    rows = change(rows) or rows
    (run / "manifest.json").unlink(missing_ok=True)
    Log(run / name, RunFolder(run).run or "", rows).rewrite()


def stop_at(run: Path, rounds: int) -> list[bytes]:
    """Make a run look as if it were in progress; the lines of metrics.jsonl that went."""
    lines = (run / METRICS).read_bytes().splitlines(keepends=True)
    change_header(run, status="running", result=None)
    RunWriter.take_up(RunFolder(run), rounds)
    return lines[rounds:]


def make_old(run: Path) -> None:
    """The folder as the first version would have written it: no identity, no seals, no manifest.
    Checkpoints are left as they are."""
    (run / "manifest.json").unlink(missing_ok=True)
    header = json.loads((run / "run.json").read_text())
    header = {n: v for n, v in header.items() if n not in ("run", SEAL)}
    (run / "run.json").write_text(json.dumps(header | {"format": "scool-run-1"}))
    for log in run.glob("*.jsonl"):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        text = "".join(json.dumps(_unsealed(row)) + "\n" for row in rows)
        log.write_text(text)


def _unsealed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != SEAL}


def write_clients(path: Path, federation: Federation) -> None:
    """A folder with nothing but the record of its clients."""
    writer = RunWriter(path, {"run": None})
    writer.write(NAME, "clients", *clients_file(federation))
