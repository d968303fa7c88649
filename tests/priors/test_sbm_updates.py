"""Every update of SCooL-SBM against naive loops, and the bound against every update."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import sbm as reference
from reference.as_matrices import read_pairs, sbm_bound, update_B, update_omega, update_w
from reference.worlds import noise
from scool.priors.blocks import (
    alpha_gradient,
    alpha_terms,
    dirichlet_terms,
    expected_log_pi,
    update_alpha,
)
from scool.priors.sbm import beta_terms, update_gamma

MODES = ["gated", "always", "exclude"]


def random_q(K=8, M=3, seed=0):
    """w, omega, gamma, alpha, B of an arbitrary state."""
    rng = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=rng, dtype=torch.float64)

    omega = rand(K, M) + 0.05
    return {
        "w": rand(K, K) * 0.9 + 0.05,
        "omega": omega / omega.sum(1, keepdim=True),
        "gamma": rand(K, M) * 3 + 0.2,
        "alpha": rand(M) * 2 + 0.3,
        "B": rand(M, M) * 0.8 + 0.1,
    }


def world(mode, seed=0, density=0.7, null=-0.7):
    q, pairs = random_q(seed=seed), read_pairs(noise(8, seed, density), mode, null)
    q["w"] = torch.where(pairs.mask, q["w"], 0.0)
    return q, pairs


def numpy_of(q):
    return {name: x.numpy() for name, x in q.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("T", [1.0, 2.5])
def test_bound_and_w_equal_the_loops(mode, T):
    q, pairs = world(mode)
    ratio, mask, n = pairs.ratio.numpy(), pairs.mask.numpy(), numpy_of(q)
    expected = reference.elbo(ratio, mask, float(pairs.own), **n, T=T)
    assert float(sbm_bound(pairs, **q, temperature=T)) == pytest.approx(expected, abs=1e-9)
    w = update_w(pairs, q["omega"], q["B"], T)
    np.testing.assert_allclose(
        w, reference.w_update(ratio, mask, n["omega"], n["B"], T), atol=1e-12
    )


@pytest.mark.parametrize("mode", MODES)
def test_omega_and_B_equal_the_loops(mode):
    q, pairs = world(mode)
    mask, n = pairs.mask.numpy(), numpy_of(q)
    order = [5, 0, 3, 7, 1, 2, 6, 4]
    omega = n["omega"].copy()
    for i in order:
        omega[i] = reference.omega_row(n["w"], mask, omega, n["gamma"], n["B"], i)
    got = update_omega(pairs, q["w"], q["omega"], q["gamma"], q["B"], torch.tensor(order))
    np.testing.assert_allclose(got, omega, atol=1e-12)
    B = update_B(pairs, q["w"], q["omega"], q["B"], 0.5)
    np.testing.assert_allclose(B, reference.B_update(n["w"], mask, n["omega"], 0.5), atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("T", [1.0, 2.5])
@settings(derandomize=True, max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), pseudo=st.sampled_from([0.0, 0.5]))
def test_no_update_lowers_the_bound(mode, T, seed, pseudo):
    q, pairs = world(mode, seed, density=0.8)

    def bound():
        return float(sbm_bound(pairs, **q, temperature=T) + beta_terms(q["B"], pseudo))

    values = [bound()]
    for _ in range(2):
        q["w"] = update_w(pairs, q["omega"], q["B"], T)
        values.append(bound())
        for i in range(8):
            one = torch.tensor([i])
            q["omega"] = update_omega(pairs, q["w"], q["omega"], q["gamma"], q["B"], one)
            values.append(bound())
            q["gamma"] = q["gamma"].clone()
            q["gamma"][i] = update_gamma(q["alpha"], q["omega"])[i]
            values.append(bound())
        q["B"] = update_B(pairs, q["w"], q["omega"], q["B"], pseudo)
        values.append(bound())
        q["alpha"] = update_alpha(q["alpha"], expected_log_pi(q["gamma"]))
        values.append(bound())
    assert np.diff(values).min() >= -1e-9


@pytest.mark.parametrize("mode", MODES)
def test_converged_state_is_stationary(mode):
    q, pairs = world(mode, seed=3)
    every = torch.arange(8)
    for _ in range(400):
        q["w"] = update_w(pairs, q["omega"], q["B"], 1.3)
        q["omega"] = update_omega(pairs, q["w"], q["omega"], q["gamma"], q["B"], every)
        q["gamma"] = update_gamma(q["alpha"], q["omega"])
        q["B"] = update_B(pairs, q["w"], q["omega"], q["B"], 0.5)
    logits = q["omega"].clamp(min=1e-300).log().requires_grad_()
    free = {name: q[name].clone().requires_grad_() for name in ("w", "gamma", "B")}
    value = sbm_bound(
        pairs, omega=logits.softmax(1), alpha=q["alpha"], temperature=1.3, **free
    ) + beta_terms(free["B"], 0.5)
    value.backward()
    assert logits.grad is not None and logits.grad.abs().max() < 1e-5
    for name, x in free.items():
        assert x.grad is not None
        inner = pairs.mask if name == "w" else torch.ones_like(x, dtype=torch.bool)
        assert x.grad[inner].abs().max() < 1e-5, name


def test_alpha_gradient_equals_autograd_and_the_printed_one_does_not():
    q = random_q()
    alpha = q["alpha"].clone().requires_grad_()
    dirichlet_terms(alpha, q["gamma"]).backward()
    e = expected_log_pi(q["gamma"])
    torch.testing.assert_close(alpha_gradient(q["alpha"], e), alpha.grad)
    printed = e.sum(0) + 8 * (torch.digamma(q["alpha"].sum()) - torch.digamma(q["alpha"]).sum())
    assert (printed - alpha.grad).abs().max() > 1


def test_alpha_update_climbs_to_a_stationary_point():
    draws = torch.distributions.Dirichlet(torch.tensor([2.0, 1.0, 0.5]).double()).sample((400,))
    e = draws.clamp(min=1e-12).log()
    alpha = update_alpha(torch.tensor([9.0, 0.1, 3.0]).double(), e)
    assert alpha_gradient(alpha, e).abs().max() < 1e-4
    assert alpha_terms(alpha, e) > alpha_terms(torch.ones(3).double(), e)


def test_w_is_the_best_w_and_depends_on_its_own_pair_only():
    q, pairs = world("gated", density=1.0)
    best = update_w(pairs, q["omega"], q["B"], 1.0)
    top = sbm_bound(pairs, **{**q, "w": best}, temperature=1.0)
    for _ in range(20):
        other = torch.rand(8, 8, dtype=torch.float64)
        assert sbm_bound(pairs, **{**q, "w": other}, temperature=1.0) <= top
    moved = pairs._replace(ratio=pairs.ratio.clone())
    moved.ratio[2, 3] -= 1
    changed = update_w(moved, q["omega"], q["B"], 1.0) != best
    assert changed.nonzero().tolist() == [[2, 3]]


def test_relabelling_blocks_or_clients_relabels_the_result():
    q, pairs = world("gated")
    order = torch.randperm(8)
    block, client = torch.tensor([2, 0, 1]), torch.randperm(8)
    omega = update_omega(pairs, q["w"], q["omega"], q["gamma"], q["B"], order)
    relabelled = update_omega(
        pairs, q["w"], q["omega"][:, block], q["gamma"][:, block], q["B"][block][:, block], order
    )
    torch.testing.assert_close(relabelled, omega[:, block])
    w = update_w(pairs, omega, q["B"], 1.0)
    torch.testing.assert_close(update_w(pairs, relabelled, q["B"][block][:, block], 1.0), w)
    moved = pairs._replace(mask=pairs.mask[client][:, client], ratio=pairs.ratio[client][:, client])
    place = client.argsort()  # where each client went
    moved_omega = update_omega(
        moved,
        q["w"][client][:, client],
        q["omega"][client],
        q["gamma"][client],
        q["B"],
        place[order],
    )
    torch.testing.assert_close(moved_omega, omega[client])
    torch.testing.assert_close(update_w(moved, moved_omega, q["B"], 1.0), w[client][:, client])


def test_empty_blocks_keep_B_finite():
    _, pairs = world("always")
    omega = torch.zeros(8, 3, dtype=torch.float64)
    omega[:, 0] = 1
    old = torch.full((3, 3), 0.3, dtype=torch.float64)
    B = update_B(pairs, torch.zeros(8, 8, dtype=torch.float64), omega, old, 0.0)
    assert B[0, 0] == pytest.approx(1e-6)
    assert (B[1:] == 0.3).all()
