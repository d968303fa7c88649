"""Do models of one group drift apart where each client keeps only half of it?

python benchmarks/2026-11-15-drift/run.py updates 0.1 > updates-10.jsonl

CIFAR-10 in data/, non-IID SBM (five groups of 20), a small network so that two cores are enough.
"""

import json
import sys

import torch
from torch import nn

from scool.algorithms.scool import SCooL
from scool.data.catalogue import DataConfig, load
from scool.engine.local import LocalEngine
from scool.evaluation.scores import adjusted_rand, evaluate
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.models import parameters_of
from scool.priors import SBM

ROUNDS, EVERY = 30, 5


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


def main(aggregate: str, fraction: float) -> None:
    federation = load(DataConfig(dataset="cifar10", partition="sbm"), seed=0)
    module = small()
    engine = LocalEngine(federation, module, seed=0, device="cpu")
    scool = SCooL(
        prior=SBM(num_blocks=5),
        sgd=LocalSGD(lr=0.05, epochs=1),
        draw=CrossDraw(cross_samples=20),
        aggregate=aggregate,  # type: ignore[arg-type]
        sparsify_round=5,
        fraction=fraction,
    )
    assert engine.truth is not None
    groups = engine.truth.argmax(dim=1)  # the first member
    theta0 = parameters_of(module)
    state = scool.init(engine, theta0)
    for t in range(ROUNDS):
        state, info = scool.step(engine, state, t)
        if (t + 1) % EVERY == 0:
            score = evaluate(engine, state.theta, federation).score
            row = {
                "round": t + 1,
                "accuracy": 100 * float(score.mean()),
                "ari": adjusted_rand(info["blocks"], groups),
                "spread": spread(state.theta, groups),
                "train_loss": float(info["train_loss"].nanmean()),
            }
            print(json.dumps(row), flush=True)


def spread(theta: dict[str, torch.Tensor], groups: torch.Tensor) -> float:
    """Mean distance of a model to the mean of its group, over the length of that mean."""
    flat = torch.cat([t.flatten(1) for t in theta.values()], dim=1).double()
    same = (groups[:, None] == groups).double()
    mean = same @ flat / same.sum(dim=1, keepdim=True)
    return float(((flat - mean).norm(dim=1) / mean.norm(dim=1)).mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], float(sys.argv[2]))
