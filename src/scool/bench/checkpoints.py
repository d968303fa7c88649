"""What checkpoints cost: the same run with one every ten rounds and with none, in turn."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from scool.algorithms import SCooL
from scool.bench.engine import random_federation
from scool.data.federation import Federation
from scool.engine.machine import resolve_device
from scool.learning.local_sgd import LocalSGD
from scool.priors import SBM
from scool.run.loop import fit

EVERY = 10


class Case(NamedTuple):
    """A run of the paper's shape, or one of the demo's."""

    name: str
    model: str
    shape: tuple[int, ...]
    clients: int
    samples: int
    sgd: LocalSGD


PAPER = Case("cifar-shaped", "cnn2", (3, 32, 32), 100, 500, LocalSGD(epochs=5, batch_size=10))
DEMO = Case("digits-shaped", "mlp", (64,), 40, 40, LocalSGD(epochs=5, batch_size=8))


def bench_checkpoints(
    device_name: str, rounds: int = 100, repeats: int = 3
) -> Iterator[dict[str, Any]]:
    """One object per case: seconds of a run with and without checkpoints, medians, and their ratio.

    Both write all other records. The two take turns, after a warm-up run of each.
    """
    device = resolve_device(device_name)
    for case in [PAPER, DEMO] if device.type == "cuda" else [DEMO]:
        data = random_federation(case.shape, case.clients, case.samples)
        seconds: dict[int, list[float]] = {0: [], EVERY: []}
        size = 0
        for number in range(repeats + 1):
            for every, spent in seconds.items():
                took, size = _run(case, data, str(device), rounds if number else EVERY, every)
                if number:
                    spent.append(took)
        without, with_them = (statistics.median(seconds[every]) for every in (0, EVERY))
        yield {
            "case": case.name,
            "device": str(device),
            "rounds": rounds,
            "checkpoints": rounds // EVERY,
            "checkpoint_bytes": size,
            "seconds_without": without,
            "seconds_with": with_them,
            "ratio": with_them / without,
            "all_seconds": {str(every): spent for every, spent in seconds.items()},
        }


def _run(case: Case, data: Federation, device: str, rounds: int, every: int) -> tuple[float, int]:
    """Seconds of one run with its records, and the bytes of its last checkpoint."""
    method = SCooL(prior=SBM(), sgd=case.sgd, sparsify_round=10, fraction=0.1)
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        began = time.perf_counter()
        fit(
            data,
            case.model,
            method,
            rounds=rounds,
            eval_every=EVERY,
            checkpoint_every=every,
            device=device,
            out=out,
        )
        if device == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - began
        states = sorted(out.glob("checkpoint-*"))
        return took, states[-1].stat().st_size if states else 0
