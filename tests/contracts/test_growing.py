"""Every method that can grow does so: what it knew stays to the bit, newcomers begin as clients do,
and the next round works."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.test_algorithms import check_round, method, steps
from scool.algorithms import METHODS, SCooL
from scool.algorithms.between_rounds import EarlyStopping, FineTuned, with_between
from scool.algorithms.shared.settling import OVER
from scool.graph.edges import Edges
from scool.graph.growing import laid_over
from scool.priors import MMSBM, SBM, Attention, Dirac
from scool.recording.checkpoint import flatten, unflatten
from scool.run.checks import as_method
from scool.run.prepare import prepare_data
from toys import classification, start

SIZES = (12, 9, 8, 12, 10)
MORE = (*SIZES, 11, 9)
OWN = ("gamma", "weights", "anchor", "neighbours")  # where newcomers are not as at the start
GROWING = [name for name in METHODS if not method(name).stays]


def grown(algorithm: Any) -> tuple[Any, Any, Any, Any]:
    """The state of five clients after three rounds, as one of seven, the first state of seven, and
    the engine of these."""
    before, _, _ = steps(algorithm, classification(SIZES))
    engine, theta0 = start(prepare_data(classification(MORE), algorithm, seed=3))
    fresh = algorithm.init(engine, theta0)
    return before, algorithm.grow(before, fresh), fresh, engine


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(7e9), b.nan_to_num(7e9))


def check_blocks(before: Any, after: Any, fresh: Any) -> None:
    old, new, first = (flatten(state) for state in (before, after, fresh))
    assert old.keys() == new.keys()
    for name, t in new.items():
        block = tuple(slice(n) for n in old[name].shape)
        assert t.shape == first[name].shape and same(t[block], old[name]), name
        if t.shape != old[name].shape and not name.endswith(OWN):
            rest = first[name].clone()
            rest[block] = old[name]
            assert same(t, rest), name


@pytest.mark.parametrize("name", GROWING)
def test_a_method_grows(name: str) -> None:
    algorithm = method(name)
    before, after, fresh, engine = grown(algorithm)
    check_blocks(before, after, fresh)
    state = algorithm.admit(after, torch.tensor([5, 6]))
    federation = engine.federation
    for t in (3, 4):
        state, info = algorithm.step(engine, state, t)
        check_round(algorithm, state, info, engine, federation, t)


def test_wrappers_grow_with_what_is_inside() -> None:
    inside = method("scool-sbm")
    wrapped = [with_between(inside, 0.5, 0.5), EarlyStopping(inside, 3), FineTuned(inside, 1, 9)]
    for algorithm in wrapped:
        before, after, fresh, engine = grown(algorithm)
        check_blocks(before, after, fresh)
        algorithm.step(engine, after, 3)


def test_a_method_of_ones_own_grows_and_may_say_how() -> None:
    class Mine:
        sgd = method("local").sgd

        def init(self, engine: Any, theta0: Any) -> Any:
            return method("local").init(engine, theta0)

        def step(self, engine: Any, state: Any, round: int) -> Any:
            return method("local").step(engine, state, round)

    check_blocks(*grown(as_method(Mine()))[:3])
    Mine.grow = lambda self, state, fresh: "mine"  # type: ignore[attr-defined]
    assert grown(as_method(Mine()))[1] == "mine"


def test_newcomers_of_sbm_belong_to_all_blocks_alike() -> None:
    """gamma = alpha + Omega with the alpha of the run, and Omega = 1/M."""
    algorithm = replace(method("scool-sbm"), prior=SBM(num_blocks=3, learn_alpha=True))
    before, after, _, _ = grown(algorithm)
    alpha, third = before.graph.alpha, torch.full((2, 3), 1 / 3, dtype=torch.float64)
    assert not torch.equal(alpha, torch.ones(3).double())
    assert torch.equal(after.graph.omega[5:], third)
    assert torch.equal(after.graph.gamma[5:], alpha + third)
    assert after.graph.w.dense()[5:].count_nonzero() == 0
    assert int(after.graph.known) == int(before.graph.known)


def test_newcomers_of_mmsbm_take_the_alpha_of_the_run() -> None:
    prior = MMSBM(num_blocks=3, learn_alpha=True)
    before, after, _, _ = grown(replace(method("scool-mmsbm"), prior=prior))
    assert torch.equal(after.graph.gamma[5:], before.graph.alpha.expand(2, -1))
    assert after.graph.phi_send.count == before.graph.phi_send.count


def test_who_chose_neighbours_does_not_meet_newcomers_before_they_come() -> None:
    """And who did not yet goes on meeting all."""
    before, after, _, _ = grown(method("scool-sbm"))
    assert not before.neighbours.fill and not after.neighbours.dense()[:, 5:].any()
    before, after, _, _ = grown(replace(method("scool-sbm"), sparsify_round=-1))
    assert before.neighbours.fill and after.neighbours.fill and not after.neighbours.count


def test_newcomers_count_with_the_weights_of_the_population() -> None:
    """Equal ones would bring back kinds that nobody uses any more."""
    algorithm = method("scool", kinds="alone,common")
    before, _, _ = steps(algorithm, classification(SIZES))
    engine, theta0 = start(prepare_data(classification(MORE), algorithm, seed=3))
    pi = torch.tensor([0.98, 0.02]).double()
    over = before._replace(population=pi, calm=torch.tensor(OVER))
    late = algorithm.grow(over, algorithm.init(engine, theta0)).weights[5:]
    assert torch.equal(late, torch.tensor([[1.0, 0.0]] * 2).double())
    late = algorithm.grow(before, algorithm.init(engine, theta0)).weights[5:]
    assert torch.equal(late, before.population.expand(2, -1))


def test_a_state_is_cut_to_the_clients_that_are_known() -> None:
    """Of a peer with a later edition of the agreement."""
    algorithm = method("scool-mmsbm")
    before, after, _, _ = grown(algorithm)
    found = algorithm.grow(after, before)
    for name, t in flatten(before).items():
        assert same(flatten(found)[name], t), name


def test_a_checkpoint_of_fewer_clients_is_read_as_that() -> None:
    before, _, fresh, _ = grown(method("scool-mmsbm"))
    found = unflatten(fresh, flatten(before), clients=5)
    for name, t in flatten(before).items():
        assert same(flatten(found)[name], t), name
    with pytest.raises(Exception, match="it belongs to another configuration"):
        unflatten(fresh, flatten(before))
    with pytest.raises(Exception, match="it belongs to another configuration"):
        unflatten(fresh, flatten(before), clients=4)


def test_what_is_made_for_a_number_of_clients_says_so() -> None:
    of_each = SBM(null_loglik=(-1.0,) * 5)
    found = {
        "": [SBM(), MMSBM(), Attention(), SBM(null_loglik=-1.0)],
        "null_loglik": [of_each],
        "topology": [Dirac()],
        "matrix": [Dirac(matrix=torch.full((2, 2), 0.5))],
    }
    for word, priors in found.items():
        for prior in priors:
            assert SCooL(prior=prior).stays == word
            assert with_between(SCooL(prior=prior), model_average=0.5).stays == word
    assert method("scool", kinds="alone,graph").stays == ""
    assert replace(method("scool"), prior=of_each).stays == "null_loglik"
    assert method("dpsgd").stays == method("spdb").stays == "topology"


def test_pairs_keep_their_numbers_and_newcomers_have_those_of_the_other_state() -> None:
    old = Edges.of(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    new = Edges.of(torch.tensor([[9.0, 9.0, 4.0], [0.0, 9.0, 0.0], [5.0, 0.0, 6.0]]))
    expected = torch.tensor([[0.0, 2.0, 4.0], [3.0, 0.0, 0.0], [5.0, 0.0, 6.0]])
    assert torch.equal(laid_over(new, old).dense(), expected)
    assert torch.equal(laid_over(old, new).dense(), torch.tensor([[9.0, 9.0], [0.0, 9.0]]))
    with pytest.raises(ValueError, match="does not fit over"):
        laid_over(torch.zeros(3, 3), torch.zeros(2))
    rows = Edges(2, torch.tensor([0]), torch.tensor([1]), torch.ones(1, 4))
    with pytest.raises(ValueError, match="pairs with other numbers"):
        laid_over(new, rows)
