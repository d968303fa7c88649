"""SCooL-attention: exact posterior, tight bound, gradients, processes, the released program."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from reference import attention as reference
from reference.worlds import noise, planted, rounds, seen_rounds
from scool.errors import ConfigError, ScoolError
from scool.graph.edges import Edges
from scool.priors import Attention, attention_released, attention_updates
from scool.priors.attention_released import released_scores, target_rows
from scool.priors.attention_updates import embedding_gradient, in_blocks, update_log_p
from scool.priors.base import Difference

MODES = ["gated", "always", "exclude"]
SHAPES = {"a.weight": (4, 2, 3), "a.bias": (4,)}
THETA0 = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}


def moved(evidence, groups=None, seed=0):
    """The evidence with updates, alike inside groups where groups are given."""
    K, rng = len(evidence.seen), torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    def update(shape):
        own = draw(K, *shape)
        return own if groups is None else draw(groups, *shape)[torch.arange(K) % groups] + 0.3 * own

    return evidence._replace(updates={name: update(shape) for name, shape in SHAPES.items()})


class Matrices(NamedTuple):
    columns: torch.Tensor
    ratio: torch.Tensor
    own: torch.Tensor


def scores_of(prior, evidence):
    """The scores that the prior reads, as matrices."""
    edges, ratio, own = prior._scores(evidence)
    columns = edges.on(torch.ones(edges.count, dtype=torch.bool), False).dense()
    return Matrices(columns, edges.on(ratio).dense(), own)


def targets_of(prior, evidence):
    scores = prior._scores(evidence)
    return scores.edges.on(target_rows(scores)).dense()


def autograd_objective(prior, state, evidence, phi, target=None):
    u = prior.encoder.embed(phi, evidence.updates, prior._sign)
    columns = scores_of(prior, evidence).columns
    log_p = (u @ u.T).masked_fill(~columns, -torch.inf).log_softmax(1)
    kept = torch.where(columns, log_p, 0.0)
    return ((state.w.dense() if target is None else target) * kept).sum()


@pytest.mark.parametrize("compat", ["derived", "released"])
def test_some_clients_at_a_time_give_the_same(compat, monkeypatch):
    evidence = moved(noise(7, 1, density=0.7))
    evidence = evidence._replace(updates=Difference(dict(evidence.updates), THETA0))
    prior = Attention(compat=compat)
    results = []
    for block in (2**24, 60):  # all seven clients, or two of 28 numbers each
        monkeypatch.setattr(attention_updates, "BLOCK", block)
        results.append(prior.m_step(prior.e_step(prior.init(7, THETA0, 3), evidence), evidence))
    assert [rows.start for rows, _ in in_blocks(evidence.updates)] == [0, 2, 4, 6]
    whole, parts = results
    torch.testing.assert_close(parts.w.values, whole.w.values, rtol=0, atol=1e-12)
    for name, x in whole.phi.items():
        torch.testing.assert_close(parts.phi[name], x, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("T", [1.0, 2.5])
def test_posterior_and_bound_equal_the_loops(mode, T):
    evidence = moved(noise(7, 1, density=0.7))
    prior = Attention(mode, T, null_loglik=-0.4)
    state = rounds(prior, evidence, 2, theta0=THETA0)
    state = prior.e_step(state, evidence)
    phi = {name: x.numpy() for name, x in state.phi.items()}
    rows = [
        reference.embed_rows({k: v[i].numpy() for k, v in evidence.updates.items()}, phi)
        for i in range(7)
    ]
    seen = evidence.seen.numpy()
    columns = seen & ~np.eye(7, dtype=bool) if mode == "exclude" else seen
    ratio = np.where(seen, (evidence.log_lik.numpy() + 0.4) / T, 0.0)
    own = 0.0
    if mode != "gated":
        own = float(np.where(seen, evidence.log_lik.numpy(), 0.0).trace()) / T
        np.fill_diagonal(ratio, 0.0)
    p = reference.row_softmax(
        np.array([[reference.score(a, b) for b in rows] for a in rows]), columns
    )
    with np.errstate(divide="ignore"):
        w = reference.row_softmax(ratio + np.log(p), columns)
    np.testing.assert_allclose(state.w.dense(), w, atol=1e-9)
    expected = reference.elbo(ratio, columns, own, w, p)
    assert float(prior.elbo(state, evidence)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_the_bound_is_tight_after_the_e_step(mode):
    evidence = moved(noise(6, 2))
    prior = Attention(mode)
    state = prior.e_step(prior.init(6, THETA0, 0), evidence)
    scores, log_p = scores_of(prior, evidence), prior.log_p(state, evidence).dense()
    tight = scores.own + (scores.ratio + log_p).logsumexp(1).sum()
    torch.testing.assert_close(prior.elbo(state, evidence), tight, atol=1e-9, rtol=0)
    even = scores.columns / scores.columns.sum(1, keepdim=True)
    assert prior.elbo(state._replace(w=Edges.of(even.double())), evidence) < tight


def test_uniform_prior_and_constant_likelihood():
    evidence = moved(noise(6))
    prior = Attention(temperature=1.7)
    state = prior.init(6, THETA0, 0)
    flat = state._replace(phi={name: torch.zeros_like(x) for name, x in state.phi.items()})
    w = prior.e_step(flat, evidence).w.dense()
    torch.testing.assert_close(w, (evidence.log_lik / 1.7).softmax(1))
    even = evidence._replace(log_lik=torch.full((6, 6), -2.0))
    state = prior.e_step(state, even)
    p = prior.log_p(state, even).dense().exp()
    torch.testing.assert_close(state.w.dense(), p)
    hot = Attention(temperature=1e9).e_step(state, evidence).w.dense()
    torch.testing.assert_close(hot, p, atol=1e-6, rtol=0)
    cold = Attention(temperature=1e-9).e_step(state, evidence).w.dense()
    assert torch.equal(cold.argmax(1), evidence.log_lik.argmax(1)) and cold.max(1)[0].min() > 0.99


def test_gradient_in_the_embeddings():
    u = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    w = torch.rand(5, 5, dtype=torch.float64).softmax(1)
    f = u @ u.T
    (in_f,) = torch.autograd.grad((w * f.log_softmax(1)).sum(), f)
    everyone = Edges.complete(5)
    log_p = update_log_p(u.detach(), everyone)
    torch.testing.assert_close(in_f, w - everyone.on(log_p.exp()).dense())
    (in_u,) = torch.autograd.grad((w * (u @ u.T).log_softmax(1)).sum(), u)
    found = embedding_gradient(everyone, w.flatten(), log_p, u.detach())
    torch.testing.assert_close(in_u, found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("target", ["posterior", "likelihood"])
def test_phi_gradient_equals_autograd(mode, target):
    evidence = moved(noise(6, 3, density=0.8))
    prior = Attention(mode, encoder_target=target)
    state = prior.e_step(prior.init(6, THETA0, 0), evidence)
    phi = {name: x.clone().requires_grad_() for name, x in state.phi.items()}
    rows = targets_of(prior, evidence) if target == "likelihood" else None
    value = autograd_objective(prior, state, evidence, phi, rows)
    expected = torch.autograd.grad(value, list(phi.values()))
    got = prior.gradient(state, evidence)
    for name, g in zip(phi, expected, strict=True):
        torch.testing.assert_close(got[name], g)


def test_pull_equals_autograd_and_is_off_by_default():
    evidence = moved(noise(6, 3, density=0.8))
    prior = Attention(prior_grad_to_theta=True)
    state = prior.e_step(prior.init(6, THETA0, 0), evidence)
    updates = {name: x.clone().requires_grad_() for name, x in evidence.updates.items()}
    value = autograd_objective(prior, state, evidence._replace(updates=updates), state.phi)
    expected = torch.autograd.grad(value, list(updates.values()))
    got = prior.pull(state, evidence)
    assert got is not None
    for name, g in zip(updates, expected, strict=True):
        torch.testing.assert_close(got[name], -g)
    assert Attention().pull(state, evidence) is None
    still = evidence._replace(updates={k: torch.zeros_like(v) for k, v in evidence.updates.items()})
    pulled = prior.pull(state, still)
    assert pulled is not None and all(bool((x == 0).all()) for x in pulled.values())


def test_the_first_step_is_torch_adam_and_the_bound_rises():
    evidence = moved(noise(6))
    for name, optimizer in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        prior = Attention(prior_optimizer=name, prior_betas=(0.9, 0.99))
        state = prior.e_step(prior.init(6, THETA0, 0), evidence)
        phi = {key: x.clone().requires_grad_() for key, x in state.phi.items()}
        theirs = optimizer(list(phi.values()), lr=0.1, betas=(0.9, 0.99), weight_decay=0.01)
        for _ in range(3):
            theirs.zero_grad()
            (-autograd_objective(prior, state, evidence, phi)).backward()
            theirs.step()
            state = prior.e_step(state, evidence)._replace(w=state.w)
            state = prior.m_step(state, evidence)
        for key, x in phi.items():
            torch.testing.assert_close(state.phi[key], x.detach())
    small = Attention(prior_lr=1e-3, prior_weight_decay=0.0)
    before = small.e_step(small.init(6, THETA0, 0), evidence)
    after = small.e_step(small.m_step(before, evidence), evidence)._replace(w=before.w)
    assert small.elbo(after, evidence) > small.elbo(before, evidence)


@pytest.mark.parametrize("compat", ["derived", "released"])
def test_processes_agree_with_one_process(compat):
    """Two processes with clients {0, 3, 4} and {1, 2, 5}: same phi as one that holds all."""
    evidence = moved(noise(6, 4, density=0.9))
    prior = Attention(compat=compat)
    state = prior.e_step(prior.init(6, THETA0, 0), evidence)
    whole = prior.m_step(state, evidence)
    embeddings = prior.encoder.embed(state.phi, evidence.updates, prior._sign)
    partial = []
    for mine in (torch.tensor([0, 3, 4]), torch.tensor([1, 2, 5])):
        held = {name: x[mine] for name, x in evidence.updates.items()}
        torch.testing.assert_close(prior.report(state, held), embeddings[mine])
        part = evidence._replace(updates=held, owned=mine, reports=embeddings)
        torch.testing.assert_close(prior.e_step(state, part).w.values, state.w.values)
        partial.append(prior.gradient(state, part))
    summed = {name: partial[0][name] + partial[1][name] for name in partial[0]}
    for name, g in prior.gradient(state, evidence).items():
        torch.testing.assert_close(summed[name], g)
    told = prior.m_step(state, part._replace(gradient=summed))
    for name, x in whole.phi.items():
        torch.testing.assert_close(told.phi[name], x)
    assert int(whole.steps) == 1


def test_attention_learns_planted_groups():
    evidence, same = planted(20, 4)
    evidence = moved(evidence, groups=4)
    state = rounds(Attention(), evidence, 30, theta0=THETA0)
    prior_alone = Attention().log_p(state, evidence).dense().exp()
    assert prior_alone[same].sum() / 20 > 0.9


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("K", [1, 2, 5])
def test_rows_sum_to_one_or_are_empty(mode, K):
    evidence = moved(noise(K, 6, density=0.6))
    evidence.seen[0] = False
    prior = Attention(mode)
    state = rounds(prior, evidence, 3, theta0=THETA0)
    columns = scores_of(prior, evidence).columns
    torch.testing.assert_close(state.w.row_sums(), columns.any(1).double())
    assert (state.w.dense()[~evidence.seen] == 0).all()
    assert torch.isfinite(prior.elbo(state, evidence))
    assert all(bool(x.isfinite().all()) for x in state.phi.values())


def test_extreme_losses_stay_finite():
    evidence = moved(noise(6, scale=1e4))
    state = rounds(Attention(), evidence, 3, theta0=THETA0)
    assert bool(state.w.values.isfinite().all())
    assert all(bool(x.isfinite().all()) for x in state.phi.values())


def test_released_dense_rows_are_right_and_sparse_rows_have_the_wrong_sign():
    T = 2.0
    prior = Attention(temperature=T, compat="released", encoder_out=20)
    dense = moved(noise(8))
    state = prior.e_step(prior.init(8, THETA0, 0), dense)
    log_p = prior.log_p(state, dense).dense()
    expected = (dense.log_lik / T + log_p).softmax(1)
    torch.testing.assert_close(prior.e_step(state, dense).w.dense(), expected)
    o = (dense.log_lik / T).softmax(1)
    torch.testing.assert_close(prior.ranking(state, dense).dense(), o)
    sparse = moved(noise(8, density=0.5))
    scores = prior._scores(sparse)
    factor = scores.edges.on(released_scores(scores, T).ratio).dense()
    loss = torch.where(sparse.seen, -sparse.log_lik, 0.0)
    torch.testing.assert_close(factor, loss / loss.sum(1, keepdim=True) / T)
    for i in range(8):
        kept = factor[i][sparse.seen[i]].exp()
        assert kept.max() / kept.min() <= np.exp(1 / T)


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_released_encoder_takes_one_adam_step_a_client_and_averages(monkeypatch, at_once):
    size = rounds(Attention(), moved(noise(5, 7)), 1, 0, THETA0).u.numel()
    monkeypatch.setattr(attention_released, "BLOCK", at_once * size)
    evidence = moved(noise(5, 7, density=0.8))
    options = {"prior_optimizer": "adamw", "prior_lr": 0.2, "prior_betas": (0.9, 0.99)}
    prior = Attention(temperature=2.0, compat="released", **options)
    state = prior.e_step(prior.init(5, THETA0, 0), evidence)
    o, columns = targets_of(prior, evidence), evidence.seen
    copies = [{k: x.clone().requires_grad_() for k, x in state.phi.items()} for _ in range(5)]
    theirs = [
        torch.optim.AdamW(list(phi.values()), lr=0.2, betas=(0.9, 0.99), weight_decay=0.01)
        for phi in copies
    ]
    for _ in range(3):
        for i, (phi, optimizer) in enumerate(zip(copies, theirs, strict=True)):
            u = prior.encoder.embed(phi, evidence.updates, -1.0)
            f = (u @ u.T).masked_fill(~columns, -torch.inf)
            optimizer.zero_grad()
            (-(o[i] * (f[i].softmax(0) + 1e-10).log()).sum()).backward()
            optimizer.step()
        with torch.no_grad():
            for key in state.phi:
                mean = torch.stack([phi[key] for phi in copies]).mean(0)
                for phi in copies:
                    phi[key].copy_(mean)
        state = prior.m_step(prior.e_step(state, evidence), evidence)
        for key, x in state.phi.items():
            torch.testing.assert_close(x, copies[0][key].detach())


def test_a_step_is_a_function_of_state_and_evidence():
    evidence = moved(noise(6))
    a, b = (seen_rounds(Attention(), evidence, 3, 5, THETA0) for _ in range(2))
    assert torch.equal(a.w, b.w) and int(a.steps) == 3
    assert all(torch.equal(a.phi[k], b.phi[k]) for k in a.phi)
    assert not torch.equal(a.w, seen_rounds(Attention(), evidence, 3, 6, THETA0).w)


def test_clients_may_be_relabelled():
    evidence = moved(noise(6, density=0.8))
    order = torch.randperm(6)
    turned = evidence._replace(
        log_lik=evidence.log_lik[order][:, order],
        seen=evidence.seen[order][:, order],
        updates={k: x[order] for k, x in evidence.updates.items()},
    )
    a, b = (seen_rounds(Attention(), x, 3, theta0=THETA0) for x in (evidence, turned))
    torch.testing.assert_close(b.w, a.w[order][:, order])


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"encoder_out": 0},
        {"prior_lr": -1.0},
        {"prior_betas": (0.9, 1.0)},
        {"compat": "released", "self_mode": "always"},
        {"compat": "released", "prior_grad_to_theta": True},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(reversed(options)))):
        Attention(**options)


def test_missing_updates_are_named():
    with pytest.raises(ScoolError, match="updates"):
        Attention().e_step(Attention().init(3, THETA0, 0), noise(3))


def test_released_rows_stay_dense_when_a_client_is_in_quarantine():
    """The sign error is one of sparse graphs; a column that nobody sees makes no graph sparse."""
    prior = Attention(temperature=2.0, compat="released")
    evidence = moved(noise(6))
    seen = evidence.seen.clone()
    seen[:, 2] = seen[2] = False
    scores = prior._scores(evidence._replace(seen=seen))
    torch.testing.assert_close(released_scores(scores, 2.0).ratio, scores.ratio)
