"""Many ways to mix, and for each the accuracy of several moving averages from one run.

python benchmarks/2026-11-15-beyond/run.py noniid-sbm sbm-sbm-drawn-models-0.5 ... > averages.jsonl

CIFAR-10 in data/, one GPU, the paper's run (100 rounds of 5 epochs), seed 0. A name is a setting, a
row below, and the slow momentum where there is one.
"""

import json
import sys
from typing import Any

from scool.algorithms.between_rounds import with_between
from scool.data.catalogue import DataConfig, load
from scool.engine.local import LocalEngine
from scool.evaluation.scores import evaluate
from scool.run.config import default_run
from scool.run.options import with_options
from scool.run.prepare import prepare_model
from scool.types import Tree

ROUNDS, EVERY = 100, 25
MEMORIES = (0.8, 0.9, 0.95, 0.98)
MODELS, TENTH, DRAWN = {"aggregate": "models"}, {"fraction": 0.1}, {"peers": "drawn"}
SHARE = {"num_blocks": 1, "b_in": 0.2, "cross_noise": 0.1, "temperature": 0.5}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("local", {}),
    "fedavg": ("fedavg", {}),  # all clients take part
    "squared": ("truth", {"truth": "squared"}),
    "sbm": ("scool-sbm", {}),
    "models": ("scool-sbm", {**MODELS, **TENTH}),
    "share-dense": ("scool-sbm", {**SHARE, "sparsify_round": -1}),
    "sbm-drawn-models": ("scool-sbm", {**DRAWN, **MODELS, **TENTH}),
    "share-drawn": ("scool-sbm", {**SHARE, **DRAWN}),
    "share-drawn-models": ("scool-sbm", {**SHARE, **DRAWN, **MODELS}),
    "wide-drawn-models": ("scool-sbm", {**SHARE, **DRAWN, **MODELS, "temperature": 1.0}),
}


def main(name: str) -> None:
    setting, _, row = name.partition("-")
    row, _, number = row.rpartition("-") if row[-1].isdigit() else (row, "", "0")
    beta, (method, options) = float(number), ROWS[row]
    options = dict(options)
    truth = options.pop("truth", "identical")
    data = DataConfig(dataset="cifar10", partition=setting, truth=truth)
    federation, start = load(data, seed=0), default_run(method, data)
    algorithm = with_options(start.algorithm, options, name)
    module, theta0 = prepare_model(start.settings.model, federation, 0)
    engine = LocalEngine(federation, module, seed=0, device="cuda")
    algorithm = with_between(algorithm, beta)
    state = algorithm.init(engine, theta0)
    averages: dict[float, Tree] = {
        memory: {n: t.clone() for n, t in state.theta.items()} for memory in MEMORIES
    }
    for t in range(ROUNDS):
        state, info = algorithm.step(engine, state, t)
        for memory, average in averages.items():
            for n, x in state.theta.items():
                average[n].lerp_(x, 1 - min(memory, t / (t + 1)))
        if (t + 1) % EVERY == 0:
            found = {"last": state.theta} | {f"avg{m}": a for m, a in averages.items()}
            scores = {
                n: float(evaluate(engine, a, federation).score.mean()) for n, a in found.items()
            }
            loss = float(info["train_loss"].nanmean())
            print(json.dumps({"run": name, "round": t + 1, **scores, "loss": loss}), flush=True)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        main(word)
