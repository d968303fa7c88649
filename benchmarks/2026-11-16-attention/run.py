"""Why SCooL-attention's graph dissolves where models overfit, and what holds it together.

    python benchmarks/2026-11-16-attention/run.py ROW ... >> results.jsonl

The first 40 classes of Mini-ImageNet (in data/), images averaged to 28x28; non-IID SBM: 40 clients
of 500 images in four groups; a small network, SGD 0.05, seed 0, two cores.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from scool.algorithms import SCooL
from scool.data.build import from_partition
from scool.data.federation import Federation
from scool.data.images import read_mini_imagenet
from scool.data.partition import noniid_sbm
from scool.data.transform import MINI_IMAGENET
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.priors import SBM, Attention
from scool.run.loop import fit

CLASSES, CLIENTS, ROUNDS, EVERY = 40, 40, 40, 5
ROWS: dict[str, dict[str, Any]] = {
    "sbm": {"prior": SBM(num_blocks=10)},
    "attention": {"prior": Attention()},
    "attention-models": {"prior": Attention(), "aggregate": "models"},
    "attention-drawn": {"prior": Attention(), "peers": "drawn"},
}


def small_images() -> Federation:
    data = read_mini_imagenet(Path("data"))
    x, y = _some(data.x_train, data.y_train, 500)
    x_test, y_test = _some(data.x_test, data.y_test, 20)
    parts = noniid_sbm(y, CLIENTS, 10)
    transform = replace(MINI_IMAGENET, padding=3)
    return from_partition("mini/sbm", x, y, x_test, y_test, parts, transform=transform)


def _some(x: Tensor, y: Tensor, of_a_class: int) -> tuple[Tensor, Tensor]:
    rows = torch.cat([(y == c).nonzero()[:of_a_class, 0] for c in range(CLASSES)])
    return avg_pool2d(x[rows].float(), 3).round().byte(), y[rows]


def small() -> nn.Module:
    """Some 107,000 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, padding=2, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(784, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def main(names: list[str]) -> None:
    federation = small_images()
    for name in names:
        sgd = LocalSGD(lr=0.05, epochs=5, batch_size=10)
        method = SCooL(sgd=sgd, draw=CrossDraw(50), sparsify_round=5, fraction=0.25, **ROWS[name])
        result = fit(
            federation, small, method, rounds=ROUNDS, seed=0, device="cpu", eval_every=EVERY
        )
        for row in result.history:
            if "accuracy_mean" in row:
                keys = ("round", "accuracy_mean", "train_loss", "graph_l1")
                print(json.dumps({"row": name, **{k: row[k] for k in keys}}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
