"""Run folders as `scool reproduce` leaves them, and their rows."""

from pathlib import Path
from typing import Any

import torch

from scool.recording.writer import RunWriter
from scool.reproduction.measured import (
    collect,
    summarise_row,
)
from scool.reproduction.plan import Study
from scool.reproduction.rows import TABLE1, Row

ROWS = {row.name: row for row in TABLE1}
STUDY = Study()


def record(
    place: Path,
    row: Row,
    seed: int,
    accuracy: float,
    *,
    study: Study = STUDY,
    rounds: int = 0,
    status: str = "finished",
    started: str = "2030",
    graphs: bool = False,
) -> Path:
    """A run folder as `scool reproduce` leaves it, three clients, two evaluations."""
    config = study.config(row, seed).to_dict()
    rounds = rounds or row.rounds
    header = {
        "method": row.method,
        "seed": seed,
        "rounds": rounds,
        "status": status,
        "started": started,
    }
    path = place / f"{row.name}-{seed}-{rounds}-{started}"
    folder = RunWriter.create(path, {**header, "config": config, "hardware": {"device": "toy"}})
    for t, score in ((0, accuracy + 1), (rounds - 1, accuracy)):
        line = {"round": t, "train_loss": 1.0, "accuracy_mean": score, "accuracy_std": 2.0 + seed}
        line |= {"scores": [score] * 3, "graph_l1": 0.5, "bytes": 600, "messages": 2, "epochs": 5}
        folder.append("metrics.jsonl", line)
        folder.append("timing.jsonl", {"round": t, "seconds": 1.5})
        if graphs:
            folder.write_graph(t, torch.eye(3))
    for t in range(3):
        folder.append("graph_error.jsonl", {"round": t, "graph_l1": 1.0 - t / 10})
    return path


def summaries(
    place: Path, rows: tuple[Row, ...], study: Study = STUDY
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    measured, notes = collect(study, rows, [place])
    return {m.row.name: summarise_row(m, study, measured) for m in measured}, notes
