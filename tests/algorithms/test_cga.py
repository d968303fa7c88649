"""CGA against its formula, its limits, its traffic, and what it does when it diverges."""

import json
from pathlib import Path

import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from reference.judged import minus, weighted
from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import CGA, DPSGD
from scool.algorithms.shared import cross_updates
from scool.algorithms.shared.cross_updates import CrossUpdates
from scool.cli.main import dispatch
from scool.data.arrays import from_arrays
from scool.engine.steps.updates import ROUGH
from scool.errors import ConfigError
from scool.graph.edges import Edges
from scool.graph.topology import mixing_matrix
from scool.learning.local_sgd import LocalSGD
from scool.run.loop import fit
from scool.types import Params
from toys import (
    SIZES,
    assert_trees_close,
    assert_trees_equal,
    classification,
    is_finite,
    one,
    overflowing,
    poisoned,
    regression,
    scattered,
    softmax_regression,
    start,
    tanh_net,
)

K = len(SIZES)
SGD = LocalSGD(lr=0.5, epochs=2, batch_size=3)
ONE = LocalSGD(lr=0.5, steps=1, batch_size=3)


def flat(params: Params) -> Tensor:
    return torch.cat([p.flatten() for p in params.values()])


def project(rows: list[Tensor], own: Tensor, margin: float) -> Tensor:
    """a + G^T u with u >= margin, one client, by another solver."""
    G = torch.stack(rows)
    start = own + margin * G.sum(dim=0)
    u, _ = nnls(G.T.numpy(), -start.numpy(), maxiter=1000)
    return start + torch.from_numpy(u) @ G


def naive_step(updates: list[Params], pi: list[float], own: int, method: CGA) -> Params:
    """g~ of one client from the updates of its neighbourhood, by host."""
    parts = [{n: p * u[n] for n in u} for p, u in zip(pi, updates, strict=True)]
    others = [j for j in range(K) if j != own and pi[j]]
    if method.variant == "tensor":
        return {
            n: project(
                [parts[j][n].flatten() for j in others], parts[own][n].flatten(), method.margin
            ).view_as(t)
            for n, t in parts[own].items()
        }
    whole = project([flat(parts[j]) for j in others], flat(parts[own]), method.margin)
    sizes = [t.numel() for t in parts[own].values()]
    pieces = zip(parts[own].items(), whole.split(sizes), strict=True)
    return {n: piece.view_as(t) for (n, t), piece in pieces}


@pytest.mark.parametrize("sgd", [SGD, ONE])
@pytest.mark.parametrize("topology", ["ring", "bipartite"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"variant": "tensor"},
        {"margin": 0.5},
        {"beta": 0.7, "variant": "tensor", "margin": 0.5},
        {"beta": 0.7, "momentum_form": "paper"},
    ],
)
def test_two_rounds_by_hand(sgd: LocalSGD, topology: str, options: dict) -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = CGA(sgd=sgd, topology=topology, **options)
    state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0, scale=1.0))
    models = [one(state.theta, i) for i in range(K)]
    velocity = [{n: torch.zeros_like(t) for n, t in m.items()} for m in models]
    pi = mixing_matrix(topology, K).tolist()
    conflicts = 0
    for t in range(2):
        state, info = method.step(engine, state, t)
        after = []
        for i, mine in enumerate(models):
            updates = [
                minus(mine, local_steps(federation, module, mine, j, sgd, t)) for j in range(K)
            ]
            g = naive_step(updates, pi[i], i, method)
            conflicts += not torch.allclose(flat(g), pi[i][i] * flat(updates[i]))
            v = velocity[i] = {n: method.beta * velocity[i][n] + g[n] for n in g}
            if method.beta and method.momentum_form == "paper":
                g = v
            elif method.beta:
                g = {n: g[n] + method.beta * v[n] for n in g}
            after.append(minus(weighted(pi[i], models), g))
        models = after
    assert conflicts  # the constraints did something
    assert_trees_close(state.theta, stacked(models), 1e-7)
    torch.testing.assert_close(info["graph"].dense(), torch.tensor(pi, dtype=torch.float64))
    assert info["diverged"] == 0 and bool(info["train_loss"].isfinite().all())
    edges = sum(p > 0 for row in pi for p in row) - K
    told = 2 * K * (K - 1)  # in two rounds everyone says in a byte whether its step was finite
    assert engine.ledger.messages == {"train_at": 2 * 2 * edges, "gather": told}
    assert engine.ledger.total_bytes == 2 * 2 * edges * size_of(state.theta) + told


def test_with_one_step_an_update_is_the_learning_rate_times_the_cross_gradient() -> None:
    engine, theta0 = start(classification())
    theta = scattered(engine, theta0)
    w = torch.zeros(K, K).double()
    w[0, 2] = 1  # client 0 asks client 2
    expected = engine.cross_gradient(theta, w, ONE, 1)
    everyone = torch.ones(K, K, dtype=torch.bool)
    trained = engine.train_at(theta, everyone, ONE, 1).theta
    for n in theta:
        torch.testing.assert_close(theta[n][0] - trained[n][2], ONE.lr * expected[n][0])


def test_without_conflict_it_is_the_gradient_of_dpsgd() -> None:
    """Clients with the same data agree; the step of CGA is pi_ii times their gradient."""
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    engine, theta0 = start(from_arrays([(x, y)] * 4, num_classes=3))
    mine = CGA(sgd=LocalSGD(lr=0.3, steps=1, batch_size=6), topology="ring")
    other = DPSGD(sgd=LocalSGD(lr=0.1, steps=1, batch_size=6), topology="ring", order="cta")
    theirs = other.init(engine, theta0)
    state = mine.init(engine, theta0)
    for t in range(3):
        state, theirs = mine.step(engine, state, t)[0], other.step(engine, theirs, t)[0]
        assert_trees_close(state.theta, theirs.theta, 1e-12)


@pytest.mark.parametrize("topology", ["identity", "ring"])
def test_alone_it_is_local_sgd(topology: str) -> None:
    engine, theta0 = start(classification((6,) if topology == "ring" else SIZES))
    method = CGA(sgd=SGD, topology=topology)
    state = method.init(engine, theta0)
    after, _ = method.step(engine, state, 0)
    assert_trees_close(after.theta, engine.train(state.theta, SGD, 0).theta)
    assert not engine.ledger.messages.get("train_at")


def test_an_update_that_is_not_finite_constrains_nothing() -> None:
    engine, theta0 = start(classification())
    theta, w = scattered(engine, theta0), mixing_matrix("complete", K)
    pairs = Edges.of(w != 0)
    found = engine.train_at(theta, pairs, SGD, 0)
    left_out = w.clone()
    left_out[1, 2] = 0
    expected = CrossUpdates(engine, left_out, pairs, theta, found).combine("vector", 0.5)
    plain = CrossUpdates(engine, w, pairs, theta, found).combine("vector", 0.5)
    found.loss[4 + 2] = torch.nan
    for t in found.theta.values():
        t[4 + 2] = torch.inf
    step = CrossUpdates(engine, w, pairs, theta, found).combine("vector", 0.5)
    assert_trees_close(step, expected, 1e-12)
    assert not torch.allclose(plain["0.weight"][1], step["0.weight"][1])


@pytest.mark.parametrize("broken", [1, 2])
def test_products_that_overflow_leave_the_others_alone(broken: int) -> None:
    """One's own is row 0; the products of row `broken` are beyond float32."""
    gram = torch.tensor([[1.0, -1.0, 0.5], [-1.0, 1.5, 0.2], [0.5, 0.2, 2.0]]).double()[None]
    own = torch.tensor([[True, False, False]])
    expected = cross_updates._shares(gram, own, 0.0, 1e-10)
    torch.testing.assert_close(expected[0], torch.tensor([1.0, 2 / 3, 0.0]).double())
    gram[:, broken] = gram[:, :, broken] = torch.inf
    found = cross_updates._shares(gram, own, 0.0, 1e-10)
    left_out = expected.clone()
    left_out[:, broken] = 0
    torch.testing.assert_close(found, left_out)
    gram[:, 0] = gram[:, :, 0] = torch.nan
    assert cross_updates._shares(gram, own, 0.5, 1e-10).tolist() == [[1.0, 0.0, 0.0]]


def test_a_neighbour_that_overflows_is_left_out_of_the_sum() -> None:
    """Finite models whose difference is not: 0 times it is no number."""
    engine, theta0 = start(classification(), tanh_net().float())
    theta, w = scattered(engine, theta0), mixing_matrix("complete", K)
    pairs = Edges.of(w != 0)
    found = engine.train_at(theta, pairs, SGD, 0)
    for n, t in found.theta.items():
        theta[n][1] = t[4:8] = -1e38  # client 1 and its four rows
        t[4 + 2] = 3e38
        assert bool((theta[n][1] - t[4 + 2]).isinf().all())
    step = CrossUpdates(engine, w, pairs, theta, found).combine("vector", 0.0)
    assert is_finite(step)
    assert all(not bool(t[1].any()) and bool(t[0].any()) for t in step.values())


def test_a_ridge_holds_programs_whose_products_are_rough() -> None:
    """Neighbours that agree exactly, up to the errors of float32, and contradict the client."""
    rng = torch.Generator().manual_seed(0)
    base = torch.randn(20, 1, 500, generator=rng).double()
    rows = torch.cat([-base, base.expand(20, 10, 500)], dim=1)
    gram = rows @ rows.mT
    size = gram.diagonal(dim1=1, dim2=2).sqrt()
    noise = torch.randn(gram.shape, generator=rng).double() * 3e-7
    rough = gram + (noise + noise.mT) / 2 * size[:, :, None] * size[:, None, :]
    own = (torch.arange(11) == 0).expand(20, 11)
    share = cross_updates._shares(rough, own, 0.0, ROUGH)
    step = (share[:, None] @ rows)[:, 0]
    assert float((step.norm(dim=1) / base.norm(dim=2)[:, 0]).max()) < 1e-4  # they cancel it


def test_the_columns_are_cut_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    method = CGA(sgd=SGD, topology="ring")
    found = []
    for columns in (1 << 23, 1):
        monkeypatch.setattr("scool.engine.steps.updates.COLUMNS", columns)
        engine, theta0 = start(classification())
        state = method.init(engine, theta0)._replace(theta=scattered(engine, theta0))
        found.append(method.step(engine, state, 0)[0].theta)
    assert_trees_close(*found, 1e-10)


# ---------------------------------------------------------------------- divergence


def test_a_client_that_diverges_stops_and_the_others_go_on() -> None:
    engine, theta0 = start(overflowing(regression(), 2), softmax_regression(outputs=2))
    method = CGA(sgd=LocalSGD(lr=0.05, epochs=2, batch_size=3), topology="complete")
    before = method.init(engine, theta0)
    state = before
    for t in range(3):
        state, info = method.step(engine, state, t)
        assert info["diverged"] == 1 and state.diverged.tolist() == [False, False, True, False]
    assert not engine.health.words and is_finite(state.theta)
    for n in state.theta:
        assert torch.equal(state.theta[n][2], before.theta[n][2])
        assert not torch.equal(state.theta[n][0], before.theta[n][0])
    assert info["graph"].dense()[:, 2].tolist() == [0, 0, 1, 0]
    torch.testing.assert_close(info["graph"].row_sums(), torch.ones(K).double())
    assert info["train_loss"].isfinite().tolist() == [True, True, False, True]


def test_a_client_in_quarantine_has_not_diverged() -> None:
    engine, theta0 = start(poisoned(classification(), 1))
    method = CGA(sgd=SGD, topology="complete")
    state, info = method.step(engine, method.init(engine, theta0), 0)
    assert info["diverged"] == 0 and not bool(state.diverged.any())
    assert info["graph"].dense()[:, 1].tolist() == [0, 1, 0, 0]


def test_a_run_that_diverges_ends_with_its_record(tmp_path: Path) -> None:
    federation = regression((8, 9, 8, 7))
    method = CGA(sgd=LocalSGD(lr=2.0, epochs=5, batch_size=3), topology="complete")
    run = tmp_path / "run"
    result = fit(federation, "linear", method, rounds=6, device="cpu", out=run)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 6 and rows[-1]["diverged"] == 4 and rows[-1]["quarantined"] == {}
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    assert is_finite(result.theta)
    again = fit(federation, "linear", method, rounds=6, device="cpu")
    assert_trees_equal(again.theta, result.theta)


def test_the_command_line_warns_of_divergence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "run cga --dataset synthetic --task regression --clients 4 --groups 2 --rounds 4"
    code = dispatch([*words.split(), "--lr", "30", "--device", "cpu", "--out", str(tmp_path / "r")])
    captured = capsys.readouterr()
    assert code == 0 and "records:" in captured.out
    said = " ".join(captured.err.split())
    assert "4 clients diverged and have stopped; lower --lr" in said


@pytest.mark.parametrize(
    "options",
    [
        {"topology": "rings"},
        {"degree": 0},
        {"margin": -0.1},
        {"beta": 1.0},
        {"variant": "matrix"},
        {"momentum_form": "nesterov"},
    ],
)
def test_options_that_are_not_possible(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        CGA(**options)
