"""SCooL: what is averaged, sparse graphs, options, quarantine."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.sharded_world import sharded
from fixed_graphs import ALL, DECAY, FULL, SIZES, Fixed, FixedState, K, fixed, run
from scool.algorithms import LocalOnly, SCooL
from scool.algorithms.shared.scool_options import laplacian
from scool.algorithms.shared.sharing import mix_updates
from scool.contracts import Evidence, SelfMode
from scool.engine.local import LocalEngine
from scool.errors import ConfigError
from scool.graph.edges import Edges
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from scool.models import parameters_of
from scool.priors import SBM, Attention, Dirac
from toys import (
    assert_trees_close,
    assert_trees_equal,
    classification,
    is_finite,
    poisoned,
    regression,
    row_stochastic,
    scattered,
    softmax_regression,
    start,
)

# ---------------------------------------------------------------------- aggregation


def test_aggregation_starts_from_theta_t_and_adds_the_peers_updates() -> None:
    w = row_stochastic(K)
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=3)
    engine, theta0 = start(classification(SIZES))
    scool = SCooL(prior=fixed(w), sgd=sgd)
    state = scool.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    half = engine.train(state.theta, sgd, 0).theta
    found, info = scool.step(engine, state, 0)
    torch.testing.assert_close(info["graph"].dense(), w)
    for name, t in state.theta.items():
        for i in range(K):
            update = sum(w[i, j] * (half[name][j] - t[j]) for j in range(K))
            torch.testing.assert_close(found.theta[name][i], t[i] + update)


def test_models_can_be_averaged_instead_of_updates() -> None:
    w = row_stochastic(K)
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=3)
    engine, theta0 = start(classification(SIZES))
    scool = SCooL(prior=fixed(w), sgd=sgd, aggregate="models")
    state = scool.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    half = engine.train(state.theta, sgd, 0).theta
    found, _ = scool.step(engine, state, 0)
    for name, t in half.items():
        for i in range(K):
            torch.testing.assert_close(found.theta[name][i], sum(w[i, j] * t[j] for j in range(K)))
    together = run(scool, classification(SIZES), rounds=1)[0]  # from equal models both are one
    updates = run(replace(scool, aggregate="updates"), classification(SIZES), rounds=1)[0]
    for name, t in updates.theta.items():
        torch.testing.assert_close(together.theta[name], t)


def test_neighbours_that_know_different_halves_of_a_group_drift_apart_unless_models_meet() -> None:
    """Why `aggregate` exists: updates of a peer are made at the peer's model, not at one's own."""
    ring = sum(torch.eye(K, dtype=torch.float64).roll(s, dims=1) for s in (0, 1)) / 2
    sgd = LocalSGD(lr=0.3, epochs=3, batch_size=3)
    spread: dict[str, float] = {}
    for aggregate in ("updates", "models"):
        scool = SCooL(prior=fixed(ring), sgd=sgd, aggregate=aggregate)  # type: ignore[arg-type]
        theta = run(scool, classification(SIZES), rounds=8)[0].theta
        spread[aggregate] = sum(float((t - t.mean(dim=0)).square().sum()) for t in theta.values())
    assert spread["models"] < 0.5 * spread["updates"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "paper"}, "weighting = 'paper'"),
        ({"likelihood": "own"}, "aggregate = 'models'"),
        ({"cross_gradient": "exact", "sgd": LocalSGD(steps=1)}, "aggregate = 'models'"),
        ({"prior": Dirac(), "likelihood": "shared"}, "mixes models by itself"),
    ],
)
def test_models_are_averaged_only_where_that_makes_sense(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SCooL(**options, aggregate="models")


@pytest.mark.parametrize("self_mode", ["gated", "always", "exclude"])
def test_d18_row_weights(self_mode: SelfMode) -> None:
    federation = classification(SIZES)
    base = SCooL(prior=SBM(num_blocks=2, self_mode=self_mode), sgd=FULL, sparsify_round=0)
    base = replace(base, fraction=0.4)
    paper = replace(base, weighting="paper")
    for t in range(2):  # dense, then sparse
        _, infos, _ = run(base, federation, rounds=t + 1)
        row = infos[t]["graph"]
        torch.testing.assert_close(row.sum(dim=1), torch.ones(K).double())
        assert bool((row >= 0).all())
        before = run(base, federation, rounds=t)[0] if t else None
        allowed = before.neighbours.dense() if before else torch.ones(K, K, dtype=torch.bool)
        assert bool((row[~allowed] == 0).all())
        if t == 0:
            raw = run(paper, federation, rounds=1)[1][0]["graph"]
            torch.testing.assert_close(row, raw / raw.sum(dim=1, keepdim=True))
            if self_mode != "gated":
                off = raw.clone().fill_diagonal_(0)
                assert raw.diagonal().tolist() == [1.0] * K
                torch.testing.assert_close(row, raw / (1 + off.sum(dim=1, keepdim=True)))


def test_d19_identical_clients_stay_identical_under_any_row_stochastic_graph() -> None:
    federation = classification((6, 6, 6, 6, 6))
    same = federation.train._replace(
        index=federation.train.index[:1].expand(K, -1).clone(),
        y=federation.train.y[:1].expand(K, -1).clone(),
    )
    federation = replace(federation, train=same)
    mixed = run(SCooL(prior=fixed(row_stochastic(K)), sgd=FULL), federation)[0]
    local = run(LocalOnly(sgd=FULL), federation)[0]
    assert_trees_close(mixed.theta, local.theta)


def test_a_row_without_weight_falls_back_on_its_own_update_and_says_so() -> None:
    w = row_stochastic(K)
    w[2] = 0
    state, infos, _ = run(SCooL(prior=fixed(w), sgd=FULL), classification(SIZES), rounds=1)
    assert infos[0]["fallback"] == 1
    local = run(LocalOnly(sgd=FULL), classification(SIZES), rounds=1)[0]
    assert_trees_equal(
        {n: t[2] for n, t in state.theta.items()}, {n: t[2] for n, t in local.theta.items()}
    )


# ---------------------------------------------------------------------- sparse graphs


def test_d24_the_graph_gets_sparse_once_and_stays() -> None:
    federation = classification((6,) * 10)
    scool = SCooL(prior=SBM(num_blocks=2), sgd=FULL, sparsify_round=1, fraction=0.29)
    engine, theta0 = start(federation)
    state = scool.init(engine, theta0)
    kept = []
    for t in range(4):
        state, info = scool.step(engine, state, t)
        kept.append(state.neighbours.dense())
        closed = engine.ledger.close_round()
        asked = 90 if t <= 1 else 20
        assert closed.messages["cross_models"] == asked
        if t > 1:
            assert bool((info["graph"].dense()[~kept[t - 1]] == 0).all())
    assert bool(kept[0].all())
    assert kept[1].sum(dim=1).tolist() == [3] * 10  # floor(2.9) peers and oneself
    assert bool(kept[1].diagonal().all())
    assert torch.equal(kept[1], kept[2]) and torch.equal(kept[1], kept[3])


def test_d24_every_fraction_of_one_keeps_everyone_and_minus_one_never_cuts() -> None:
    federation = classification(SIZES)
    base = SCooL(prior=SBM(num_blocks=2), sgd=FULL)
    whole = run(replace(base, sparsify_round=0, fraction=1.0), federation)[0]
    never = run(replace(base, sparsify_round=-1, fraction=0.1), federation)[0]
    assert bool(whole.neighbours.dense().all()) and bool(never.neighbours.dense().all())
    assert_trees_equal(whole.theta, never.theta)


def test_without_a_fraction_clients_keep_as_many_as_the_graph_says() -> None:
    """Groups of two and of four: each keeps its own, and a fraction would cut one or the other."""
    groups = torch.tensor([0, 0, 1, 1, 1, 1])
    same = groups[:, None] == groups
    method = SCooL(prior=SBM(num_blocks=2), sgd=LocalSGD(lr=0.1), fraction=0.0, sparsify_round=2)
    engine, theta0 = start(classification((8,) * 6))
    state = method.init(engine, theta0)
    w = Edges.of(torch.where(same, 0.8, 0.1).double())
    none = Edges.none(6, True)
    assert method._neighbours(engine, none, w, w, 1) is none
    kept = method._neighbours(engine, none, w, w, 2)
    assert torch.equal(kept.dense(), same)
    assert method._neighbours(engine, kept, w, w, 4) is kept
    opened = method.admit(state._replace(neighbours=kept), torch.tensor([0])).neighbours
    assert torch.equal(method._neighbours(engine, opened, w, w, 6).dense(), same)
    with pytest.raises(ConfigError, match="fraction"):
        SCooL(peers="drawn", fraction=0.0)


def test_weights_outside_the_neighbours_do_not_mix_whatever_the_prior_says() -> None:
    w = row_stochastic(K)
    scool = SCooL(prior=fixed(w), sgd=FULL, sparsify_round=0, fraction=0.4)
    state, infos, _ = run(scool, classification(SIZES), rounds=2)
    graph = infos[1]["graph"]
    near = state.neighbours.dense()
    assert bool((graph[~near] == 0).all())
    kept = w * near
    torch.testing.assert_close(graph, kept / kept.sum(dim=1, keepdim=True))


def test_d24_without_keep_self_the_client_is_a_column_like_others() -> None:
    scool = SCooL(
        prior=SBM(num_blocks=2), sgd=FULL, sparsify_round=0, fraction=0.4, keep_self=False
    )
    state = run(scool, classification(SIZES))[0]
    assert state.neighbours.dense().sum(dim=1).tolist() == [2] * K


# ---------------------------------------------------------------------- options


def test_model_coupling_draws_neighbours_together_and_penalises_distance() -> None:
    federation = classification(SIZES)
    base = SCooL(prior=SBM(num_blocks=2), sgd=FULL, draw=ALL, sparsify_round=-1)
    engine, theta0 = start(federation)
    plain = base.init(engine, theta0)._replace(theta=scattered(engine, theta0, 1.0))
    coupled = replace(base, model_coupling=0.2)
    a, info = base.step(engine, plain, 0)
    b, other = coupled.step(engine, plain, 0)
    assert float(other["graph"].dense().tril(-1).sum()) < float(
        info["graph"].dense().tril(-1).sum()
    )
    assert float(engine.squared_distances(b.theta).sum()) < float(
        engine.squared_distances(a.theta).sum()
    )
    assert not torch.equal(a.theta["0.weight"], b.theta["0.weight"])


def test_the_laplacian_pull_is_the_gradient_of_its_penalty() -> None:
    engine, theta0 = start(classification(SIZES))
    theta = {n: t.requires_grad_() for n, t in scattered(engine, theta0).items()}
    w = torch.rand(K, K, dtype=torch.float64)
    seen = torch.rand(K, K) < 0.7
    lam = 0.4
    scool = SCooL(model_coupling=lam)
    (found,) = laplacian(scool, engine, theta, Edges.of(w * seen))
    w = w * seen
    penalty = torch.zeros((), dtype=torch.float64)
    for i in range(K):
        for j in range(i):
            gap = sum((t[i] - t[j]).square().sum() for t in theta.values())
            penalty = penalty + lam / 2 * (w[i, j] + w[j, i]) / 2 * gap
    gradient = torch.autograd.grad(penalty, list(theta.values()))
    for name, g in zip(theta, gradient, strict=True):
        torch.testing.assert_close(found[name].detach(), g)


def test_cross_losses_are_averaged_over_rounds_where_asked_for() -> None:
    federation = classification((20, 20, 20))
    draw = CrossDraw(cross_samples=3)
    scool = SCooL(prior=SBM(num_blocks=2), sgd=FULL, draw=draw, cross_ema=0.8)
    engine, theta0 = start(federation)
    state = scool.init(engine, theta0)
    expected = None
    for t in range(3):
        half = engine.train(state.theta, FULL, t).theta
        fresh = engine.cross_loss(half, torch.ones(3, 3, dtype=torch.bool), draw, t)
        expected = fresh if expected is None else 0.8 * expected + 0.2 * fresh
        state, _ = scool.step(engine, state, t)
        torch.testing.assert_close(state.cross_loss.dense(), expected)


def test_an_infinite_cross_loss_is_forgotten_when_the_next_is_finite() -> None:
    engine, theta0 = start(classification(SIZES))
    scool = SCooL(prior=SBM(num_blocks=2), sgd=FULL, cross_ema=0.9)
    state = scool.init(engine, theta0)
    loss = state.cross_loss.dense()
    loss[0, 1] = torch.inf
    state = state._replace(cross_loss=Edges.of(loss, torch.nan))
    state, _ = scool.step(engine, state, 0)
    assert float(state.cross_loss.values.max()) < 100


@dataclass(frozen=True)
class Watching(Fixed):
    """Keeps the log-likelihoods it is shown."""

    shown: list[Tensor] = field(default_factory=list)

    def e_step(self, state: FixedState, evidence: Evidence) -> FixedState:
        self.shown.append(evidence.dense()[0])
        return state


def watching() -> Any:
    return Watching(tuple(map(tuple, torch.eye(K).tolist())))


def test_the_sum_over_samples_multiplies_by_the_size_of_the_source() -> None:
    mean, total = (
        SCooL(prior=watching(), sgd=FULL, draw=ALL, likelihood_reduction=reduction)  # type: ignore
        for reduction in ("mean", "sum")
    )
    for method in (mean, total):
        run(method, classification(SIZES), rounds=1)
    expected = mean.prior.shown[0] * torch.tensor(SIZES).double()
    torch.testing.assert_close(total.prior.shown[0], expected)


def test_model_coupling_shifts_the_edge_logit_by_a_quarter_of_the_squared_distance() -> None:
    """A.6: l_ij - (lambda/2) ||theta_i - theta_j||^2 / 2, at the models after local learning."""
    lam = 0.3
    plain = SCooL(prior=watching(), sgd=FULL, draw=ALL)
    coupled = replace(plain, prior=watching(), model_coupling=lam)
    engine, theta0 = start(classification(SIZES))
    state = plain.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    half = engine.train(state.theta, FULL, 0).theta
    for method in (plain, coupled):
        method.step(engine, state, 0)
    shift = coupled.prior.shown[0] - plain.prior.shown[0]
    for i in range(K):
        for j in range(K):
            gap = sum(float((t[i] - t[j]).square().sum()) for t in half.values())
            assert float(shift[i, j]) == pytest.approx(-(lam / 2) * gap / 2, abs=1e-10)
    assert float(shift.min()) < -0.01


@pytest.mark.parametrize(
    "schedule",
    [
        {"lr_schedule": "exponential", "lr_decay": 0.5},
        {"lr_schedule": "cosine", "lr_decay": 0.1, "lr_rounds": 4},
    ],
)
@pytest.mark.parametrize(
    "scool",
    [
        SCooL(prior=SBM(num_blocks=2), sgd=FULL, model_precision=0.3),
        SCooL(prior=SBM(num_blocks=2), sgd=FULL, model_coupling=0.2),
        SCooL(prior=Attention(prior_grad_to_theta=True), sgd=FULL),
        SCooL(prior=Dirac(), sgd=FULL, model_precision=0.3),
        SCooL(
            prior=SBM(num_blocks=2),
            sgd=replace(FULL, steps=1, weight_decay=0.1),
            cross_gradient="exact",
        ),
    ],
    ids=["gaussian", "laplacian", "attention", "own data", "exact"],
)
def test_every_term_follows_the_learning_rate_of_the_round(
    scool: SCooL, schedule: dict[str, Any]
) -> None:
    """A scheduled round is a round with that learning rate held constant."""
    round = 2
    scheduled = replace(scool, sgd=replace(scool.sgd, **schedule))
    constant = replace(scool, sgd=replace(scool.sgd, lr=scheduled.sgd.rate(round)))
    engine, theta0 = start(classification(SIZES))
    state = scool.init(engine, theta0)._replace(theta=scattered(engine, theta0, 1.0))
    found, expected, other = (
        method.step(engine, state, round)[0].theta for method in (scheduled, constant, scool)
    )
    assert_trees_close(found, expected)
    assert not torch.allclose(found["0.weight"], other["0.weight"])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"fraction": -0.1}, "fraction"),
        ({"fraction": 1.5}, "fraction"),
        ({"cross_ema": 1.0}, "cross_ema"),
        ({"model_precision": -1.0}, "model_precision"),
        ({"model_coupling": -1.0}, "model_coupling"),
        ({"sparsify_round": -2}, "sparsify_round"),
        ({"cross_gradient": "exact"}, "--steps 1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        SCooL(**options)


# ---------------------------------------------------------------------- quarantine


@pytest.mark.parametrize(
    "scool",
    [
        SCooL(prior=SBM(num_blocks=2), sgd=LocalSGD(lr=0.1, steps=1), cross_gradient="exact"),
        SCooL(prior=SBM(num_blocks=2), sgd=FULL, model_precision=0.1, model_coupling=0.1),
        SCooL(prior=SBM(num_blocks=2), sgd=FULL, weighting="paper"),
        SCooL(prior=Attention(prior_grad_to_theta=True), sgd=FULL, cross_ema=0.5),
        SCooL(prior=Dirac(), sgd=FULL, likelihood="shared"),
    ],
)
def test_nan_in_one_client_leaves_the_others_finite(scool: SCooL) -> None:
    state, infos, engine = run(scool, poisoned(classification(SIZES), 1), rounds=3)
    assert engine.active.tolist() == [True, False, True, True, True]
    assert is_finite(state.theta)
    graph = infos[-1]["graph"]
    assert bool(graph.isfinite().all())
    if scool.prior.mixes == "updates":
        assert bool((graph[[0, 2, 3, 4], 1] == 0).all())


@pytest.mark.parametrize("build", [LocalEngine, sharded])
@pytest.mark.parametrize("value", [1e308, torch.inf])
@pytest.mark.parametrize(
    "scool",
    [
        SCooL(prior=SBM(num_blocks=2), sgd=DECAY, cross_gradient="exact"),
        SCooL(prior=SBM(num_blocks=2), sgd=DECAY, cross_gradient="exact", model_precision=0.1),
        SCooL(prior=SBM(num_blocks=2), sgd=DECAY, model_coupling=0.1),
        SCooL(prior=Dirac(), sgd=DECAY),
    ],
)
def test_a_client_in_quarantine_keeps_its_model_to_the_bit(
    scool: SCooL, value: float, build: Any
) -> None:
    module = softmax_regression(outputs=2)
    engine = build(regression(SIZES), module, seed=3, device="cpu")
    state = scool.init(engine, parameters_of(module))
    state.theta["0.weight"][1] = value  # its loss is not finite
    kept = {n: t[1].clone() for n, t in state.theta.items()}
    for round in range(2):
        state, _ = scool.step(engine, state, round)
    assert engine.active.tolist() == [True, False, True, True, True]
    assert_trees_equal({n: t[1] for n, t in state.theta.items()}, kept)
    assert is_finite({n: t[[0, 2, 3, 4]] for n, t in state.theta.items()})


def test_mix_updates_leaves_lonely_clients_alone() -> None:
    engine, theta0 = start(classification(SIZES))
    theta, half = scattered(engine, theta0, seed=1), scattered(engine, theta0, seed=2)
    w = row_stochastic(K)
    w[3] = torch.eye(K)[3]
    out = mix_updates(engine, w, theta, half)
    assert torch.equal(out["0.weight"][3], half["0.weight"][3])
