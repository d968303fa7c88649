"""Run folders for tests, written as runs write them."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from scool.data.federation import Federation
from scool.recording.checkpoint import _digest
from scool.recording.clients import NAME, clients_file
from scool.recording.folder import METRICS, RunFolder
from scool.recording.lines import Log
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


def killed_after(run: Path, rounds: int) -> None:
    """The folder as a kill leaves it after the checkpoint of so many rounds: what is newer is
    recorded, and no manifest names it."""
    newer = [*run.glob("*.jsonl"), *(run / "graphs").iterdir()]
    kept = {file: file.read_bytes() for file in newer}
    change_header(run, rounds_done=0)
    stop_at(run, rounds)
    for file, content in kept.items():
        file.write_bytes(content)


def write_sealed(path: Path, values: Mapping[str, Any]) -> None:
    """A JSON record with a checksum that fits."""
    path.write_text(json.dumps(with_seal(values)))


def write_runs(search: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """The finished runs of a search, sealed."""
    about = json.loads((search / "tune.json").read_text())
    Log(search / "tune.jsonl", about["run"], runs).rewrite()


def drop(run: Path, *names: str) -> None:
    """The folder without some files, as if it had been allowed to lose them: no manifest names
    them any more."""
    RunWriter.open(run).forget(*names)


def make_old(run: Path, name: str = "run.json") -> None:
    """The folder as the first version would have written it: no identity, no seals, no manifest.

    Args:
        name: of the file that says what the folder is; `tune.json` of a search.
    """
    (run / "manifest.json").unlink(missing_ok=True)
    header = json.loads((run / name).read_text())
    header = {n: v for n, v in header.items() if n not in ("run", SEAL)}
    header["format"] = header["format"].replace("-2", "-1")
    (run / name).write_text(json.dumps(header))
    for file in [*run.glob("*.safetensors"), *run.glob("graphs/*.safetensors")]:
        _unseal(file)
    for log in run.glob("*.jsonl"):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        text = "".join(json.dumps(_unsealed(row)) + "\n" for row in rows)
        log.write_text(text)


def _unseal(path: Path) -> None:
    """A file of tensors of the first format."""
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["scool"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    if SEAL not in about:
        return
    about = {n: v for n, v in about.items() if n not in ("run", "tensors", "parts", SEAL)}
    about["format"] = about["format"].replace("-2", "-1")
    if "rounds" in about:
        about["sha256"] = _digest(tensors, about["rounds"])
    save_file(tensors, path, metadata={"scool": json.dumps(about)})


def _unsealed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != SEAL}


def write_clients(path: Path, federation: Federation) -> None:
    """A folder with nothing but the record of its clients."""
    writer = RunWriter(path, {"run": None})
    writer.write(NAME, "clients", *clients_file(federation))


@contextmanager
def tiny_file_system(place: Path, size: str) -> Iterator[Path]:
    """A file system of so few bytes; the test is skipped where the machine allows none."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if done.returncode:
        pytest.skip(f"mount is not permitted: {done.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
