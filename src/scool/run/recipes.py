"""The settings that suit each method on each dataset, as Python values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scool.algorithms import METHODS, AnyAlgorithm, SCooL
from scool.data.catalogue import DataConfig, find
from scool.errors import unknown
from scool.learning.cross import CrossDraw
from scool.learning.local_sgd import LocalSGD
from scool.models import ModelConfig


@dataclass(frozen=True)
class Recipe:
    """Defaults of one method on one dataset."""

    algorithm: AnyAlgorithm
    model: ModelConfig
    rounds: int
    eval_every: int
    between: Mapping[str, Any] = field(default_factory=dict)
    """`Settings.between`: what a client does with its own model, whatever the method."""


def recipe(method: str, data: DataConfig) -> Recipe:
    """The defaults of a method on a dataset.

    The image datasets have the paper's: 100 rounds of 5 epochs, batch 10, SGD 0.01. The small
    ones learn in 30 rounds.
    """
    if method not in METHODS:
        unknown("method", method, METHODS)
    algorithm = METHODS[method][1]
    dataset = find(data.dataset)
    is_drawn = method == "scool-drawn"
    if dataset.read is None:
        sgd = LocalSGD(lr=0.2 if data.task == "classification" else 0.02, batch_size=8)
        small = _adjust(algorithm, sgd=sgd, fraction=0.225, average="models")
        between = {"slow_momentum": 0.5, "model_average": 0.8} if is_drawn else {}
        return Recipe(small, ModelConfig(dataset.model), rounds=30, eval_every=1, between=between)
    is_sbm = data.partition == "sbm"
    released = method.endswith("-released")
    groups = _groups(data)
    options: dict[str, Any] = {"fraction": 0.1}
    if is_sbm:
        # A whole group: keeping half of it for good cost five to six points on CIFAR-10, one seed,
        # because models drift apart (benchmarks/2026-11-15-drift).
        options["fraction"] = 0.2 if released else max(0.1, 1 / groups)
        options["shuffle"] = True  # listed group by group: no fixed graph may know that
    if released and is_sbm:  # the temperatures of the authors' scripts
        options["temperature"] = 1.0 if method == "scool-sbm-released" else 9.0
    elif not released and (groups > 5 or not is_sbm):  # more class sets than five
        options["num_blocks"] = options["num_clusters"] = max(10, groups)
    between: dict[str, Any] = {}
    if is_drawn:  # benchmarks/2026-11-15-beyond
        between = {"slow_momentum": 0.5 if is_sbm else 0.7, "model_average": 0.9}
        options["fraction"] = 0.1
        if not is_sbm:
            # Class sets overlap: no blocks, but losses that tell the share of samples understood.
            options |= {"num_blocks": 1, "b_in": 0.2, "draw": CrossDraw(cross_noise=0.1)}
    network = ModelConfig(dataset.model, relu_logits=released)
    return Recipe(
        _adjust(algorithm, **options), network, rounds=100, eval_every=10, between=between
    )


def _groups(data: DataConfig) -> int:
    """Groups of the sbm partition: five of ten classes, ten of a hundred."""
    dataset = find(data.dataset)
    per_client = data.classes_per_client or dataset.classes_per_client
    return max(1, dataset.num_classes // max(1, per_client))


def _adjust(algorithm: AnyAlgorithm, **options: Any) -> AnyAlgorithm:
    """Set those options that the method (or its prior) has."""
    mine = {n: v for n, v in options.items() if hasattr(algorithm, n)}
    if isinstance(algorithm, SCooL):
        theirs = {n: v for n, v in options.items() if hasattr(algorithm.prior, n)}
        mine["prior"] = replace(algorithm.prior, **theirs)
    return replace(algorithm, **mine)
