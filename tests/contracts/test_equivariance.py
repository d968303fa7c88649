"""What a client is called must not matter: a new method is tested by being listed in METHODS.

Every method is set up so that nothing random depends on a client's number: whole-data batches,
everyone takes part, everyone may be a peer. Then relabelling the clients relabels every result,
and clients with the same data keep the same model.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from scool.algorithms import METHODS
from scool.data.catalogue import DataConfig
from scool.data.federation import Federation, Split
from scool.graph.edges import as_matrix
from scool.run.config import default_run
from scool.run.options import option_names, with_options
from scool.run.prepare import prepare_data
from toys import classification, start

SIZES = (5, 7, 8, 6, 9)
K = len(SIZES)
ROUNDS = 3
ORDER = torch.tensor([3, 0, 4, 1, 2])  # a permutation with no client in its old place

NEUTRAL: dict[str, Any] = {
    # Options by name, wherever a method has them; a new source of randomness gets a line here.
    "lr": 0.1,
    "epochs": 2,
    "batch_size": 64,  # more than anyone has: a batch is all the data of a client
    "participation": 1.0,
    "topology": "complete",  # the others are laid out by client number
    "cross_samples": 0,  # all samples of a client
    "sparsify_round": 1,
    "fraction": 0.4,
    "num_blocks": 2,
    "sweeps": 400,  # the order of a sweep is random; where it ends is not
    "tolerance": 1e-14,
    "epsilon": 0.0,
    "meetings": 10,  # everyone meets everyone
    "graph_steps": 5,  # more, and round-off decides which of two equal values is smaller
}

ALONE: dict[str, dict[str, Any]] = {
    # Equal ranks, as in a first round, are drawn or go to the smaller number: take all peers.
    "fedfomo": {"fraction": 1.0},
    "pens": {"fraction": 1.0},
    "dada": {"fraction": 1.0},
}

RANDOM: dict[str, str] = {
    # Methods that remain random over client numbers, and why that is theirs to keep.
    "dpfl": "a client goes through its peers in an order that belongs to its number",
    "scool-drawn": "peers are drawn, with chances that belong to the client's number",
    "scool-sbm-released": "the released program draws memberships anew for each client and round",
}


def neutral(name: str) -> Any:
    algorithm = default_run(name, DataConfig()).algorithm
    has = option_names(algorithm)
    options = {n: v for n, v in NEUTRAL.items() if n in has} | ALONE.get(name, {})
    return with_options(algorithm, options, "test")


def relabelled(federation: Federation, order: Tensor) -> Federation:
    """The new client i is the old client order[i]; one may appear several times."""

    def split(part: Split) -> Split:
        return Split(part.x, part.index[order], part.mask[order], part.y[order])

    assert federation.truth is not None and federation.groups is not None
    truth = federation.truth[order][:, order]
    return replace(
        federation,
        train=split(federation.train),
        val=split(federation.val),
        test=split(federation.test),
        classes=federation.classes[order],
        truth=truth / truth.sum(dim=1, keepdim=True),
        groups=federation.groups[order],
    )


def run(algorithm: Any, federation: Federation, rounds: int = ROUNDS) -> tuple[Any, list[Any]]:
    engine, theta0 = start(federation)
    state = algorithm.init(engine, theta0)
    infos = []
    for t in range(rounds):
        state, info = algorithm.step(engine, state, t)
        infos.append(info)
    return state, infos


@pytest.mark.parametrize("name", sorted(METHODS))
def test_relabelling_the_clients_relabels_the_results(name: str) -> None:
    if name in RANDOM:
        pytest.skip(RANDOM[name])
    algorithm = neutral(name)
    federation = prepare_data(classification(SIZES), algorithm, seed=3)  # split by client number
    state, infos = run(algorithm, federation)
    other, others = run(algorithm, relabelled(federation, ORDER))
    for old, new in zip(infos, others, strict=True):
        torch.testing.assert_close(new["train_loss"], old["train_loss"][ORDER], rtol=0, atol=1e-7)
        graph = as_matrix(old["graph"])[ORDER][:, ORDER]
        torch.testing.assert_close(as_matrix(new["graph"]), graph, rtol=0, atol=1e-7)
    for n, stacked in state.theta.items():
        torch.testing.assert_close(other.theta[n], stacked[ORDER], rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_clients_with_the_same_data_keep_the_same_model(name: str) -> None:
    algorithm = neutral(name)
    one = prepare_data(classification((8,), groups=1), algorithm, seed=3)
    engine, theta0 = start(relabelled(one, torch.zeros(4, dtype=torch.long)))
    state = algorithm.init(engine, theta0)
    for t in range(ROUNDS):
        state, info = algorithm.step(engine, state, t)
        torch.testing.assert_close(info["train_loss"], info["train_loss"][:1].expand(4))
        for stacked in state.theta.values():
            torch.testing.assert_close(stacked, stacked[:1].expand_as(stacked), rtol=0, atol=1e-9)
    first = algorithm.init(engine, theta0).theta
    assert any(not torch.equal(t[0], first[n][0]) for n, t in state.theta.items())  # it learned
