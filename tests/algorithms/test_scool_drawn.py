"""Peers that are drawn again in every round, and peers that come back."""

from typing import Any

import pytest
import torch

from scool.algorithms import LocalOnly, SCooL
from scool.algorithms.between_rounds import Averaged
from scool.algorithms.scool import SCooLState
from scool.data.synthetic import synthetic
from scool.errors import ConfigError
from scool.graph.edges import Edges
from scool.learning.local_sgd import LocalSGD
from scool.priors import SBM, Attention, Dirac
from toys import softmax_regression, start

SPARSE = 2  # the round after which the graph is sparse
COUNT = 4
GROUP = 9  # others of the own group


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
        infos.append({**info, "graph": info["graph"].dense()})
        messages.append(engine.ledger.close_round().total_messages)
    return states, infos, messages


def test_every_round_has_other_peers_that_count_alike() -> None:
    states, infos, _ = run(peers="drawn")
    graphs = [info["graph"] for info in infos[SPARSE + 1 :]]
    for graph, state in zip(graphs, states[SPARSE:], strict=False):
        assert torch.equal(graph > 0, state.neighbours.dense())
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
    before, after = (state.cross_loss.dense() for state in states[-2:])
    assert bool(after.isfinite().all())
    measured = states[-2].neighbours.dense()
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


# ---------------------------------------------------------------------- who comes back


def away_until_the_graph_is_sparse(**options: Any) -> tuple[SCooL, Any, Any, int]:
    """Client 7 was absent in all rounds in which everyone was measured."""
    method = SCooL(
        prior=SBM(num_blocks=2),
        sgd=LocalSGD(lr=0.1, epochs=2, batch_size=8),
        sparsify_round=SPARSE,
        fraction=GROUP / 20,
        **options,
    )
    engine, theta0 = start(synthetic(20, 2, 20, seed=1), softmax_regression(10, 5))
    state = method.init(engine, theta0)
    engine.health.absent[7] = True
    for t in range(SPARSE + 2):
        state, _ = method.step(engine, state, t)
    engine.health.absent[7] = False
    return method, engine, state, SPARSE + 2


@pytest.mark.parametrize("peers", ["best", "drawn"])
def test_who_comes_back_is_measured_and_can_be_chosen_again(peers: str) -> None:
    method, engine, state, t = away_until_the_graph_is_sparse(peers=peers)
    ignored = method.step(engine, state, t)[0]
    assert ignored.neighbours.dense()[:, 7].sum() <= 1  # nobody measures it, so nobody finds it
    state = method.admit(state, torch.tensor([7]))
    state, _ = method.step(engine, state, t)
    assert bool(state.cross_loss.dense()[7].isfinite().all())
    assert bool(state.cross_loss.dense()[:, 7].isfinite().all())
    for later in range(t + 1, 7):
        state, _ = method.step(engine, state, later)
    truth = synthetic(20, 2, 20, seed=1).truth
    assert truth is not None
    group = (truth[7] > 0) & (torch.arange(20) != 7)
    chosen = state.neighbours.dense()
    assert chosen[7, group].sum() > GROUP / 2 and bool(chosen[group, 7].any())
    assert (state.neighbours.degrees <= GROUP + 1).all()  # the graph is sparse again
    found = method.admit(state, torch.tensor([7])).neighbours.dense()
    assert bool(found[7].all() and found[:, 7].all())


def test_the_others_keep_their_peers_where_nobody_new_is_better() -> None:
    method, engine, state, t = away_until_the_graph_is_sparse()
    before = state.neighbours.dense()
    state = method.admit(state, torch.tensor([7]))
    for later in range(t, 7):
        state = method.step(engine, state, later)[0]
    after = state.neighbours.dense()
    others = torch.arange(20) != 7
    lost = before & ~after
    gained = after & ~before
    assert (lost[others].sum(1) == gained[others, 7]).all()  # one for one


def test_before_the_choice_everyone_meets_everyone_and_nothing_is_opened() -> None:
    method = SCooL(prior=SBM(num_blocks=2))
    engine, theta0 = start(synthetic(20, 2, 20, seed=1), softmax_regression(10, 5))
    state = method.init(engine, theta0)
    assert method.admit(state, torch.tensor([7])) is state


def test_with_many_clients_a_few_are_opened() -> None:
    method = SCooL(candidates=8)
    state = SCooLState({}, {}, None, Edges.loops(1000, torch.arange(1000) >= 0), Edges.none(1000))
    opened = method.admit(state, torch.tensor([7])).neighbours
    assert 8 <= opened.dense()[7].sum() <= 10 and 8 <= opened.dense()[:, 7].sum() <= 10


def test_a_method_around_another_one_lets_that_one_admit() -> None:
    plain = SCooL(sgd=LocalSGD(steps=1), prior=SBM(num_blocks=2), sparsify_round=0, fraction=0.2)
    engine, theta0 = start(synthetic(20, 2, 20, seed=1), softmax_regression(10, 5))
    method = Averaged(plain, 0.5)
    state, _ = method.step(engine, method.init(engine, theta0), 0)
    admitted = method.admit(state, torch.tensor([7]))
    assert bool(admitted.method.neighbours.dense()[7].all())
    assert LocalOnly().admit(state, torch.tensor([7])) is state
