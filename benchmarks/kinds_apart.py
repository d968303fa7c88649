"""What would `scool` answer with these kinds of cooperation, or with those? Each is trained once.

    python benchmarks/kinds_apart.py train runs/kinds cifar10 noniid --data-dir data
    python benchmarks/kinds_apart.py mix runs/kinds/*.pt

Kinds do not look at each other: `scool` trains each as if it were alone, and weighs them
afterwards. So one run per kind, with what its judges say of the held-out samples and what its
models say of those they are scored by, tells what every mixture of kinds would have scored, in
every round. For a machine without a GPU. Scored is by validation samples, which stand where the
test samples were.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scool.algorithms.between_rounds import with_between
from scool.algorithms.shared.held_out import TRIED, numbers_of, of_tried
from scool.algorithms.shared.settling import without_small
from scool.contracts import Method
from scool.data.build import with_validation
from scool.data.catalogue import DataConfig, load
from scool.data.federation import Federation
from scool.data.subset import validation_as_test
from scool.engine.local import LocalEngine
from scool.models import ModelConfig
from scool.priors.tracks import mean_log_lik, owner_weights, population_weights
from scool.randomness import generator
from scool.run.config import default_run
from scool.run.prepare import prepare_model

MIXTURES = {
    "scool-sbm": "graph",
    "scool-drawn": "drawn",
    "scool": "alone,body,graph,common",
    "with plain drawn": "alone,body,graph,common,plain",
    "with drawn": "alone,body,graph,common,drawn",
    "drawn for graph": "alone,body,common,drawn",
    "without a graph": "alone,body,common",
    "random": "random",
    "with random": "alone,body,graph,common,random",
}
DRAWN = "alone,body,graph,common,drawn"
KINDS = ("alone", "body", "graph", "common", "drawn", "random", "plain")


def methods(data: DataConfig, epochs: int, lr: float, cross: int) -> dict[str, Method[Any]]:
    """Each kind as the recipe has it; `plain` is `drawn` without momentum and average, and `random`
    draws peers whatever the graph says."""
    tracks = default_run("scool", data).algorithm
    found = replace(tracks, sgd=replace(tracks.sgd, epochs=epochs, lr=lr), kinds=DRAWN).methods(
        data.num_clients
    )
    between: Any = found["drawn"].around
    draw = replace(found["graph"].plain.draw, cross_samples=cross)
    noisy = replace(found["drawn"].plain.draw, cross_samples=cross)
    drawn = replace(found["drawn"].plain, draw=noisy)
    blind = replace(drawn, prior=replace(drawn.prior, temperature=1e6))
    return found | {
        "graph": replace(found["graph"].plain, draw=draw),
        "drawn": with_between(drawn, **between),
        "plain": drawn,
        "random": with_between(blind, **between),
    }


def features(x: Tensor, seed: int, filters: int = 64) -> Tensor:
    """What random patches find in images, pooled over their quarters: after Coates and Ng, 2011.
    An `mlp` learns from it in a hundredth of the time that a convolutional network takes."""

    def patches(images: Tensor) -> Tensor:  # (B, 196, 108), each with mean 0 and variance 1
        p = functional.unfold(images.float(), 6, stride=2).transpose(1, 2)
        return (p - p.mean(-1, keepdim=True)) / (p.var(-1, keepdim=True) + 10).sqrt()

    rng = generator(seed, "features")
    some = patches(x[torch.randperm(len(x), generator=rng)[:500]]).flatten(0, 1)
    mean = some.mean(0)
    values, axes = torch.linalg.eigh((some - mean).T.cov())
    white = axes @ torch.diag((values + 0.1).rsqrt()) @ axes.T
    chosen = torch.randperm(len(some), generator=rng)[:filters]
    words = functional.normalize((some[chosen] - mean) @ white, dim=1)
    found = list[Tensor]()
    for images in x.split(500):
        seen = ((patches(images) - mean) @ (white @ words.T)).transpose(1, 2)
        both = torch.cat([(seen - 0.5).relu(), (-seen - 0.5).relu()], dim=1)
        found.append(functional.avg_pool2d(both.unflatten(2, (14, 14)), 7).flatten(1))
    every = torch.cat(found)
    return (every - every.mean(0)) / every.std(0).clamp_min(1e-3)


def federation_of(data: DataConfig, seed: int, model: str) -> Federation:
    """A fifth held out to judge by, beside the validation samples to be scored by."""
    federation = with_validation(validation_as_test(load(data, seed)), 0.2, seed)
    if model != "mlp":
        return federation
    x = features(federation.train.x, seed)
    parts = {part: getattr(federation, part)._replace(x=x) for part in ("train", "val", "test")}
    return replace(federation, **parts, transform=None)


def train(given: argparse.Namespace) -> None:
    data = DataConfig(
        dataset=given.dataset,
        partition=given.partition,
        data_dir=given.data_dir,
        clients=given.clients,
        val_fraction=0.2,
    )
    federation = federation_of(data, given.seed, given.model)
    module, theta0 = prepare_model(ModelConfig(given.model), federation, given.seed)
    outputs, most = federation.num_outputs, int(federation.test.sizes.max())

    def answers(found: Tensor, targets: Tensor, classes: Tensor) -> Tensor:
        rows = torch.full((most, outputs + 1), torch.nan, dtype=torch.float64)
        rows[: len(found), :-1], rows[: len(found), -1] = found, targets
        return rows.flatten()

    about = {k: v for k, v in vars(given).items() if k not in ("out", "data_dir", "what")}
    log: dict[str, Any] = {"about": about, "classes": federation.classes, "rounds": [], "kinds": {}}
    path = given.out / f"{given.dataset}-{given.partition}-{given.seed}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    every = methods(data, given.epochs, given.lr, given.cross)
    for name in given.kinds.split(","):
        began = time.monotonic()
        judging = LocalEngine(federation, module, seed=given.seed, device="cpu")
        whole = judging.view("model", whole=True)
        method = every[name]
        judge, model = method.init(judging, theta0), method.init(whole, theta0)
        judged, answered, rounds = list[Tensor](), list[Tensor](), list[int]()
        for t in range(given.rounds):
            judge, _ = method.step(judging, judge, t)
            model, _ = method.step(whole, model, t)
            if (t + 1) % given.every == 0:
                judged.append(numbers_of(judging, [judge.theta]).numbers[..., 0])
                told = judging.judge(model.theta, "test", answers, most * (outputs + 1))
                answered.append(told.view(-1, most, outputs + 1).float())
                rounds.append(t + 1)
        log["rounds"] = rounds
        log["kinds"][name] = {
            "judged": torch.stack(judged),
            "answered": torch.stack(answered),
            "seconds": time.monotonic() - began,
        }
        torch.save(log, path)
        print(name, round(time.monotonic() - began), "s", flush=True)


def weights_of(judged: Tensor, trust: bool) -> tuple[Tensor, Tensor, Tensor]:
    """[TRACK-w], [TRACK-pi] and the place in `TRIED` by [TRACK-beta] of one round; `judged`
    (K, 1 + len(TRIED), S, A). Without `trust` lambda is 0."""
    tried = [-judged[:, 1 + b] for b in range(len(TRIED))]
    means = torch.stack([mean_log_lik(one) for one in tried])
    if not trust:
        means[[b for b, (_, found) in enumerate(TRIED) if found]] = -torch.inf
    best = means.argmax(dim=0)
    log_lik = torch.stack([tried[int(b)][..., a] for a, b in enumerate(best)], dim=-1)
    pi = population_weights(log_lik)
    return owner_weights(log_lik, pi, 20.0), pi, best


def accuracy(
    answered: Tensor, weights: Tensor, best: Tensor, classes: Tensor
) -> tuple[float, float]:
    """Mean over clients, masked and unmasked, of the mixture; `answered` (K, S, C + 1, A)."""
    outputs, y = answered[..., :-1, :].double(), answered[..., -1, 0]
    beta, trust = of_tried(best)
    absent = (~classes).double()[:, None, :, None]
    shares = (beta * outputs - trust * absent).softmax(dim=2).nan_to_num(0.0)
    mean = (shares * weights[:, None, None, :]).sum(dim=-1)
    masked = mean.where(classes[:, None, :], -1.0)
    right = [m.argmax(dim=-1) == y for m in (masked, mean)]
    known = [r.double().where(y.isfinite(), torch.nan) for r in right]
    first, second = (100 * float(k.nanmean(1).mean()) for k in known)
    return first, second


def mix(given: argparse.Namespace) -> None:
    for path in given.logs:
        log = torch.load(path)
        for name, kinds in MIXTURES.items():
            names = kinds.split(",")
            names = [n for n in names if n in log["kinds"] or n != "body"]
            if set(names) <= log["kinds"].keys():
                for trust in (False, True) if len(names) > 1 else (False,):
                    row = mixture(log, names, given.rounds, trust)
                    what = {"run": path.stem, "candidate": name, "kinds": names, "trust": trust}
                    print(json.dumps(what | row))


def mixture(
    log: Mapping[str, Any], names: Sequence[str], rounds: Sequence[int], trust: bool
) -> dict[str, Any]:
    """Accuracy and population in some rounds and the last; and in the last if judging had ended
    after so many rounds, by weights, sharpness and trust of that round."""
    judged = torch.stack([log["kinds"][n]["judged"] for n in names], dim=-1)
    answered = torch.stack([log["kinds"][n]["answered"] for n in names], dim=-1)
    row: dict[str, Any] = {"masked": {}, "unmasked": {}, "population": {}, "moved": {}, "ended": {}}
    before = None
    for at, round in enumerate(log["rounds"]):
        if round not in rounds and round != log["rounds"][-1]:
            continue
        weights, pi, best = weights_of(judged[at], trust)
        found = accuracy(answered[at], weights, best, log["classes"])
        row["masked"][round], row["unmasked"][round] = map(short, found)
        row["population"][round] = dict(zip(names, map(short, pi.tolist()), strict=True))
        kept = accuracy(answered[-1], without_small(weights), best, log["classes"])
        row["ended"][round] = list(map(short, kept))
        if before is not None:
            row["moved"][round] = short(float((weights - before).abs().sum(dim=1).mean()) / 2)
        before = weights
    return row


def short(value: float) -> float:
    return round(value, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parts = parser.add_subparsers(dest="what", required=True)
    first = parts.add_parser("train")
    first.add_argument("out", type=Path)
    first.add_argument("dataset")
    first.add_argument("partition")
    first.add_argument("--data-dir")
    first.add_argument("--kinds", default=",".join(KINDS))
    first.add_argument("--model", default="mlp", help="mlp: on fixed features of images")
    first.add_argument("--clients", type=int, default=0)
    first.add_argument("--rounds", type=int, default=60)
    first.add_argument("--every", type=int, default=2, help="rounds between two looks")
    first.add_argument("--epochs", type=int, default=1)
    first.add_argument("--lr", type=float, default=0.02)
    first.add_argument("--cross", type=int, default=50, help="samples of the cross losses")
    first.add_argument("--seed", type=int, default=101, help="none of those of the tables")
    second = parts.add_parser("mix")
    second.add_argument("logs", type=Path, nargs="+")
    second.add_argument("--rounds", type=int, nargs="*", default=[10, 20, 30, 40])
    given = parser.parse_args()
    {"train": train, "mix": mix}[given.what](given)


if __name__ == "__main__":
    main()
