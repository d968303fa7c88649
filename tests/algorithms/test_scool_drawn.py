"""Peers that are drawn anew in every round."""

from typing import Any

import pytest
import torch

from scool.algorithms import SCooL
from scool.data.synthetic import synthetic
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from scool.priors import SBM, Attention, Dirac
from toys import softmax_regression, start

SPARSE = 2  # the round after which the graph is sparse
COUNT = 4


def run(**options: Any) -> tuple[list[Any], list[dict[str, Any]], list[int]]:
    method = SCooL(
        prior=options.pop("prior", SBM(num_blocks=2)),
        sgd=LocalSGD(lr=0.1, epochs=2, batch_size=8),
        sparsify_round=SPARSE,
        fraction=COUNT / 20,
        **options,
    )
    engine, theta0 = start(synthetic(20, 2, 20, seed=1), softmax_regression(10, 5))
    state, states, infos, messages = method.init(engine, theta0), [], [], []
    for t in range(8):
        state, info = method.step(engine, state, t)
        states.append(state)
        infos.append(dict(info))
        messages.append(engine.ledger.close_round().total_messages)
    return states, infos, messages


def test_every_round_has_other_peers_that_count_alike() -> None:
    states, infos, _ = run(peers="drawn")
    graphs = [info["graph"] for info in infos[SPARSE + 1 :]]
    for graph, state in zip(graphs, states[SPARSE:], strict=False):
        assert torch.equal(graph > 0, state.neighbours)
        assert torch.allclose(graph[graph > 0], torch.tensor(1 / (COUNT + 1), dtype=graph.dtype))
        assert (graph > 0).sum(dim=1).tolist() == [COUNT + 1] * 20
    seen = torch.stack([graph > 0 for graph in graphs]).any(dim=0)
    assert (seen.sum(dim=1) > COUNT + 1).all()


def test_peers_are_drawn_by_the_posterior() -> None:
    """From the first sparse round on mostly of the own group (half of the clients), which drawing
    anybody would not give; and until then weights are those of the posterior."""
    infos = run(peers="drawn")[1]
    oneself = torch.eye(20, dtype=torch.bool)
    truth = synthetic(20, 2, 20, seed=1).truth
    assert truth is not None
    for info in infos[SPARSE + 1 :]:
        drawn = (info["graph"] > 0) & ~oneself
        assert drawn[truth > 0].sum() > 0.7 * drawn.sum()
    dense = infos[SPARSE]["graph"]
    assert dense[~oneself].std() > 0.01  # not all alike


def test_the_first_peers_are_drawn_too() -> None:
    drawn, best = (run(peers=peers)[1][SPARSE + 1]["graph"] > 0 for peers in ("drawn", "best"))
    assert not drawn.equal(best)


def test_what_is_not_measured_is_remembered() -> None:
    states, _, _ = run(peers="drawn")
    before, after = states[-2].cross_loss, states[-1].cross_loss
    assert bool(after.isfinite().all())
    measured = states[-2].neighbours
    assert torch.equal(before[~measured], after[~measured])
    assert (before[measured] != after[measured]).float().mean() > 0.9


def test_it_costs_what_the_best_peers_cost() -> None:
    drawn, best = run(peers="drawn")[2], run(peers="best")[2]
    assert drawn == best
    assert drawn[-1] < drawn[0] / 2


def test_where_few_are_tried_no_more_are_drawn() -> None:
    _, infos, messages = run(peers="drawn", candidates=4)
    assert messages[-1] <= messages[0]
    assert ((infos[-1]["graph"] > 0).sum(dim=1) <= 4 + 1).all()


def test_rows_of_attention_are_drawn_from_as_well() -> None:
    graph = run(peers="drawn", prior=Attention())[1][-1]["graph"]
    assert (graph > 0).sum(dim=1).tolist() == [COUNT + 1] * 20


def test_what_would_be_ignored_is_refused() -> None:
    with pytest.raises(ConfigError, match="sparsify_round = -1"):
        SCooL(peers="drawn", sparsify_round=-1)
    with pytest.raises(ConfigError, match="peers = 'drawn'"):
        SCooL(prior=Dirac(), peers="drawn")
