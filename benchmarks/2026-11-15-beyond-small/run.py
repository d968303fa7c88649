"""The rows of `scool reproduce ablations --methods beyond` with a small network, on two cores.

python benchmarks/2026-11-15-beyond-small/run.py noniid scool-sbm beyond-share ... > results.jsonl

CIFAR-10 in data/, 100 clients of 500 images, 30 rounds of one epoch, SGD 0.05, seed 0, ten peers
after round 5. A hint which rows to try first on a GPU, no more.
"""

import json
import sys

import torch
from torch import nn

from scool.data.catalogue import DataConfig, load
from scool.reproduction.rows import ABLATIONS, TABLE1
from scool.run.config import default_run
from scool.run.loop import fit
from scool.run.options import with_options

ROUNDS, EVERY = 30, 15
COMMON = {"lr": 0.05, "epochs": 1}
SCOOL = {"cross_samples": 20, "sparsify_round": 5, "fraction": 0.1}
ROWS = {row.name: row for row in (*ABLATIONS, *TABLE1)}


def small() -> nn.Module:
    """Some 38,000 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, padding=2, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def main(setting: str, names: list[str]) -> None:
    for name in names:
        row = ROWS[name]
        options = dict(row.options)
        truth = options.pop("truth", "identical")
        data = DataConfig(dataset="cifar10", partition=setting, truth=truth)
        start = default_run(row.method, data).algorithm
        more = {} if row.method == "truth" else SCOOL
        algorithm = with_options(start, {**COMMON, **more, **options}, name)
        result = fit(
            load(data, seed=0),
            small,
            algorithm,
            rounds=ROUNDS,
            seed=0,
            device="cpu",
            eval_every=EVERY,
        )
        for t in range(EVERY - 1, ROUNDS, EVERY):
            found = result.history[t]
            about = {"setting": setting, "row": name, "round": t + 1}
            about |= {"accuracy": found["accuracy_mean"], "std": found["accuracy_std"]}
            print(json.dumps(about | {"l1": found["graph_l1"]}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2:])
