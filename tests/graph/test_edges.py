"""A graph as edges against the same graph as a matrix."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scool.algorithms import SCooL
from scool.errors import ConfigError
from scool.graph import edges as edges_module
from scool.graph.edges import Edges, as_matrix, values_at
from scool.graph.mixing import best_columns
from scool.learning.local_sgd import LocalSGD
from scool.priors import SBM
from scool.recording.checkpoint import flatten, unflatten
from scool.recording.tensors import from_tensors
from toys import classification, start

SIZES = st.integers(1, 9)
SEEDS = st.integers(0, 10**6)
DENSITIES = st.sampled_from([0.0, 0.1, 0.5, 1.0])
some = settings(derandomize=True, max_examples=40, deadline=None)


def weights(K: int, seed: int, density: float) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    w = torch.randint(1, 4, (K, K), generator=rng).double() / 4  # few values, so that some tie
    return torch.where(torch.rand(K, K, generator=rng) < density, w, 0.0)


def test_lists_are_sorted_and_stand_for_the_matrix() -> None:
    w = weights(7, 0, 0.5)
    graph = Edges.of(w)
    assert torch.equal(graph.dense(), w) and graph.count == int((w != 0).sum())
    assert bool((graph.keys.diff() > 0).all()) and Edges.of(graph) is graph
    losses = w.where(w > 0, torch.nan)
    torch.testing.assert_close(Edges.of(losses, torch.nan).dense(), losses, equal_nan=True)
    known = Edges.of(w != 0)
    assert known.fill is False and torch.equal(known.dense(), w != 0)


@some
@given(K=SIZES, seed=SEEDS, density=DENSITIES)
def test_every_sum_and_choice_is_that_of_the_matrix(K: int, seed: int, density: float) -> None:
    w, other = weights(K, seed, density), weights(K, seed + 1, 0.4)
    graph, pairs = Edges.of(w), Edges.of(other)
    x = torch.rand(K, 3, dtype=torch.float64)
    i, j = pairs.i, pairs.j
    for thin in (0.0, 1.0):  # as a product with a matrix, and as a sum over pairs
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(edges_module, "THIN", thin)
            fresh = Edges.of(w)
            torch.testing.assert_close(fresh.sum_rows(x), w @ x)
            expected = (x @ x.T)[fresh.i, fresh.j]
            torch.testing.assert_close(fresh.forms(x, x), expected)
    torch.testing.assert_close(graph.row_sums(), w.sum(dim=1))
    torch.testing.assert_close(graph.loop_values(), w.diagonal())
    assert torch.equal(graph.lookup(pairs), w[i, j]) and torch.equal(values_at(w, pairs), w[i, j])
    assert torch.equal(graph.has(pairs), (w != 0)[i, j])
    assert torch.equal(graph.updated(pairs).dense(), torch.where(other != 0, other, w))
    assert torch.equal(graph.within(pairs).dense(), torch.where(other != 0, w, 0.0))
    back, order = graph.transposed()
    assert torch.equal(back.dense(), w.T) and torch.equal(back.values, graph.values[order])
    for count in (0, 1, 3, K):
        best = best_columns(w, count, w != 0)
        assert torch.equal(graph.on(graph.top(count), False).dense(), best)
    active = torch.rand(K) < 0.7
    both = active[:, None] & active
    assert torch.equal(graph.among(active).dense(), torch.where(both, w, 0.0))
    assert torch.equal(Edges.complete(K, active).dense(), both)
    log = w.masked_fill(w == 0, -torch.inf).log_softmax(dim=1)
    torch.testing.assert_close(graph.row_softmax(), log[graph.i, graph.j])


def test_pairs_in_any_order_are_gathered_and_doubles_are_added() -> None:
    i, j = torch.tensor([2, 0, 2]), torch.tensor([1, 2, 1])
    graph = Edges.gathered(3, i, j, torch.tensor([1.0, 5.0, 2.0]))
    assert graph.dense().tolist() == [[0, 0, 5], [0, 0, 0], [0, 3, 0]]
    assert Edges.gathered(3, i, j).values.tolist() == [True, True]


@pytest.mark.parametrize(
    "use",
    [
        lambda g: g.sum(dim=1),
        lambda g: g[2],
        lambda g: g * 2 + 1,
        lambda g: 1 - g,
        lambda g: g > 0.3,
        lambda g: torch.sigmoid(g),
        lambda g: torch.ones(5, 5) @ g,
        lambda g: torch.where(torch.ones(5, 5) > 0, g, 0.0),
    ],
)
def test_edges_are_no_tensor_and_say_how_to_get_one(use) -> None:
    with pytest.raises(AttributeError, match=r"\.values\).*\.dense\(\)"):
        use(Edges.of(weights(5, 3, 0.6)))


def test_edges_can_be_copied_and_looked_at() -> None:
    w = weights(5, 3, 0.6)
    graph = Edges.of(w)
    assert graph.shape == w.shape and len(graph) == 5 and not hasattr(graph, "nonsense")
    again = copy.deepcopy(graph)
    assert torch.equal(again.dense(), w) and again.values is not graph.values
    assert torch.equal(pickle.loads(pickle.dumps(graph)).dense(), w)
    assert as_matrix(w) is w and torch.equal(as_matrix(graph), w)


def test_a_pair_may_have_a_row_of_numbers() -> None:
    rows = torch.arange(1.0, 7.0).view(3, 2)
    i, j = torch.tensor([0, 0, 2]), torch.tensor([1, 2, 0])
    graph = Edges(3, i, j, rows)
    cube = graph.dense()
    assert cube.shape == (3, 3, 2) and torch.equal(cube[0, 2], rows[1])
    assert torch.equal(Edges.of(cube).values, rows)
    assert torch.equal(graph.row_sums(), cube.sum(dim=1))
    assert torch.equal(graph.column_sums(rows), cube.sum(dim=0))
    everyone = Edges.complete(3)
    assert torch.equal(graph.lookup(everyone), cube.flatten(0, 1))


def test_a_matrix_that_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="50000 clients does not fit"):
        Edges.none(50_000).dense()


@pytest.mark.parametrize("learned", [False, True])
def test_a_round_with_candidates_needs_no_matrix(
    learned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one after the choice of the peers."""
    engine, theta0 = start(classification((6,) * 40))
    prior = SBM(num_blocks=2, learn_B=learned)
    scool = SCooL(prior=prior, sgd=LocalSGD(steps=1), candidates=4, sparsify_round=2, fraction=0.05)
    monkeypatch.setattr(edges_module, "THIN", 1.0)
    monkeypatch.setattr("scool.priors.base.SMALL", 0)
    expected, states = [], []
    for most in (10**6, 0):
        monkeypatch.setattr(edges_module, "MOST", most)
        engine, theta0 = start(classification((6,) * 40))
        state = scool.init(engine, theta0)
        for t in range(5):
            state, info = scool.step(engine, state, t)
            (states if not most else expected).append((info["graph"].keys, info["graph"].values))
    assert len(states) == 5
    for (keys, values), (other, others) in zip(states, expected, strict=True):
        assert torch.equal(keys, other) and torch.equal(values, others)


# ---------------------------------------------------------------------- records


def few_and_many(monkeypatch: pytest.MonkeyPatch, small: int) -> SCooL:
    monkeypatch.setattr("scool.recording.tensors.SMALL", small)
    return SCooL(prior=SBM(num_blocks=2), sgd=LocalSGD(steps=1), candidates=4, sparsify_round=2)


@pytest.mark.parametrize("small", [0, 500])
def test_a_state_is_the_same_after_a_checkpoint(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lists, and as the matrices that checkpoints of earlier versions hold."""
    scool = few_and_many(monkeypatch, small)
    engine, theta0 = start(classification((6,) * 12))
    state = scool.init(engine, theta0)
    for t in range(5):
        stored = {name: x.clone() for name, x in flatten(state).items()}
        assert ("graph/w/i" in stored) == (small == 0)
        again = unflatten(scool.init(engine, theta0), stored)
        for name in ("neighbours", "cross_loss"):
            a, b = getattr(state, name), getattr(again, name)
            torch.testing.assert_close(a.dense(), b.dense(), equal_nan=True)
            assert a.fill == b.fill or a.fill != a.fill
        assert torch.equal(state.graph.w.dense(), again.graph.w.dense())
        state, _ = scool.step(engine, again, t)


@pytest.mark.parametrize(
    "parts",
    [
        {"": torch.zeros(2, 2)},
        {"/i": torch.tensor([0])},
        {"/i": [1, 0], "/j": [0, 0], "/values": [1.0, 1.0]},
        {"/i": [0], "/j": [3], "/values": [1.0]},
        {"/i": [-1], "/j": [0], "/values": [1.0]},
    ],
)
def test_what_is_no_graph_of_so_many_clients_is_refused(parts: dict) -> None:
    tensors = {name: torch.as_tensor(x) for name, x in parts.items()}
    if len(tensors) > 1:
        tensors["/fill"] = torch.tensor(0.0)
    with pytest.raises(ValueError, match=r"2|nothing|sorted"):
        from_tensors(tensors, 3, 0.0)
