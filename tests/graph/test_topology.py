"""D27: every topology is symmetric, doubly stochastic, connected, with the stated degrees."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from scool import CGA, DPSGD, SPDB, Dirac, LocalSGD, fit
from scool.errors import ConfigError
from scool.graph.topology import (
    TOPOLOGIES,
    check_mixing_matrix,
    is_connected,
    mixing_matrix,
    spectral_gap,
)
from toys import classification

CONNECTED = [name for name in TOPOLOGIES if name != "identity"]


def neighbours(w: torch.Tensor) -> torch.Tensor:
    return ((w != 0) & ~torch.eye(len(w), dtype=torch.bool)).sum(dim=1)


@pytest.mark.parametrize("name", CONNECTED)
@pytest.mark.parametrize("num_clients", [1, 2, 3, 4, 5, 7, 11, 12, 40, 100, 101, 102, 151])
def test_is_a_mixing_matrix(name: str, num_clients: int) -> None:
    w = mixing_matrix(name, num_clients, seed=3)
    assert w.shape == (num_clients, num_clients) and w.dtype == torch.float64
    assert bool((w >= 0).all())
    torch.testing.assert_close(w, w.T, rtol=0, atol=0)
    ones = torch.ones(num_clients, dtype=torch.float64)
    torch.testing.assert_close(w.sum(dim=0), ones, rtol=0, atol=1e-12)
    check_mixing_matrix(w, num_clients)
    assert spectral_gap(w) > 1e-5


def test_degrees_and_weights_at_100_clients() -> None:
    ring = mixing_matrix("ring", 100)
    assert set(neighbours(ring).tolist()) == {2}
    assert torch.allclose(ring[ring > 0], torch.tensor(1 / 3, dtype=torch.float64))
    for name in ("group-ring", "generalised-bipartite"):
        w = mixing_matrix(name, 100)
        assert set(neighbours(w).tolist()) == {10}
        assert torch.allclose(w[w > 0], torch.tensor(1 / 11, dtype=torch.float64))
    assert set(neighbours(mixing_matrix("complete", 100)).tolist()) == {99}
    hubs = mixing_matrix("bipartite", 100)
    assert neighbours(hubs).tolist() == [2] * 98 + [98, 98]
    assert hubs[0, 0].item() == pytest.approx(0.98)
    assert hubs[99, 99].item() == pytest.approx(0.02)
    assert hubs[98, 99].item() == 0


@pytest.mark.parametrize("name", CONNECTED)
def test_shuffled_it_is_the_same_graph_with_other_places(name: str) -> None:
    plain, shuffled = (mixing_matrix(name, 40, shuffle=s, seed=3) for s in (False, True))
    check_mixing_matrix(shuffled, 40)
    assert neighbours(plain).sort().values.equal(neighbours(shuffled).sort().values)
    assert spectral_gap(shuffled) == pytest.approx(spectral_gap(plain))
    assert shuffled.equal(mixing_matrix(name, 40, shuffle=True, seed=3))
    if name != "complete":
        assert not shuffled.equal(plain)
        assert not shuffled.equal(mixing_matrix(name, 40, shuffle=True, seed=4))


def test_shuffled_neighbours_are_of_any_group() -> None:
    """Five groups of twenty, one after the other, as in the sbm partition."""
    group = torch.arange(100) // 20
    same = group[:, None] == group[None, :]
    own = [
        float((mixing_matrix("group-ring", 100, shuffle=s) * same).sum(dim=1).mean())
        for s in (False, True)
    ]
    assert own[0] > 0.85 and own[1] < 0.35


def test_group_ring_reaches_five_each_way() -> None:
    row = mixing_matrix("group-ring", 100)[0].nonzero().flatten().tolist()
    assert row == [*range(0, 6), *range(95, 100)]


@pytest.mark.parametrize(("degree", "expected"), [(1, 2), (2, 2), (5, 4), (10, 10), (99, 19)])
def test_group_ring_rounds_and_clamps_the_degree(degree: int, expected: int) -> None:
    assert set(neighbours(mixing_matrix("group-ring", 20, degree=degree)).tolist()) == {expected}


def test_generalised_bipartite_has_no_edge_inside_a_half() -> None:
    w = mixing_matrix("generalised-bipartite", 30, degree=4, seed=1)
    side = torch.zeros(30, dtype=torch.float64)
    side[0] = 1
    for _ in range(30):  # two colours spread along the edges
        side = torch.where(side == 0, -torch.sign(w.fill_diagonal_(0) @ side), side)
    edges = w > 0
    assert bool((side[:, None] * side[None, :])[edges].eq(-1).all())
    assert int((side == 1).sum()) == 15


def test_generalised_bipartite_is_a_function_of_the_seed() -> None:
    first, again, other = (mixing_matrix("generalised-bipartite", 40, seed=s) for s in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_generalised_bipartite_of_odd_size() -> None:
    w = mixing_matrix("generalised-bipartite", 41, degree=6)
    assert neighbours(w).sum() == 6 * 20 * 2 + 12


def test_spectral_gap_of_a_ring_is_known() -> None:
    expected = 1 - (1 + 2 * torch.cos(torch.tensor(2 * torch.pi / 8, dtype=torch.float64))) / 3
    assert spectral_gap(mixing_matrix("ring", 8)) == pytest.approx(expected.item())
    assert spectral_gap(mixing_matrix("identity", 8)) == pytest.approx(0)


def test_identity_is_not_connected() -> None:
    w = mixing_matrix("identity", 3)
    assert not is_connected(w)
    check_mixing_matrix(w, connected=False)
    with pytest.raises(ConfigError, match="not connected"):
        check_mixing_matrix(w)


def test_bad_names_and_numbers() -> None:
    with pytest.raises(ConfigError, match="did you mean 'group-ring'"):
        mixing_matrix("group_ring", 5)
    with pytest.raises(ConfigError, match="num_clients = 0"):
        mixing_matrix("ring", 0)
    with pytest.raises(ConfigError, match="degree = 0"):
        mixing_matrix("group-ring", 5, degree=0)
    with pytest.raises(ConfigError, match="separate pairs"):
        mixing_matrix("generalised-bipartite", 10, degree=1)


@pytest.mark.parametrize(
    ("w", "message"),
    [
        (torch.ones(2, 3), "square"),
        (torch.ones(4), "square"),
        (torch.eye(3), "3 rows for 2 clients"),
        (torch.tensor([[1.5, -0.5], [-0.5, 1.5]]), "negative"),
        (torch.tensor([[float("nan"), 0.5], [0.5, 0.5]]), "non-finite"),
        (torch.tensor([[0.5, 0.5], [0.3, 0.7]]), "not symmetric"),
        (torch.tensor([[0.5, 0.4], [0.4, 0.6]]), "row 0 sums to 0.9"),
    ],
)
def test_refuses_other_matrices(w: torch.Tensor, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_mixing_matrix(w, 2)


@pytest.mark.parametrize("method", [DPSGD(shuffle=True), CGA(shuffle=True), SPDB(shuffle=True)])
def test_methods_shuffle(method: Any) -> None:
    federation = classification(sizes=[6] * 20)
    result = fit(federation, "mlp", replace(method, sgd=LocalSGD(steps=1)), rounds=1, seed=5)
    assert result.graph is not None
    expected = mixing_matrix("group-ring", 20, shuffle=True, seed=5)
    torch.testing.assert_close(result.graph.double(), expected, check_dtype=False)


def test_the_dirac_prior_shuffles() -> None:
    w = Dirac(shuffle=True).init(20, {}, 5).w.dense()
    assert w.equal(mixing_matrix("group-ring", 20, shuffle=True, seed=5))
