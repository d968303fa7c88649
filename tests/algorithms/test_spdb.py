"""SPDB against its formulas, its limits, and heads that never leave their client."""

from dataclasses import replace

import pytest
import torch

from reference.judged import weighted
from reference.local_steps import local_steps, size_of, stacked
from scool.algorithms import DPSGD, SPDB
from scool.algorithms.shared.sharing import only, split_names
from scool.errors import ConfigError
from scool.graph.topology import mixing_matrix
from scool.learning.local_sgd import LocalSGD
from toys import SIZES, assert_trees_close, classification, one, scattered, start, tanh_net

K = len(SIZES)
SGD = LocalSGD(lr=0.2, epochs=2, batch_size=3)
ONE = LocalSGD(lr=0.2, steps=1, batch_size=3)
BODY, HEAD = split_names([n for n, _ in tanh_net().named_parameters()], "head")
W = mixing_matrix("ring", K).tolist()


def apart(engine, theta0, method):
    """A first state in which the clients differ."""
    return method.init(engine, theta0)._replace(theta=scattered(engine, theta0))


@pytest.mark.parametrize("head_steps", [0, 2])
@pytest.mark.parametrize("order", ["atc", "cta"])
@pytest.mark.parametrize("sgd", [SGD, ONE])
def test_gossip_by_hand(sgd: LocalSGD, order: str, head_steps: int) -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = SPDB(sgd=sgd, topology="ring", order=order, head_steps=head_steps)  # type: ignore
    state = apart(engine, theta0, method)
    models = [one(state.theta, i) for i in range(K)]
    for t in range(2):
        state, info = method.step(engine, state, t)
        if head_steps:
            alone = replace(sgd, steps=head_steps)
            models = [
                local_steps(federation, module, m, i, alone, t, only=HEAD)
                for i, m in enumerate(models)
            ]
        half = [local_steps(federation, module, m, i, sgd, t) for i, m in enumerate(models)]
        after = []
        for i in range(K):
            mixed = weighted(W[i], half if order == "atc" else models)
            if order == "cta":
                mixed = {n: mixed[n] + half[i][n] - models[i][n] for n in mixed}
            after.append({n: mixed[n] if n in BODY else half[i][n] for n in mixed})
        models = after
    assert_trees_close(state.theta, stacked(models), 1e-10)
    torch.testing.assert_close(info["graph"], torch.tensor(W, dtype=torch.float64))


def test_primal_dual_by_hand() -> None:
    federation, module = classification(), tanh_net()
    engine, theta0 = start(federation, module)
    method = SPDB(sgd=SGD, topology="ring", form="primal-dual", rho=0.7)
    state = apart(engine, theta0, method)
    models = [one(state.theta, i) for i in range(K)]
    dual = [{n: torch.zeros_like(m[n]) for n in BODY} for m in models]
    for t in range(3):
        state, _ = method.step(engine, state, t)
        mixed = [weighted(W[i], models) for i in range(K)]
        after = []
        for i, m in enumerate(models):
            dual[i] = {n: dual[i][n] + 0.7 * (m[n] - mixed[i][n]) for n in BODY}
            # grad + q + rho (x - mixed) = grad + rho (x - anchor)
            anchor = m | {n: mixed[i][n] - dual[i][n] / 0.7 for n in BODY}
            stepped = local_steps(federation, module, m, i, SGD, t, only=HEAD)
            after.append(
                local_steps(
                    federation, module, stepped, i, SGD, t, only=BODY, anchor=anchor, strength=0.7
                )
            )
        models = after
    assert_trees_close(state.theta, stacked(models), 1e-10)
    assert_trees_close(state.dual, stacked(dual), 1e-10)
    for t in state.dual.values():  # w is doubly stochastic
        torch.testing.assert_close(t.sum(dim=0), torch.zeros_like(t[0]), rtol=0, atol=1e-10)
        assert float(t.abs().max()) > 1e-3


def test_the_forms_agree_where_the_dual_is_frozen_at_zero() -> None:
    """One step, rho = 1 / eta: x - eta (grad + rho (x - mixed)) = mixed - eta grad."""
    engine, theta0 = start(classification())
    dual = SPDB(sgd=ONE, topology="ring", form="primal-dual", rho=1 / ONE.lr)
    gossip = SPDB(sgd=ONE, topology="ring", order="cta", head_steps=1)
    state = apart(engine, theta0, dual)
    x = only(state.theta, BODY)
    mixed = engine.mix(state.w, x)
    frozen = {n: -dual.rho * (x[n] - mixed[n]) for n in x}  # what the step will add
    found, _ = dual.step(engine, state._replace(dual=frozen), 0)
    expected, _ = gossip.step(engine, apart(engine, theta0, gossip), 0)
    assert_trees_close(only(found.theta, BODY), only(expected.theta, BODY), 1e-12)


@pytest.mark.parametrize("form", ["gossip", "primal-dual"])
def test_heads_never_leave_their_client(form: str) -> None:
    engine, theta0 = start(classification())
    method = SPDB(sgd=SGD, topology="ring", form=form)  # type: ignore
    state = method.init(engine, theta0)
    whole, body = size_of(state.theta), size_of(only(state.theta, BODY))
    for t in range(2):
        state, _ = method.step(engine, state, t)
    edges = K * 2
    assert engine.ledger.messages == {"mix": 2 * edges}
    assert engine.ledger.total_bytes == 2 * edges * body < 2 * edges * whole


def test_without_a_personal_part_it_is_dpsgd() -> None:
    engine, theta0 = start(classification())
    mine = SPDB(sgd=SGD, topology="ring", personal="")
    other = DPSGD(sgd=SGD, topology="ring")
    a, b = mine.init(engine, theta0), other.init(engine, theta0)
    for t in range(2):
        a, b = mine.step(engine, a, t)[0], other.step(engine, b, t)[0]
    assert_trees_close(a.theta, b.theta, 1e-12)


def test_the_backbones_come_to_an_agreement() -> None:
    def spread(theta) -> float:
        return max(float(theta[n].std(dim=0).max()) for n in BODY)

    engine, theta0 = start(classification())
    sgd = LocalSGD(lr=0.05, steps=1, batch_size=8)
    for options in ({}, {"form": "primal-dual", "rho": 2.0}):
        method = SPDB(sgd=sgd, topology="complete", **options)  # type: ignore
        state = apart(engine, theta0, method)
        before = spread(state.theta)
        for t in range(150):
            state, _ = method.step(engine, state, t)
        assert spread(state.theta) < 0.05 * before
        assert max(float(state.theta[n].std(dim=0).max()) for n in HEAD) > 0.1


@pytest.mark.parametrize(
    "options",
    [
        {"rho": 0.0, "form": "primal-dual"},
        {"rho": 1000.0, "form": "primal-dual"},
        {"topology": "rings"},
        {"degree": 0},
        {"head_steps": -1},
        {"form": "dual"},
        {"order": "act"},
    ],
)
def test_options_that_are_not_possible(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        SPDB(**options)


def test_a_head_that_the_model_lacks() -> None:
    engine, theta0 = start(classification())
    with pytest.raises(ConfigError, match="did you mean 'head'"):
        SPDB(personal="hed").init(engine, theta0)
