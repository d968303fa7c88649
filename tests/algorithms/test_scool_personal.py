"""Personal tensors in SCooL: the formula for what is mixed, and that the rest never is."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from scool.algorithms import LocalOnly, SCooL
from scool.cli.main import dispatch
from scool.contracts import Evidence, SelfMode
from scool.errors import ConfigError
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.priors import SBM, Attention, Dirac, GraphPrior
from scool.recording.checkpoint import flatten, unflatten
from scool.types import Params, Tree
from toys import (
    assert_trees_close,
    assert_trees_equal,
    classification,
    is_finite,
    poisoned,
    row_stochastic,
    scattered,
    softmax_regression,
    start,
)

SIZES = (5, 4, 8, 6, 7)
K = len(SIZES)
SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
ONE = LocalSGD(lr=0.1, steps=1, batch_size=20, weight_decay=0.02)
ALL = CrossDraw(cross_samples=0)
NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]
BODY, HEAD = NAMES[:2], NAMES[2:]
PARTS = [("head", BODY), ("2", BODY), ("0", HEAD), ("head, 0.bias", ["0.weight"]), ("", NAMES)]


class FixedState(NamedTuple):
    w: Tensor


@dataclass(frozen=True)
class Fixed(GraphPrior[FixedState]):
    """A graph that never changes, and a note of the evidence it is shown."""

    matrix: tuple[tuple[float, ...], ...]
    self_mode: SelfMode = "gated"
    shown: list[Evidence] = field(default_factory=list)

    def init(self, num_clients: int, theta0: Params, seed: int) -> FixedState:
        return FixedState(torch.tensor(self.matrix, dtype=torch.float64))

    def e_step(self, state: FixedState, evidence: Evidence) -> FixedState:
        self.shown.append(evidence)
        return state

    def elbo(self, state: FixedState, evidence: Evidence) -> Tensor:
        return torch.zeros(())


def fixed(w: Tensor) -> Any:
    return Fixed(tuple(map(tuple, w.tolist())))


def one_step(scool: SCooL) -> tuple[Any, Tree, Any, Any]:
    """The models before a step, theta^(t+1/2), the state after it, and the engine."""
    engine, theta0 = start(classification(SIZES))
    state = scool.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    half = engine.train(state.theta, scool.sgd, 0).theta
    engine.ledger.close_round()
    after, _ = scool.step(engine, state, 0)
    assert list(after.theta) == list(state.theta) == NAMES
    return state.theta, half, after, engine


def size(tree: Tree, names: list[str]) -> int:
    return sum(tree[n][0].numel() * tree[n].element_size() for n in names)


# ---------------------------------------------------------------------- the formula


@pytest.mark.parametrize(("personal", "shared"), PARTS)
@pytest.mark.parametrize("weighting", ["row", "paper"])
def test_shared_tensors_are_mixed_and_personal_ones_are_those_of_local_training(
    personal: str, shared: list[str], weighting: Any
) -> None:
    w = row_stochastic(K)
    prior = fixed(w)
    scool = SCooL(prior=prior, sgd=SGD, personal=personal, weighting=weighting)
    theta, half, after, engine = one_step(scool)
    for name, t in theta.items():
        for i in range(K):
            update = half[name][i] - t[i]
            if name in shared:
                update = sum(w[i, j] * (half[name][j] - t[j]) for j in range(K))
            torch.testing.assert_close(after.theta[name][i], t[i] + update, rtol=0, atol=1e-12)
    edges = K * (K - 1)
    assert engine.ledger.bytes["mix"] == edges * size(theta, shared)
    assert engine.ledger.bytes["cross_models"] == edges * size(theta, NAMES)  # tried as a whole


def test_personal_tensors_are_local_training_to_the_bit() -> None:
    _, half, after, _ = one_step(SCooL(prior=SBM(num_blocks=2), sgd=SGD, personal="head"))
    for name in HEAD:
        assert torch.equal(after.theta[name], half[name])
    for name in BODY:
        assert not torch.equal(after.theta[name], half[name])


@pytest.mark.parametrize("likelihood", ["own", "shared"])
def test_dirac_mixes_the_shared_part_of_the_models(likelihood: Any) -> None:
    w = (row_stochastic(K) + torch.eye(K)) / 2
    w = (w + w.T) / 2
    w = w + torch.diag(1 - w.sum(dim=1))
    scool = SCooL(prior=Dirac(matrix=w), sgd=SGD, likelihood=likelihood, personal="head")
    theta, half, after, engine = one_step(scool)
    for name, t in theta.items():
        for i in range(K):
            expected = half[name][i]
            if name in BODY:
                own = half[name][i] - t[i]
                mixed = sum(w[i, j] * (half[name][j] - t[j]) for j in range(K))
                expected = sum(w[i, j] * t[j] for j in range(K))
                expected = expected + (own if likelihood == "own" else mixed)
            torch.testing.assert_close(after.theta[name][i], expected, rtol=0, atol=1e-12)
    edges = int((w.clone().fill_diagonal_(0) != 0).sum())
    trees = 1 if likelihood == "own" else 2  # the models, and where data is shared the updates
    assert engine.ledger.bytes["mix"] == trees * edges * size(theta, BODY)


def test_exact_cross_gradients_of_the_shared_part() -> None:
    w = row_stochastic(K)
    scool = SCooL(prior=fixed(w), sgd=ONE, cross_gradient="exact", personal="head")
    theta, half, after, engine = one_step(scool)
    gradient = engine.cross_gradient(theta, w, ONE, 0)
    for name, t in theta.items():
        step = ONE.lr * (gradient[name] + ONE.weight_decay * t)
        expected = t - step if name in BODY else half[name]
        torch.testing.assert_close(after.theta[name], expected, rtol=0, atol=1e-12)
    eye = torch.eye(K, dtype=torch.float64)
    own = engine.cross_gradient(theta, eye, ONE, 0)
    for name in HEAD:  # and local training is the gradient on one's own data
        expected = theta[name] - ONE.lr * (own[name] + ONE.weight_decay * theta[name])
        torch.testing.assert_close(half[name], expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- priors on the models


def test_the_gaussian_prior_holds_for_all_tensors() -> None:
    plain = SCooL(prior=fixed(row_stochastic(K)), sgd=ONE, personal="head")
    theta, _, a, _ = one_step(plain)
    _, _, b, _ = one_step(replace(plain, model_precision=0.3))
    expected = {n: t - ONE.lr * 0.3 * theta[n] for n, t in a.theta.items()}
    assert_trees_close(b.theta, expected, atol=1e-8)  # the rate is a float32 there


def test_the_laplacian_prior_knows_the_shared_part_only() -> None:
    lam, w = 0.3, row_stochastic(K)
    plain = SCooL(prior=fixed(w), sgd=ONE, draw=ALL, personal="head")
    coupled = replace(plain, prior=fixed(w), model_coupling=lam)
    theta, half, a, _ = one_step(plain)
    _, _, b, engine = one_step(coupled)
    for name, t in theta.items():
        for i in range(K):
            pull = sum((w[i, j] + w[j, i]) / 2 * (t[i] - t[j]) for j in range(K) if j != i)
            step = ONE.lr * lam * pull if name in BODY else 0.0
            torch.testing.assert_close(b.theta[name][i], a.theta[name][i] - step)
    shift = coupled.prior.shown[0].dense()[0] - plain.prior.shown[0].dense()[0]  # type: ignore[union-attr]
    for i in range(K):
        for j in range(K):
            gap = sum(float((half[n][i] - half[n][j]).square().sum()) for n in BODY)
            assert float(shift[i, j]) == pytest.approx(-lam / 4 * gap, abs=1e-10)
    assert engine.ledger.bytes["mix"] == 2 * K * (K - 1) * size(theta, BODY)


def test_the_attention_prior_sees_and_pulls_the_shared_part_only() -> None:
    prior = Attention(prior_grad_to_theta=True)
    scool = SCooL(prior=prior, sgd=SGD, personal="head")
    _, half, after, _ = one_step(scool)
    assert {name.split("/")[0] for name in after.graph.phi} == set(BODY)
    for name in HEAD:
        assert torch.equal(after.theta[name], half[name])
    _, _, whole, _ = one_step(replace(scool, personal=""))
    assert not torch.equal(whole.theta["2.weight"], half["2.weight"])
    _, _, still, _ = one_step(replace(scool, prior=replace(prior, prior_grad_to_theta=False)))
    assert not torch.equal(still.theta["0.weight"], after.theta["0.weight"])  # the body is pulled


def test_the_updates_shown_to_a_prior_are_of_the_shared_part() -> None:
    scool = SCooL(prior=fixed(row_stochastic(K)), sgd=SGD, personal="0")
    _, half, after, _ = one_step(scool)
    updates = scool.prior.shown[0].updates  # type: ignore[union-attr]
    assert_trees_close(updates, {n: half[n] - after.theta0[n] for n in HEAD})


# ---------------------------------------------------------------------- limits


def test_nothing_personal_is_the_method_as_it_was() -> None:
    a, b = (
        one_step(SCooL(prior=SBM(num_blocks=2), sgd=SGD, **options))[2]
        for options in ({}, {"personal": ""})
    )
    assert_trees_equal(flatten(a), flatten(b))
    everything = one_step(SCooL(prior=SBM(num_blocks=2), sgd=SGD, personal=" , "))[2]
    assert_trees_equal(flatten(a), flatten(everything))


def test_a_graph_without_edges_and_a_likelihood_of_own_data_are_local_sgd() -> None:
    eye = torch.eye(K, dtype=torch.float64)
    for scool in (
        SCooL(prior=fixed(eye), sgd=SGD, personal="head"),
        SCooL(prior=SBM(num_blocks=2), sgd=SGD, likelihood="own", personal="head"),
    ):
        engine, theta0 = start(classification(SIZES))
        state = scool.init(engine, theta0)
        local = LocalOnly(sgd=SGD).init(engine, theta0)
        for t in range(3):
            state, _ = scool.step(engine, state, t)
            local, _ = LocalOnly(sgd=SGD).step(engine, local, t)
        assert_trees_equal(state.theta, local.theta)


def test_the_heads_of_identical_clients_stay_identical() -> None:
    federation = classification((6,) * K)
    same = federation.train._replace(
        index=federation.train.index[:1].expand(K, -1).clone(),
        y=federation.train.y[:1].expand(K, -1).clone(),
    )
    engine, theta0 = start(replace(federation, train=same))
    full = LocalSGD(lr=0.1, epochs=2, batch_size=20)
    scool = SCooL(prior=fixed(row_stochastic(K)), sgd=full, personal="head")
    state = scool.init(engine, theta0)
    for t in range(3):
        state, _ = scool.step(engine, state, t)
    for t in state.theta.values():
        torch.testing.assert_close(t, t[:1].expand_as(t), rtol=0, atol=1e-12)


@pytest.mark.parametrize("prior", [SBM(num_blocks=2), Attention(prior_grad_to_theta=True)])
def test_quarantine_candidates_and_a_checkpoint(prior: Any) -> None:
    federation = poisoned(classification((6,) * 12), 3)
    scool = SCooL(prior=prior, sgd=SGD, personal="head", candidates=4, sparsify_round=2)
    scool = replace(scool, fraction=0.3, model_coupling=0.1, model_precision=0.1)
    engine, theta0 = start(federation)
    state = scool.init(engine, theta0)
    for t in range(4):
        stored = {name: x.clone() for name, x in flatten(state).items()}
        state, _ = scool.step(engine, state, t)
        assert is_finite(state.theta)
        other, _ = start(federation)
        again = unflatten(scool.init(other, theta0), stored)
        assert_trees_equal(flatten(scool.step(other, again, t)[0]), flatten(state))


# ---------------------------------------------------------------------- mistakes


def test_a_layer_that_the_model_lacks_is_refused() -> None:
    engine, theta0 = start(classification(SIZES))
    with pytest.raises(ConfigError, match=r"personal: 'fc2'.*head"):
        SCooL(personal="fc2").init(engine, theta0)
    engine, theta0 = start(classification(SIZES), softmax_regression())
    with pytest.raises(ConfigError, match="whole model"):
        SCooL(personal="head").init(engine, theta0)


@pytest.mark.parametrize("method", ["scool-sbm", "scool-attention", "scool-dirac", "scool-mmsbm"])
def test_the_command_line_names_the_layers_there_are(
    method: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--clients", "4", "--groups", "2", "--rounds", "1", "--device", "cpu", "--quiet"]
    with pytest.raises(ConfigError, match=r"'nosuch'.*Known: 1, 3, head"):
        dispatch(["run", method, "--personal", "nosuch", *small])
    assert not list(tmp_path.iterdir())
    assert dispatch(["run", method, "--personal", "head", "--epochs", "1", *small]) == 0
