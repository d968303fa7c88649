"""How a round of SCooL-SBM grows with the clients, before and after the graph is sparse."""

import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from scool.algorithms.scool import SCooL
from scool.bench.scale_out import CLASSES, INPUTS, noise
from scool.engine.local import LocalEngine
from scool.errors import RunError, require
from scool.evaluation.scores import evaluate
from scool.isolation import python_command
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.models import linear, parameters_of
from scool.priors import SBM

CLIENTS = (1000, 2000, 4000)
CANDIDATES, PEERS = 32, 10
SEARCH = 3  # rounds with candidates
SPARSE = 3  # rounds with the peers that were kept


def bench_rounds(clients: Sequence[int] = CLIENTS, device: str = "cpu") -> dict[str, Any]:
    """Seconds and memory of a round with candidates and of a sparse one, and how they grow.

    A linear model, 32 candidates, ten peers, one thread. Every number of clients is measured in a
    process of its own; `peak_memory` is that of the whole process, in bytes. Exponents are those of
    processor time, which busy neighbours disturb less.
    """
    require(bool(clients) and min(clients) > CANDIDATES + 1, "clients", clients, "give 34 or more")
    program = "from scool.bench.rounds import measure_here; measure_here()"
    rows: list[dict[str, Any]] = []
    for count in clients:
        words = python_command(program, str(count), device)
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise RunError(f"the round of {count} clients failed (exit status {done.returncode})")
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    found: dict[str, Any] = {"model": "linear", "clients": list(clients)}
    found |= {name: [row[name] for row in rows] for name in rows[0]}
    if len(clients) > 1:
        for kind in ("candidate_cpu_seconds", "sparse_cpu_seconds", "peak_memory"):
            found[f"{kind.partition('_')[0]}_exponent"] = growth(clients, found[kind])
    return found


def growth(clients: Sequence[int], spent: Sequence[float]) -> float:
    """The exponent p of the best fit of spent = c * clients ** p.

    >>> round(growth([10, 20, 40], [1.0, 4.0, 16.0]), 6)
    2.0
    """
    x, y = ([math.log(value) for value in values] for values in (clients, spent))
    return statistics.linear_regression(x, y).slope


def measure_here() -> None:
    """One process of `bench_rounds`: CLIENTS DEVICE."""
    clients, device = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    federation, module = noise(clients), linear((INPUTS,), CLASSES)
    engine = LocalEngine(federation, module, seed=0, device=device)
    scool = SCooL(
        prior=SBM(num_blocks=10, tolerance=0.0),  # as many sweeps for every number of clients
        sgd=LocalSGD(steps=5),
        draw=CrossDraw(cross_samples=20),
        candidates=CANDIDATES,
        fraction=PEERS / clients,
        sparsify_round=SEARCH - 1,
    )
    state = scool.init(engine, parameters_of(module))
    spent: list[float] = []
    worked: list[float] = []
    for t in range(SEARCH + SPARSE + 1):
        began, before = time.perf_counter(), time.process_time()
        state, _ = scool.step(engine, state, t)
        evaluate(engine, state.theta, federation)
        spent.append(time.perf_counter() - began)
        worked.append(time.process_time() - before)
    row = {
        "candidate_seconds": statistics.median(spent[1:SEARCH]),  # the first loads modules, too
        "candidate_cpu_seconds": statistics.median(worked[1:SEARCH]),
        "sparse_seconds": statistics.median(spent[-SPARSE:]),
        "sparse_cpu_seconds": statistics.median(worked[-SPARSE:]),
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(row))
