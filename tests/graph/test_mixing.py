"""Keeping the best neighbours, and turning posterior weights into mixing weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scool.graph import mixing
from scool.graph.edges import Edges
from scool.graph.mixing import edges_without, keep_best, keep_top, mixing_weights, num_kept, without


def draw_peers(w, count, allowed, key, keep_self=True):
    """On matrices."""
    few = Edges.of(w.where(allowed, 0.0))
    return mixing.draw_peers(few, count, key, keep_self).dense()


@pytest.mark.parametrize(
    ("clients", "fraction", "count"),
    [(100, 0.29, 29), (100, 0.1, 10), (40, 0.225, 9), (10, 0.29, 2), (3, 0.1, 1), (7, 1.0, 7)],
)
def test_counts_survive_round_off(clients: int, fraction: float, count: int) -> None:
    assert num_kept(clients, fraction) == count


@settings(derandomize=True, max_examples=30, deadline=None)
@given(K=st.integers(1, 8), count=st.integers(1, 10), seed=st.integers(0, 99), own=st.booleans())
def test_exactly_count_columns_survive_and_they_are_the_best(
    K: int, count: int, seed: int, own: bool
) -> None:
    rank = torch.rand(K, K, generator=torch.Generator().manual_seed(seed))
    everyone = torch.ones(K, K, dtype=torch.bool)
    kept = keep_top(rank, count, everyone, keep_self=own)
    listed = Edges.complete(K)
    found = keep_best(listed.on(rank[listed.i, listed.j]), count, keep_self=own)
    assert torch.equal(found.dense(), kept)
    for i in range(K):
        candidates = [j for j in range(K) if not (own and j == i)]
        best = sorted(candidates, key=lambda j: -float(rank[i, j]))[:count]
        assert set(kept[i].nonzero()[:, 0].tolist()) == set(best) | ({i} if own else set())
    if count >= K:
        assert bool(kept.all())


def test_ties_go_to_the_smaller_index_and_forbidden_columns_never_survive() -> None:
    rank = torch.full((40, 40), 0.5)
    kept = keep_top(rank, 3, torch.ones(40, 40, dtype=torch.bool), keep_self=False)
    assert all(row.nonzero()[:, 0].tolist() == [0, 1, 2] for row in kept)
    allowed = torch.ones(40, 40, dtype=torch.bool)
    allowed[:, 1] = False
    kept = keep_top(rank, 39, allowed, keep_self=False)
    assert not bool(kept[:, 1].any()) and kept.sum(dim=1).tolist() == [39] * 40


def test_mixing_weights_by_hand() -> None:
    w = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.4], [0.0, 0.0, 0.0]]).double()
    neighbours = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1]]).bool()
    gated = mixing_weights(Edges.of(w * neighbours), "gated")
    expected = [[2 / 3, 1 / 3, 0], [0.25, 0.25, 0.5], [0, 0, 1]]
    torch.testing.assert_close(gated.weights.dense(), torch.tensor(expected).double())
    assert gated.fallback.tolist() == [False, False, True]
    full = mixing_weights(Edges.of(w * neighbours), "full", "paper")
    expected = [[1, 0.25, 0], [0.2, 1, 0.4], [0, 0, 1]]
    torch.testing.assert_close(full.weights.dense(), torch.tensor(expected).double())
    assert not bool(full.fallback.any())


def test_without_keeps_row_sums_and_isolates_the_inactive() -> None:
    w = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.5, 0.5, 1.0]]).double()
    active = torch.tensor([False, True, True])
    found = without(w, active)
    expected = [[1, 0, 0], [0, 1, 0], [0, 2 / 3, 4 / 3]]
    torch.testing.assert_close(found, torch.tensor(expected).double())
    assert without(w, torch.ones(3, dtype=torch.bool)) is w
    w[0] = torch.nan  # what it would do if it were active
    torch.testing.assert_close(without(w, active), found)
    torch.testing.assert_close(edges_without(Edges.of(w), active).dense(), found)


def test_peers_are_drawn_in_proportion_to_their_weights() -> None:
    w = torch.tensor([[0.0, 0.1, 0.2, 0.7]]).expand(4, 4)
    everyone = torch.ones(4, 4, dtype=torch.bool)
    counts = torch.zeros(4, 4)
    for key in range(3000):
        drawn = draw_peers(w, 1, everyone, key, keep_self=False)
        assert drawn.sum(dim=1).tolist() == [1, 1, 1, 1]
        counts += drawn
    assert ((counts / 3000 - w).abs() < 0.03).all() and not counts[:, 0].any()


def test_a_draw_has_no_repeats_keeps_the_client_and_leaves_out_whom_it_must() -> None:
    w = torch.rand(30, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    allowed = torch.ones(30, 30, dtype=torch.bool)
    allowed[:, 7] = False
    own = torch.eye(30, dtype=torch.bool)
    one, same, other = (draw_peers(w, 5, allowed, key) for key in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert (one & ~own).sum(dim=1).tolist() == [5] * 30 and bool(one.diagonal().all())
    assert not (one & ~own)[:, 7].any()
    others = torch.cat([w[:1], w[1:].flip(0)])
    assert torch.equal(draw_peers(others, 5, allowed, 1)[0], one[0])  # its own row decides alone
    few = draw_peers(w * (w > 0.9), 29, allowed, 1)
    assert torch.equal(few & ~own, (w > 0.9) & allowed & ~own)  # never anyone of weight 0
