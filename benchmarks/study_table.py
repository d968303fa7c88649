"""`runs.csv`: what a study measured, one row per run, taken from its raw records alone."""

import csv
import io
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

HEADER, METRICS, TIMING = "run.json", "metrics.jsonl", "timing.jsonl"
SCORES = ("accuracy_mean", "accuracy_std", "unmasked_accuracy_mean", "graph_l1", "graph_ari")

Files = dict[str, bytes]
"""Content by name; names are relative to the study and have slashes."""


class RecordsError(Exception):
    """Something is not as it should be; the message says what to do."""


def run_folders(files: Iterable[str]) -> list[str]:
    return sorted(str(p.parent) for p in map(PurePosixPath, files) if p.name == HEADER)


def header_of(folder: str, files: Files) -> dict[str, Any]:
    """
    Raises:
        RecordsError: the `run.json` of a run is damaged.
    """
    return _parsed(f"{folder}/{HEADER}", [files[f"{folder}/{HEADER}"]])[0]


def _lines(folder: str, name: str, files: Files) -> list[dict[str, Any]]:
    return _parsed(f"{folder}/{name}", files.get(f"{folder}/{name}", b"").splitlines())


def _parsed(name: str, texts: Iterable[bytes]) -> list[dict[str, Any]]:
    try:
        found = [json.loads(text) for text in texts]
    except ValueError as error:
        raise RecordsError(f"{name} is damaged: {error}") from error
    if not all(isinstance(values, dict) for values in found):
        raise RecordsError(f"{name} is damaged: it must hold JSON objects")
    return found


def as_table(files: Files) -> str:
    """All runs of a study as CSV, sorted by folder."""
    rows = [_row(folder, files) for folder in run_folders(files)]
    if not rows:
        return ""
    text = io.StringIO()
    table = csv.DictWriter(text, rows[0], lineterminator="\n")
    table.writeheader()
    table.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _row(folder: str, files: Files) -> dict[str, Any]:
    """Scores are those of the last evaluated round; costs are sums over all rounds."""
    header = header_of(folder, files)
    result, identity, versions, hardware, memory = (
        header.get(part) or {} for part in ("result", "identity", "versions", "hardware", "memory")
    )
    rounds = _lines(folder, METRICS, files)
    last = _last(rounds)
    left_out = last.get("quarantined")
    seconds = _sum(_lines(folder, TIMING, files), "seconds")
    names = [name for name in folder.split("/") if not re.fullmatch(r"seed-\d+", name)]
    return {
        "run": folder,
        "row": names[-1] if names else folder,
        "method": header.get("method"),
        "dataset": identity.get("federation") or result.get("dataset"),
        "clients": identity.get("clients") or result.get("clients"),
        "seed": header.get("seed"),
        "rounds": header.get("rounds"),
        "rounds_done": header.get("rounds_done"),
        "status": header.get("status"),
        **{name: last.get(name) for name in (*SCORES, "train_loss", "test_loss")},
        **{name: _sum(rounds, name) for name in ("epochs", "bytes", "messages")},
        "seconds": result.get("seconds", seconds),
        "quarantined": None if left_out is None else len(left_out),
        "diverged": last.get("diverged"),
        "memory_peak": memory.get("peak"),
        "started": header.get("started"),
        "commit": versions.get("commit"),
        "command": shlex.join(header.get("command") or []),
        **{name: versions.get(name) for name in ("scool", "python", "torch")},
        **{name: hardware.get(name) for name in ("device", "threads", "ranks")},
    }


def _last(rounds: list[dict[str, Any]]) -> Mapping[str, Any]:
    """The last round that was evaluated."""
    return next((row for row in reversed(rounds) if row.get("accuracy_mean") is not None), {})


def _sum(rows: list[dict[str, Any]], name: str) -> float | int | None:
    found = [row[name] for row in rows if name in row]
    return sum(found) if found else None


def disagreements(folder: str, files: Files) -> list[str]:
    """Where the `run.json` of a run says something else than its `metrics.jsonl`."""
    header, rounds = header_of(folder, files), _lines(folder, METRICS, files)
    result, last = header.get("result") or {}, _last(rounds)
    done = rounds[-1]["round"] + 1 if rounds else 0
    pairs = {"rounds_done": (header.get("rounds_done"), done)}
    if result:
        scored = [n for n in SCORES if n in result]
        pairs |= {name: (result[name], last.get(name)) for name in scored}
        spent = (("bytes_sent", "bytes"), ("messages", "messages"))
        pairs |= {name: (result.get(name), _sum(rounds, counted)) for name, counted in spent}
    return [
        f"{folder}: {name} is {said} in {HEADER} and {found} in {METRICS}"
        for name, (said, found) in pairs.items()
        if said != found
    ]
