"""How a round grows with clients and ranks: the engine's verbs, timed in groups of processes."""

import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import FileStore  # pyright: ignore

from scool.data.federation import Federation, Split
from scool.engine.ledger import edges_of
from scool.engine.ranks.group import Ranks, join_group, leave_group
from scool.engine.ranks.placement import better_placement, check_ranks
from scool.engine.sharded import ShardedEngine
from scool.errors import RunError, require
from scool.evaluation.scores import evaluate
from scool.isolation import python_command
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.models import mlp, parameters_of

CLIENTS = (100, 1000, 10_000)
RANKS = (1, 2, 4)
GROUP = 10  # clients that learn from each other
ROUNDS = 3  # timed rounds, after a warm-up
SGD = LocalSGD(steps=20)
PATIENCE = datetime.timedelta(minutes=10)  # seconds that a rank waits for another
SAMPLES, INPUTS, CLASSES = 40, 64, 10


def bench_scale_out(
    clients: Sequence[int] = CLIENTS, ranks: Sequence[int] = RANKS
) -> Iterator[dict[str, Any]]:
    """One object per number of clients and ranks: seconds and bytes per round, memory, efficiency.

    A round is what SCooL does once its graph is sparse: local steps, losses on the data of ten
    neighbours, mixing with them, evaluation. All ranks run on this machine, one thread each.
    Efficiency is the time of one rank over the time of all cores in use; `cpu_efficiency` is the
    processor time of one rank over that of all, which busy neighbours do not disturb.
    """
    require(bool(clients) and min(clients) >= 1, "clients", clients, "give numbers from 1 on")
    require(bool(ranks) and min(ranks) >= 1, "ranks", ranks, "give numbers from 1 on")
    check_ranks(max(ranks), min(clients))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    before: dict[str, Any] | None = None
    for count in clients:
        alone: dict[str, Any] | None = None
        for size in ranks:
            row = _measure(count, size)
            alone = alone or row
            spent = min(size, cores) * row["round_seconds"]
            row["efficiency"] = min(ranks[0], cores) * alone["round_seconds"] / spent
            row["cpu_efficiency"] = alone["cpu_seconds"] / row["cpu_seconds"]
            if before is not None and size == ranks[0]:
                times = row["round_seconds"] / before["round_seconds"]
                row["growth"] = times / (count / before["clients"])  # 1: as many times as clients
            yield row | {"cores": cores}
        before = alone


def _measure(clients: int, ranks: int) -> dict[str, Any]:
    """Start a group of processes on this machine and collect what they measure."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    program = "from scool.bench.scale_out import measure_here; measure_here()"
    with tempfile.TemporaryDirectory() as folder:
        words = [folder, str(clients), str(ranks)]
        processes = [
            subprocess.Popen(python_command(program, *words, str(rank)), env=environment)
            for rank in range(ranks)
        ]
        try:
            failed = [process for process in processes if process.wait()]
        finally:
            for process in processes:  # if interrupted
                process.kill()
        if failed:
            raise RunError(f"{len(failed)} of {ranks} ranks failed with {clients} clients")
        parts = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
    row = dict(parts[0])
    row["cpu_seconds"] = sum(part["cpu_seconds"] for part in parts)
    row["peak_memory"] = max(part["peak_memory"] for part in parts)
    return row


def measure_here() -> None:
    """One rank of `_measure`: FOLDER CLIENTS RANKS RANK."""
    folder, clients, size, rank = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    if size > 1:
        join_group(FileStore(f"{folder}/store", size), rank, size, PATIENCE)
    module = mlp((INPUTS,), CLASSES)
    ranks, federation = Ranks(), noise(clients)
    engine = ShardedEngine(federation, module, seed=0, ranks=ranks, device="cpu")
    graph = scattered_groups(clients)
    neighbours = graph != 0
    theta = engine.replicate(parameters_of(module))
    scattered = engine.placement.abroad(edges_of(graph)) if size > 1 else 0
    if (placement := better_placement(engine.placement, graph)) is not None:
        theta = engine.move(placement, theta)
    spent: list[float] = []
    processor = 0.0
    for t in range(ROUNDS + 1):
        ranks.share(None)  # begin together
        ranks.ledger.close_round()
        began, worked = time.perf_counter(), time.process_time()
        half = engine.train(theta, SGD, t).theta
        engine.cross_loss(half, neighbours, CrossDraw(cross_samples=20), t)
        theta = engine.mix(graph, half)
        evaluate(engine, theta, federation)
        ranks.share(None)
        if t:
            spent.append(time.perf_counter() - began)
            processor += time.process_time() - worked
    model = sum(p.numel() * p.element_size() for p in module.parameters())
    row = {
        "clients": clients,
        "ranks": size,
        "parameters": model // 4,
        "round_seconds": statistics.median(spent),
        "cpu_seconds": processor / ROUNDS,
        "rank_bytes": ranks.ledger.total_bytes,
        "rank_bytes_scattered": 2 * scattered * model,  # models to the data, and to be mixed
        "simulated_bytes": engine.ledger.total_bytes // (ROUNDS + 1),
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(row))
    if size > 1:
        leave_group()


def scattered_groups(clients: int) -> Tensor:
    """(K, K) equal weights in groups of ten, whose members are spread over all ids."""
    groups = torch.arange(clients) % max(1, clients // GROUP)
    same = groups[:, None] == groups
    return same.double() / same.sum(dim=1, keepdim=True)


def noise(clients: int) -> Federation:
    """Samples with nothing to learn, 40 per client; a shared pool, as real images would be."""
    rng = torch.Generator().manual_seed(0)
    pool = torch.randn(4000, INPUTS, generator=rng)
    index = torch.randint(len(pool), (clients, SAMPLES), generator=rng)
    y = (torch.arange(SAMPLES) % CLASSES).expand(clients, -1).clone()
    split = Split(pool, index, torch.ones_like(index, dtype=torch.bool), y)
    classes = torch.ones(clients, CLASSES, dtype=torch.bool)
    return Federation(name="noise", train=split, val=split, test=split, classes=classes)
