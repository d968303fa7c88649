"""A few candidates a round in place of all pairs: what is measured, remembered, mixed and paid."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from scool.algorithms import SCooL
from scool.data.synthetic import synthetic
from scool.engine.ledger import model_bytes
from scool.engine.local import LocalEngine
from scool.errors import ConfigError
from scool.evaluation.scores import graph_l1
from scool.graph.edges import as_matrix
from scool.graph.mixing import keep_top
from scool.health import Reason
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.models import linear, parameters_of
from scool.priors import MMSBM, SBM, Attention, Dirac
from scool.recording.checkpoint import flatten, unflatten
from toys import assert_trees_equal, classification, is_finite, poisoned, start

K = 12
SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
PRIORS = [SBM(num_blocks=2), Attention(), MMSBM(num_blocks=2), SBM(num_blocks=2, learn_B=True)]


def method(prior: Any = None, **options: Any) -> SCooL:
    base = {"sgd": SGD, "sparsify_round": 3, "fraction": 0.4, "candidates": 4}
    return SCooL(prior=prior or SBM(num_blocks=2), **(base | options))


def watched(scool: SCooL, rounds: int, **options: Any) -> list[dict[str, Any]]:
    """A run, and for every round the state before and after, what was asked for and the cost."""
    engine, theta0 = start(classification((6,) * K), **options)
    asked: list[torch.Tensor] = []
    plain = engine.cross_loss

    def cross_loss(theta: Any, pairs: torch.Tensor, draw: Any, round: int) -> torch.Tensor:
        asked.append(as_matrix(pairs))
        return plain(theta, pairs, draw, round)

    engine.cross_loss = cross_loss  # type: ignore[method-assign]
    state, log = scool.init(engine, theta0), []
    for t in range(rounds):
        before = state
        half = engine.train(before.theta, scool.sgd, t).theta
        fresh = plain(half, torch.ones(K, K, dtype=torch.bool), scool.draw, t)
        engine.ledger.close_round()
        state, info = scool.step(engine, before, t)
        log.append(
            {"before": before, "after": state, "info": info, "fresh": fresh, "asked": asked[-1]}
            | {"ledger": engine.ledger.close_round(), "size": model_bytes(state.theta)}
        )
    return log


# ---------------------------------------------------------------------- what is measured


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
def test_a_client_tries_so_many_peers_a_round_and_remembers_the_others(prior: Any) -> None:
    """L_ij is the loss of the last round in which the pair was measured, by hand."""
    log = watched(method(prior), 4)
    eye = torch.eye(K, dtype=torch.bool)
    expected = torch.full((K, K), torch.nan, dtype=torch.float64)
    for t, seen in enumerate(log):
        asked = seen["asked"]
        assert bool(asked.diagonal().all())
        assert (asked & ~eye).sum(dim=1).tolist() == [4] * K
        expected = torch.where(asked, seen["fresh"], expected)
        torch.testing.assert_close(seen["after"].cross_loss.dense(), expected, equal_nan=True)
        assert int(expected.isfinite().sum()) > (4 if t == 0 else 5) * K
    assert not bool(log[2]["after"].cross_loss.dense().isfinite().all())  # still not everyone


def test_the_memory_over_rounds_skips_the_rounds_in_which_a_pair_is_not_measured() -> None:
    log = watched(method(cross_ema=0.8), 4)
    expected = torch.full((K, K), torch.nan, dtype=torch.float64)
    for seen in log:
        fresh = torch.where(
            expected.isfinite(), 0.8 * expected + 0.2 * seen["fresh"], seen["fresh"]
        )
        expected = torch.where(seen["asked"], fresh, expected)
        torch.testing.assert_close(seen["after"].cross_loss.dense(), expected, equal_nan=True)


def test_what_is_remembered_is_evidence() -> None:
    """Pairs measured before and not now have a weight, and may be kept at the end."""
    log = watched(method(), 5)
    known = log[3]["after"].cross_loss.dense().isfinite()
    assert bool((known & ~log[3]["asked"]).any())
    assert torch.equal(log[3]["after"].graph.w.dense() > 0, known)
    best = keep_top(log[3]["after"].graph.w.dense(), 4, known)
    assert torch.equal(log[3]["after"].neighbours.dense(), best)
    stays = torch.equal(log[4]["after"].cross_loss.dense().isfinite(), best)
    assert stays and torch.equal(log[4]["asked"], best)


def test_the_choice_is_made_on_fresh_losses_of_the_best_known() -> None:
    log = watched(method(), 4)
    w = log[3]["before"].graph.w.dense().fill_diagonal_(0)
    assert bool((log[3]["asked"] >= keep_top(w, 4, w > 0)).all())


# ---------------------------------------------------------------------- what is mixed and paid


@pytest.mark.parametrize("prior", PRIORS[:2], ids=lambda prior: type(prior).__name__)
def test_only_the_best_known_peers_mix_and_the_ledger_counts_by_the_formula(prior: Any) -> None:
    log = watched(method(prior), 6)
    for t, seen in enumerate(log):
        off = seen["info"]["graph"].dense().fill_diagonal_(0) != 0
        per_client = 4  # four candidates, then floor(12 * 0.4) = 4 peers
        assert off.sum(dim=1).tolist() == [per_client] * K
        messages, size = seen["ledger"].messages, seen["size"]
        assert messages["cross_models"] == messages["cross_losses"] == messages["mix"] == K * 4
        assert seen["ledger"].bytes["cross_models"] == seen["ledger"].bytes["mix"] == K * 4 * size
        if t <= 3:
            w = seen["after"].graph.w.dense()
            known = seen["after"].cross_loss.dense().isfinite()
            assert torch.equal(off, keep_top(w, 4, known).fill_diagonal_(False) & (w > 0))


def test_no_more_peers_are_kept_than_tried() -> None:
    log = watched(method(fraction=1.0), 5)
    assert log[4]["after"].neighbours.dense().sum(dim=1).tolist() == [5] * K  # four and oneself


def test_without_a_choice_the_search_goes_on_until_all_pairs_are_known() -> None:
    log = watched(method(sparsify_round=-1), 12)
    assert bool(log[-1]["after"].cross_loss.dense().isfinite().all())
    assert bool(log[-1]["after"].neighbours.dense().all())
    assert log[-1]["ledger"].messages["mix"] == K * 4


def test_model_coupling_pulls_partners_only() -> None:
    log = watched(method(model_coupling=0.1), 3)
    for seen in log:
        off = seen["info"]["graph"].dense().fill_diagonal_(0) != 0
        assert seen["ledger"].messages["mix"] == int(off.sum() + (off | off.T).sum())


# ---------------------------------------------------------------------- limits


@pytest.mark.parametrize("candidates", [-1, 11, 64])
def test_enough_candidates_are_all_pairs_to_the_bit(candidates: int) -> None:
    many, dense = (watched(method(candidates=c), 5) for c in (candidates, 0))
    for a, b in zip(many, dense, strict=True):
        assert_trees_equal(flatten(a["after"]), flatten(b["after"]))
        assert a["ledger"] == b["ledger"]
    assert bool(dense[0]["asked"].all())


@pytest.mark.parametrize("candidates", [-2, 1, 3])
def test_too_few_candidates_are_refused(candidates: int) -> None:
    with pytest.raises(ConfigError, match=r"candidates.*4 or more"):
        SCooL(candidates=candidates)


def test_own_data_asks_nobody() -> None:
    scool = method(Dirac(topology="ring"))
    engine, theta0 = start(classification((6,) * K))
    state = scool.init(engine, theta0)
    for t in range(3):
        state, _ = scool.step(engine, state, t)
    assert set(engine.ledger.messages) == {"mix"}


def test_a_fixed_graph_that_shares_data_tries_its_own_edges_first() -> None:
    scool = method(Dirac(topology="group-ring", degree=4), likelihood="shared")
    log = watched(scool, 3)
    w = as_matrix(log[0]["before"].graph.w)
    edges = (w != 0).fill_diagonal_(False)
    assert all(bool((row["asked"] & edges)[i].sum() >= 1) for row in log for i in range(K))


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
@pytest.mark.parametrize("keep_self", [True, False])
def test_a_client_in_quarantine_is_not_tried_and_leaves_the_others_finite(
    prior: Any, keep_self: bool
) -> None:
    scool = method(prior, keep_self=keep_self)
    engine, theta0 = start(poisoned(classification((6,) * K), 5))
    state = scool.init(engine, theta0)
    for t in range(6):
        state, info = scool.step(engine, state, t)
        graph = info["graph"].dense()
        torch.testing.assert_close(graph.sum(dim=1), torch.ones(K).double())
        assert not bool(graph[:, 5][torch.arange(K) != 5].any()) and is_finite(state.theta)
        if t <= 3:
            known = state.cross_loss.dense().isfinite()
            assert not bool(known[5].any() | known[:, 5].any())


def test_a_client_that_breaks_later_is_forgotten() -> None:
    engine, theta0 = start(classification((6,) * K))
    scool = method()
    state = scool.init(engine, theta0)
    for t in range(2):
        state, _ = scool.step(engine, state, t)
    assert bool(state.cross_loss.dense()[:, 7].isfinite().sum() > 1)
    engine.quarantine({7: Reason.read("test")})
    state, info = scool.step(engine, state, 2)
    assert bool((info["graph"].dense()[:, 7] > 0).sum() == 1)  # itself
    assert float(state.graph.w.dense()[:, 7].sum()) == 0


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
def test_going_on_from_a_checkpoint_changes_nothing(prior: Any) -> None:
    scool = method(prior)
    engine, theta0 = start(classification((6,) * K))
    state = scool.init(engine, theta0)
    for t in range(5):
        stored = {name: x.clone() for name, x in flatten(state).items()}
        state, _ = scool.step(engine, state, t)
        other, _ = start(classification((6,) * K))
        again = unflatten(scool.init(other, theta0), stored)
        assert_trees_equal(flatten(scool.step(other, again, t)[0]), flatten(state))


# ---------------------------------------------------------------------- it works


@pytest.mark.parametrize("prior", [SBM(num_blocks=6), Attention()])
def test_planted_groups_are_found_as_with_all_pairs(prior: Any) -> None:
    """K = 120 in groups of 20, 16 candidates of 119: the graph is as good as from all pairs."""
    federation = synthetic(120, 6, 20, seed=0, test_size=50)
    module = linear((10,), 5)
    scool = SCooL(
        prior=prior,
        sgd=LocalSGD(lr=0.2, batch_size=8, epochs=3),
        draw=CrossDraw(cross_samples=20),
        sparsify_round=7,
        fraction=1 / 7.5,  # 16, what a candidate search may keep at most
    )
    errors = {}
    assert federation.groups is not None and federation.truth is not None
    same = (federation.groups[:, None] == federation.groups).fill_diagonal_(False)
    for candidates in (0, 16):
        engine = LocalEngine(federation, module, seed=0, device="cpu")
        algorithm = replace(scool, candidates=candidates)
        state = algorithm.init(engine, parameters_of(module))
        for t in range(9):
            state, info = algorithm.step(engine, state, t)
        kept = state.neighbours.dense().fill_diagonal_(False)
        assert float((kept & same).sum() / kept.sum()) > 0.95
        errors[candidates] = graph_l1(info["graph"].dense(), federation.truth)
    assert errors[16] < errors[0] + 0.1
