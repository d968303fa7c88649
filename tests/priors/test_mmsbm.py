"""SCooL-MMSBM: updates against naive loops, the bound, planted groups, the limit of SBM."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import as_matrices as sbm
from reference import mmsbm as reference
from reference.as_matrices import dense_state, read_pairs
from reference.as_matrices import mixed as mm
from reference.worlds import noise, planted, recovered, rounds, seen_rounds
from scool.errors import ConfigError
from scool.priors import MMSBM
from scool.priors.blocks import expected_log_pi, update_alpha
from scool.priors.sbm import beta_terms


def simplex(*shape, rng):
    x = torch.rand(*shape, generator=rng, dtype=torch.float64) + 0.05
    return x / x.sum(-1, keepdim=True)


def world(seed=0, K=6, M=3, density=0.8):
    rng = torch.Generator().manual_seed(seed)
    pairs = read_pairs(noise(K, seed, density), "always", -0.7)
    keep = pairs.mask[..., None]
    q = {
        "w": torch.rand(K, K, generator=rng, dtype=torch.float64) * pairs.mask,
        "phi_send": simplex(K, K, M, rng=rng) * keep,
        "phi_recv": simplex(K, K, M, rng=rng) * keep,
        "gamma": torch.rand(K, M, generator=rng, dtype=torch.float64) * 3 + 0.2,
        "alpha": torch.rand(M, generator=rng, dtype=torch.float64) + 0.2,
        "B": torch.rand(M, M, generator=rng, dtype=torch.float64) * 0.8 + 0.1,
    }
    return q, pairs


@pytest.mark.parametrize("T", [1.0, 2.5])
def test_updates_and_bound_equal_the_loops(T):
    q, pairs = world()
    w, P, Q, gamma, alpha, B = (x.numpy() for x in q.values())
    ratio, mask = pairs.ratio.numpy(), pairs.mask.numpy()
    near = {"atol": 1e-12}
    got = mm.mmsbm_bound(pairs, **q, temperature=T)
    expected = reference.elbo(ratio, mask, float(pairs.own), w, P, Q, gamma, alpha, B, T)
    assert float(got) == pytest.approx(expected, abs=1e-9)
    got = mm.update_w(pairs, q["phi_send"], q["phi_recv"], q["B"], T)
    np.testing.assert_allclose(got, reference.w_update(ratio, mask, P, Q, B, T), **near)
    got = mm.update_phi_send(pairs, q["w"], q["phi_recv"], q["gamma"], q["B"])
    np.testing.assert_allclose(got, reference.P_update(w, mask, Q, gamma, B), **near)
    got = mm.update_phi_recv(pairs, q["w"], q["phi_send"], q["gamma"], q["B"])
    np.testing.assert_allclose(got, reference.Q_update(w, mask, P, gamma, B), **near)
    got = mm.update_gamma(q["alpha"], q["phi_send"], q["phi_recv"])
    np.testing.assert_allclose(got, reference.gamma_update(alpha, mask, P, Q), **near)
    got = mm.update_B(q["w"], q["phi_send"], q["phi_recv"], q["B"], 0.5)
    np.testing.assert_allclose(got, reference.B_update(w, mask, P, Q, 0.5), **near)


@pytest.mark.parametrize("T", [1.0, 2.5])
@settings(derandomize=True, max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), pseudo=st.sampled_from([0.0, 0.5]))
def test_no_update_lowers_the_bound(T, seed, pseudo):
    q, pairs = world(seed)

    def bound():
        return float(mm.mmsbm_bound(pairs, **q, temperature=T) + beta_terms(q["B"], pseudo))

    values = [bound()]
    for _ in range(3):
        q["w"] = mm.update_w(pairs, q["phi_send"], q["phi_recv"], q["B"], T)
        values.append(bound())
        q["phi_send"] = mm.update_phi_send(pairs, q["w"], q["phi_recv"], q["gamma"], q["B"])
        values.append(bound())
        q["phi_recv"] = mm.update_phi_recv(pairs, q["w"], q["phi_send"], q["gamma"], q["B"])
        values.append(bound())
        q["gamma"] = mm.update_gamma(q["alpha"], q["phi_send"], q["phi_recv"])
        values.append(bound())
        q["B"] = mm.update_B(q["w"], q["phi_send"], q["phi_recv"], q["B"], pseudo)
        values.append(bound())
        q["alpha"] = update_alpha(q["alpha"], expected_log_pi(q["gamma"]))
        values.append(bound())
    assert np.diff(values).min() >= -1e-9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("blocks", [5, 8])
def test_planted_groups_are_found(blocks, seed):
    evidence, same = planted(seed=seed)
    state = seen_rounds(MMSBM(blocks), evidence, 5, seed)
    off = ~torch.eye(60, dtype=torch.bool)
    assert state.w[same & off].mean() > 0.95 and state.w[~same].mean() < 0.02
    if blocks == 5:
        assert recovered(state.gamma.argmax(1), same)


def test_learned_B_without_null_model_collapses():
    evidence, _ = planted(30)
    assert seen_rounds(MMSBM(null_loglik=0.0), evidence, 40).w.mean() < 0.05


def test_saturated_memberships_give_the_block_model():
    K, M = 8, 3
    q, pairs = world(K=K, M=M, density=1.0)
    z = torch.arange(K) % M
    gamma = torch.full((K, M), 1e-8, dtype=torch.float64)
    gamma[torch.arange(K), z] = 1e8
    send, recv = q["phi_send"], q["phi_recv"]
    for _ in range(3):
        send = mm.update_phi_send(pairs, q["w"], recv, gamma, q["B"])
        recv = mm.update_phi_recv(pairs, q["w"], send, gamma, q["B"])
    omega = torch.nn.functional.one_hot(z, M).double()
    torch.testing.assert_close(send, omega[:, None, :] * pairs.mask[..., None])
    w = mm.update_w(pairs, send, recv, q["B"], 1.0)
    torch.testing.assert_close(w, sbm.update_w(pairs, omega, q["B"], 1.0))


def test_tied_memberships_give_the_formulas_of_the_block_model():
    q, pairs = world(density=0.8)
    omega = simplex(6, 3, rng=torch.Generator().manual_seed(5))
    keep = pairs.mask[..., None]
    send, recv = omega[:, None, :] * keep, omega[None, :, :] * keep
    w = mm.update_w(pairs, send, recv, q["B"], 1.0)
    torch.testing.assert_close(w, sbm.update_w(pairs, omega, q["B"], 1.0))
    B = mm.update_B(w, send, recv, q["B"], 0.5)
    torch.testing.assert_close(B, sbm.update_B(pairs, w, omega, q["B"], 0.5))


@pytest.mark.parametrize("mode", ["always", "exclude"])
@pytest.mark.parametrize("tempered", ["entropy", "likelihood"])
def test_the_bound_never_falls_over_rounds(mode, tempered):
    evidence = noise(9, 1, density=0.8)
    prior = MMSBM(3, mode, 1.7, tempered, learn_alpha=True, sweeps=2)
    state, values = prior.init(9, {}, 0), []
    for _ in range(6):
        state = prior.e_step(state, evidence)
        values.append(float(prior.elbo(state, evidence)))
        state = prior.m_step(state, evidence)
        values.append(float(prior.elbo(state, evidence)))
    assert np.diff(values).min() >= -1e-9 and values[-1] > values[0]


def test_unseen_pairs_enter_nothing():
    evidence = noise(8, 2, density=0.6)
    other = evidence._replace(log_lik=torch.where(evidence.seen, evidence.log_lik, -77.0))
    prior = MMSBM(3, learn_alpha=True)
    a, b = seen_rounds(prior, evidence, 3), seen_rounds(prior, other, 3)
    assert all(
        torch.equal(x, y) and bool(torch.isfinite(x).all()) for x, y in zip(a, b, strict=True)
    )
    assert (a.w[~evidence.seen] == 0).all() and (a.phi_send[~evidence.seen] == 0).all()


def test_pairs_may_come_and_go():
    prior = MMSBM(3)
    state = rounds(prior, noise(8, 2, density=0.4), 2)
    full = noise(8, 3)
    state = prior.e_step(state, full)
    bound, state = prior.elbo(state, full), dense_state(state)
    off = ~torch.eye(8, dtype=torch.bool)
    torch.testing.assert_close(state.phi_send.sum(-1)[off], torch.ones(56, dtype=torch.float64))
    assert bool((state.w[off] > 0).all()) and torch.isfinite(bound)


@pytest.mark.parametrize(("K", "M"), [(1, 1), (1, 3), (2, 1), (2, 4), (5, 1)])
def test_small_federations_and_many_blocks(K, M):
    evidence = noise(K, 3)
    prior = MMSBM(M, learn_alpha=True)
    state = rounds(prior, evidence, 3)
    assert all(bool(torch.isfinite(x).all()) for x in dense_state(state))
    assert torch.isfinite(prior.elbo(state, evidence))


def test_extreme_numbers_stay_finite():
    evidence = noise(40, scale=1e4)
    prior = MMSBM(4, b_in=1 - 1e-6, b_out=1e-6)
    state = seen_rounds(prior, evidence, 2)
    assert all(bool(torch.isfinite(x).all()) for x in state)


def test_a_step_is_a_function_of_state_and_evidence():
    evidence = noise(8)
    prior = MMSBM(3)
    first, again = (dense_state(prior.e_step(prior.init(8, {}, 7), evidence)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert bool(first.started)


@pytest.mark.parametrize(
    "options", [{"self_mode": "gated"}, {"num_blocks": 0}, {"alpha": -1.0}, {"temperature": 0.0}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        MMSBM(**options)
