"""The identities of the theory, on problems small enough to write the formula beside."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from engine.sharded_world import sharded
from scool.algorithms import DPSGD, LocalOnly, SCooL
from scool.algorithms.shared.aggregate import mix_updates
from scool.contracts import Engine, Evidence, SelfMode
from scool.data.federation import Federation
from scool.engine.local import LocalEngine
from scool.errors import ConfigError
from scool.graph.edges import Edges
from scool.graph.topology import mixing_matrix
from scool.learning.cross import CrossDraw
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import LOSSES
from scool.models import parameters_of
from scool.priors import MMSBM, SBM, Attention, Dirac, GraphPrior
from scool.types import Params, Tree
from toys import (
    assert_trees_close,
    assert_trees_equal,
    classification,
    is_finite,
    one,
    own_data,
    poisoned,
    regression,
    row_stochastic,
    scattered,
    softmax_regression,
    start,
)

SIZES = (5, 4, 8, 6, 7)
K = len(SIZES)
FULL = LocalSGD(lr=0.1, epochs=3, batch_size=20)  # whole data sets: batches without chance
DECAY = LocalSGD(lr=0.1, steps=1, batch_size=20, weight_decay=0.1)
ALL = CrossDraw(cross_samples=0)


class FixedState(NamedTuple):
    w: Tensor


@dataclass(frozen=True)
class Fixed(GraphPrior[FixedState]):
    """A graph that mixes updates and never changes: the smallest prior there is."""

    matrix: tuple[tuple[float, ...], ...]
    self_mode: SelfMode = "gated"

    def init(self, num_clients: int, theta0: Params, seed: int) -> FixedState:
        return FixedState(torch.tensor(self.matrix, dtype=torch.float64))

    def e_step(self, state: FixedState, evidence: Evidence) -> FixedState:
        return state

    def elbo(self, state: FixedState, evidence: Evidence) -> Tensor:
        return torch.zeros(())


def fixed(w: Tensor, self_mode: SelfMode = "gated") -> Any:
    return Fixed(tuple(map(tuple, w.tolist())), self_mode)


def run(
    algorithm: Any, federation: Federation, rounds: int = 3, **options: Any
) -> tuple[Any, list[dict[str, Any]], LocalEngine]:
    engine, theta0 = start(federation, **options)
    state = algorithm.init(engine, theta0)
    infos = []
    for t in range(rounds):
        state, info = algorithm.step(engine, state, t)
        infos.append(info)
    return state, infos, engine


# ---------------------------------------------------------------------- Dirac = D-PSGD


@pytest.mark.parametrize("topology", ["ring", "complete", "identity"])
def test_d9_dirac_prior_equals_dpsgd_exactly(topology: str) -> None:
    sgd = LocalSGD(lr=0.1, steps=1, batch_size=3)
    scool = SCooL(prior=Dirac(topology=topology), sgd=sgd)
    gossip = DPSGD(sgd=sgd, topology=topology, order="cta")
    a, b = (run(method, classification(SIZES), rounds=4)[0] for method in (scool, gossip))
    assert_trees_equal(a.theta, b.theta)
    if topology == "identity":
        assert_trees_close(a.theta, run(LocalOnly(sgd=sgd), classification(SIZES), 4)[0].theta)


def test_d9_dpsgd_is_a_gradient_step_on_the_laplacian_objective() -> None:
    """J with unordered pairs and lambda = 1/a on quadratic losses; ordered ones need 1/(2a)."""
    federation = regression(SIZES)
    sgd = LocalSGD(lr=0.05, steps=1, batch_size=20)
    engine, theta0 = start(federation, softmax_regression(outputs=2))
    w = mixing_matrix("ring", K)
    scool = SCooL(prior=Dirac(matrix=w), sgd=sgd)
    state = scool.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    found, _ = scool.step(engine, state, 0)

    theta = {n: t.clone().requires_grad_() for n, t in state.theta.items()}
    data, ordered = torch.zeros(()).double(), torch.zeros(()).double()
    for i in range(K):
        x, y = own_data(federation, i, torch.float64)
        outputs = functional_call(engine.model.module, one(theta, i), (x,))
        data = data + LOSSES["regression"](outputs, y).mean()
        for j in range(K):
            gap = sum((t[i] - t[j]).square().sum() for t in theta.values())
            ordered = ordered + w[i, j] * gap
    a = sgd.lr
    for penalty in (1 / (2 * a) * ordered / 2, 1 / (2 * a) / 2 * ordered):
        objective = data + penalty  # (lambda/2) sum over pairs, both readings
        gradient = torch.autograd.grad(objective, list(theta.values()), retain_graph=True)
        step = {n: theta[n].detach() - a * g for n, g in zip(theta, gradient, strict=True)}
        assert_trees_close(found.theta, step)


def test_soft_coupling_moves_between_local_and_dpsgd() -> None:
    sgd = LocalSGD(lr=0.1, steps=1, batch_size=3)
    w = mixing_matrix("ring", K)
    half = SCooL(prior=Dirac(matrix=w, coupling=0.5), sgd=sgd)
    eye = torch.eye(K, dtype=torch.float64)
    same = SCooL(prior=Dirac(matrix=0.5 * eye + 0.5 * w), sgd=sgd)
    a, b = (run(m, classification(SIZES))[0] for m in (half, same))
    assert_trees_close(a.theta, b.theta)


@pytest.mark.parametrize("order", ["atc", "cta"])
def test_d10_gossip_without_gradients_reaches_consensus(order: str) -> None:
    engine, theta0 = start(classification(SIZES))
    # nobody trains: the gradient is zero
    engine.train = lambda theta, sgd, round, among=None: (theta, torch.zeros(K))  # type: ignore
    gossip = DPSGD(topology="ring", order=order)  # type: ignore[arg-type]
    state = gossip.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    mean = {n: t.mean(dim=0) for n, t in state.theta.items()}
    for t in range(120):
        state, _ = gossip.step(engine, state, t)
        now = {n: t.mean(dim=0) for n, t in state.theta.items()}
        assert_trees_close(now, mean, atol=1e-10)
    for name, t in state.theta.items():
        torch.testing.assert_close(t, mean[name].expand_as(t), rtol=0, atol=1e-6)


# ---------------------------------------------------------------------- degenerate cells


@pytest.mark.parametrize("prior", [SBM(num_blocks=2), Attention(), MMSBM(num_blocks=2)])
def test_d14_likelihood_of_own_data_is_local_sgd_bit_for_bit(prior: Any) -> None:
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=3)
    own, _, engine = run(SCooL(prior=prior, sgd=sgd, likelihood="own"), classification(SIZES))
    local = run(LocalOnly(sgd=sgd), classification(SIZES))[0]
    assert_trees_equal(own.theta, local.theta)
    assert not {"mix", "cross_models", "cross_losses"} & set(engine.ledger.bytes)


def test_d14_a_graph_without_edges_is_local_sgd_bit_for_bit() -> None:
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=3)
    eye = torch.eye(K, dtype=torch.float64)
    alone = run(SCooL(prior=fixed(eye), sgd=sgd), classification(SIZES))[0]
    assert_trees_equal(alone.theta, run(LocalOnly(sgd=sgd), classification(SIZES))[0].theta)


# ---------------------------------------------------------------------- aggregation


def test_aggregation_starts_from_theta_t_and_adds_the_peers_updates() -> None:
    w = row_stochastic(K)
    sgd = LocalSGD(lr=0.1, epochs=2, batch_size=3)
    engine, theta0 = start(classification(SIZES))
    scool = SCooL(prior=fixed(w), sgd=sgd)
    state = scool.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    half = engine.train(state.theta, sgd, 0).theta
    found, info = scool.step(engine, state, 0)
    torch.testing.assert_close(info["graph"].to_dense(), w)
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
        row = infos[t]["graph"].dense()
        torch.testing.assert_close(row.sum(dim=1), torch.ones(K).double())
        assert bool((row >= 0).all())
        before = run(base, federation, rounds=t)[0] if t else None
        allowed = before.neighbours if before else torch.ones(K, K, dtype=torch.bool)
        assert bool((row[~allowed] == 0).all())
        if t == 0:
            raw = run(paper, federation, rounds=1)[1][0]["graph"].dense()
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


# ---------------------------------------------------------------------- permutation


def permuted(federation: Federation, order: Tensor) -> Federation:
    splits = {
        name: part._replace(index=part.index[order], mask=part.mask[order], y=part.y[order])
        for name, part in (("train", federation.train), ("test", federation.test))
    }
    assert federation.groups is not None and federation.truth is not None
    return replace(
        federation,
        **splits,
        classes=federation.classes[order],
        groups=federation.groups[order],
        truth=federation.truth[order][:, order],
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        SCooL(prior=Attention(), sgd=FULL, draw=ALL),
        SCooL(prior=Attention(self_mode="always", prior_grad_to_theta=True), sgd=FULL, draw=ALL),
        SCooL(prior=SBM(num_blocks=1), sgd=FULL, draw=ALL, sparsify_round=0, fraction=0.4),
        SCooL(
            prior=MMSBM(num_blocks=1), sgd=FULL, draw=ALL, model_precision=0.1, model_coupling=0.1
        ),
        LocalOnly(sgd=FULL),
    ],
)
def test_d13_permuting_clients_permutes_a_whole_round(algorithm: Any) -> None:
    federation = classification(SIZES)
    order = torch.tensor([3, 0, 4, 2, 1])
    plain, infos, _ = run(algorithm, federation)
    moved, others, _ = run(algorithm, permuted(federation, order))
    for name in plain.theta:
        torch.testing.assert_close(
            moved.theta[name], plain.theta[name][order], rtol=1e-5, atol=1e-6
        )
    expected = infos[-1]["graph"][order][:, order]
    torch.testing.assert_close(others[-1]["graph"].to_dense(), expected, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- gradients


def bound(engine: Engine, federation: Federation, theta: Tree, w: Tensor, lam: float) -> Tensor:
    """F in theta with w fixed: sum_i [l_ii + sum_{j != i} w_ij l_ij] - lambda/2 ||theta||^2."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(K):
        for j in range(K):
            x, y = own_data(federation, j, torch.float64)
            outputs = functional_call(engine.model.module, one(theta, i), (x,))  # type: ignore
            loss = LOSSES[federation.task](outputs, y).mean()
            total = total - (1.0 if i == j else w[i, j]) * loss
    return total - lam / 2 * sum(t.square().sum() for t in theta.values())


@pytest.mark.parametrize("prior", [SBM(num_blocks=2, self_mode="always"), MMSBM(num_blocks=2)])
def test_d20_the_step_of_theta_is_the_gradient_of_the_bound(prior: Any) -> None:
    federation = classification(SIZES)
    engine, theta0 = start(federation, softmax_regression())
    assert prior.self_mode == "always"
    sgd = LocalSGD(lr=0.01, steps=1, batch_size=20)
    lam = 0.3
    scool = SCooL(
        prior=prior,
        sgd=sgd,
        draw=ALL,
        cross_gradient="exact",
        weighting="paper",
        model_precision=lam,
    )
    state = scool.init(engine, theta0)._replace(theta=scattered(engine, theta0))
    found, info = scool.step(engine, state, 0)
    w = info["graph"].clone().fill_diagonal_(0)
    assert float(w.max()) > 0.05  # there is something to learn from peers
    for name, t in state.theta.items():
        direction = (found.theta[name] - t) / sgd.lr
        for place in range(0, t.numel(), 4):
            values = []
            for h in (1e-5, -1e-5):
                moved = t.clone()
                moved.view(-1)[place] += h
                values.append(bound(engine, federation, state.theta | {name: moved}, w, lam))
            slope = float(values[0] - values[1]) / 2e-5
            assert abs(float(direction.view(-1)[place]) - slope) < 1e-6 * max(1.0, abs(slope))


def test_d21_local_and_exact_cross_gradients() -> None:
    """Equal models: both modes agree. Quadratic losses: the gap is bounded by the Hessian."""
    federation = regression(SIZES)
    sgd = LocalSGD(lr=0.05, steps=1, batch_size=20, weight_decay=0.02)
    modes = [
        SCooL(prior=SBM(num_blocks=2), sgd=sgd, cross_gradient=mode)  # type: ignore[arg-type]
        for mode in ("local", "exact")
    ]
    a, b = (run(m, federation, rounds=1)[0] for m in modes)
    assert_trees_close(a.theta, b.theta)

    engine, theta0 = start(federation, softmax_regression(outputs=2))
    theta = scattered(engine, theta0)
    eye = torch.eye(K, dtype=torch.float64)
    sgd = replace(sgd, weight_decay=0.0)
    own = engine.cross_gradient(theta, eye, sgd, 0)
    flat = torch.cat([t.flatten(1) for t in theta.values()], dim=1)
    for j in range(K):
        x, _ = own_data(federation, j, torch.float64)
        x1 = torch.cat([x, torch.ones(len(x), 1).double()], dim=1)
        hessian = torch.linalg.eigvalsh(x1.T @ x1 / len(x)).max()
        column = torch.zeros(K, K, dtype=torch.float64)
        column[:, j] = 1
        theirs = engine.cross_gradient(theta, column, sgd, 0)
        for i in range(K):
            gap = sum((theirs[n][i] - own[n][j]).square().sum() for n in theta) ** 0.5
            assert float(gap) <= float(hessian * (flat[i] - flat[j]).norm()) + 1e-9


# ---------------------------------------------------------------------- sparse graphs


def test_d24_the_graph_gets_sparse_once_and_stays() -> None:
    federation = classification((6,) * 10)
    scool = SCooL(prior=SBM(num_blocks=2), sgd=FULL, sparsify_round=1, fraction=0.29)
    engine, theta0 = start(federation)
    state = scool.init(engine, theta0)
    kept = []
    for t in range(4):
        state, info = scool.step(engine, state, t)
        kept.append(state.neighbours)
        closed = engine.ledger.close_round()
        asked = 90 if t <= 1 else 20
        assert closed.messages["cross_models"] == asked
        if t > 1:
            assert bool((info["graph"][~kept[t - 1]] == 0).all())
    assert bool(kept[0].all())
    assert kept[1].sum(dim=1).tolist() == [3] * 10  # floor(2.9) peers and oneself
    assert bool(kept[1].diagonal().all())
    assert torch.equal(kept[1], kept[2]) and torch.equal(kept[1], kept[3])


def test_d24_every_fraction_of_one_keeps_everyone_and_minus_one_never_cuts() -> None:
    federation = classification(SIZES)
    base = SCooL(prior=SBM(num_blocks=2), sgd=FULL)
    whole = run(replace(base, sparsify_round=0, fraction=1.0), federation)[0]
    never = run(replace(base, sparsify_round=-1, fraction=0.1), federation)[0]
    assert bool(whole.neighbours.all()) and bool(never.neighbours.all())
    assert_trees_equal(whole.theta, never.theta)


def test_weights_outside_the_neighbours_do_not_mix_whatever_the_prior_says() -> None:
    w = row_stochastic(K)
    scool = SCooL(prior=fixed(w), sgd=FULL, sparsify_round=0, fraction=0.4)
    state, infos, _ = run(scool, classification(SIZES), rounds=2)
    graph = infos[1]["graph"]
    assert bool((graph[~state.neighbours] == 0).all())
    kept = w * state.neighbours
    torch.testing.assert_close(graph.dense(), kept / kept.sum(dim=1, keepdim=True))


def test_d24_without_keep_self_the_client_is_a_column_like_others() -> None:
    scool = SCooL(
        prior=SBM(num_blocks=2), sgd=FULL, sparsify_round=0, fraction=0.4, keep_self=False
    )
    state = run(scool, classification(SIZES))[0]
    assert state.neighbours.sum(dim=1).tolist() == [2] * K


# ---------------------------------------------------------------------- options


def test_model_coupling_draws_neighbours_together_and_penalises_distance() -> None:
    federation = classification(SIZES)
    base = SCooL(prior=SBM(num_blocks=2), sgd=FULL, draw=ALL, sparsify_round=-1)
    engine, theta0 = start(federation)
    plain = base.init(engine, theta0)._replace(theta=scattered(engine, theta0, 1.0))
    coupled = replace(base, model_coupling=0.2)
    a, info = base.step(engine, plain, 0)
    b, other = coupled.step(engine, plain, 0)
    assert float(other["graph"].tril(-1).sum()) < float(info["graph"].tril(-1).sum())
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
    found = scool._laplacian(engine, theta, Edges.of(w * seen))
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
    assert float(state.cross_loss.max()) < 100


@dataclass(frozen=True)
class Watching(Fixed):
    """Keeps the log-likelihoods it is shown."""

    shown: list[Tensor] = field(default_factory=list)

    def e_step(self, state: FixedState, evidence: Evidence) -> FixedState:
        self.shown.append(evidence.log_lik)
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
    torch.testing.assert_close(total.prior.shown[0].dense(), expected)


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
        ({"fraction": 0.0}, "fraction"),
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
