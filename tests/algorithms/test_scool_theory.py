"""The identities of the theory, on problems small enough to write the formula beside."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from fixed_graphs import ALL, FULL, SIZES, K, fixed, run
from scool.algorithms import DPSGD, LocalOnly, SCooL
from scool.contracts import Engine
from scool.data.federation import Federation
from scool.graph.topology import mixing_matrix
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import LOSSES
from scool.priors import MMSBM, SBM, Attention, Dirac
from scool.types import Tree
from toys import (
    assert_trees_close,
    assert_trees_equal,
    classification,
    one,
    own_data,
    regression,
    scattered,
    softmax_regression,
    start,
)

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
    torch.testing.assert_close(others[-1]["graph"], expected, rtol=1e-5, atol=1e-6)


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
    w = info["graph"].dense().fill_diagonal_(0)
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
