"""Few measured pairs: lists in place of rows, memberships that spread, starts that are repeated."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import scool.priors.base as pairs_module
from reference import sbm as reference
from reference.as_matrices import measured, read_pairs, update_omega
from reference.worlds import noise, planted, recovered
from scool.contracts import Evidence
from scool.priors import MMSBM, SBM
from scool.priors.base import list_pairs
from scool.priors.blocks import (
    Peers,
    first_omega,
    nearest_peers,
    scattered_seeds,
    seeded_omega,
    similarity,
    spread_omega,
)


def thinned(evidence: Evidence, density: float, seed: int = 0) -> Evidence:
    """The same with most pairs not measured; oneself always is."""
    rng = torch.Generator().manual_seed(seed)
    seen = torch.rand(evidence.seen.shape, generator=rng) < density
    return evidence._replace(seen=seen.fill_diagonal_(True))


# ---------------------------------------------------------------------- lists


@pytest.fixture
def always_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs_module, "SMALL", 0)
    monkeypatch.setattr(pairs_module, "SPARSE", 1.0)


@pytest.mark.usefixtures("always_lists")
@pytest.mark.parametrize("mode", ["gated", "always"])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_a_sweep_over_lists_equals_the_loops(mode, density):
    pairs = read_pairs(noise(8, 3, density), mode, -0.7)
    rng = torch.Generator().manual_seed(1)
    w = torch.rand(8, 8, generator=rng, dtype=torch.float64) * pairs.mask
    omega, gamma = (torch.rand(8, 3, generator=rng, dtype=torch.float64) + 0.1 for _ in range(2))
    omega = omega / omega.sum(1, keepdim=True)
    B = torch.rand(3, 3, generator=rng, dtype=torch.float64) * 0.8 + 0.1
    order = [5, 0, 3, 7, 1, 2, 6, 4]
    lists = list_pairs(measured(pairs).edges)
    assert lists is not None
    linked = (pairs.off | pairs.off.T).sum(1)
    assert (lists.ends[1:] - lists.ends[:-1]).tolist() == linked.tolist()
    got = update_omega(pairs, w, omega, gamma, B, torch.tensor(order), lists)
    rows = update_omega(pairs, w, omega, gamma, B, torch.tensor(order))
    torch.testing.assert_close(got, rows, rtol=0, atol=1e-12)
    expected = omega.numpy().copy()
    for i in order:
        expected[i] = reference.omega_row(
            w.numpy(), pairs.mask.numpy(), expected, gamma.numpy(), B.numpy(), i
        )
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_lists_are_for_many_clients_and_few_pairs():
    for K, density, is_listed in [(30, 0.1, False), (501, 0.05, True), (501, 0.5, False)]:
        evidence = thinned(planted(K, 3)[0], density)
        assert (list_pairs(evidence.pairs) is not None) == is_listed


def test_an_e_step_of_many_clients_does_not_depend_on_lists(monkeypatch):
    evidence = thinned(planted(510, 6)[0], 0.05)
    prior = SBM(num_blocks=6)
    listed = prior.e_step(prior.init(510, {}, 0), evidence)
    monkeypatch.setattr(pairs_module, "SMALL", 10**6)
    rows = prior.e_step(prior.init(510, {}, 0), evidence)
    torch.testing.assert_close(listed.w.values, rows.w.values, rtol=0, atol=1e-9)


# ---------------------------------------------------------------------- first memberships


def test_nearest_peers_by_hand():
    log_lik = torch.tensor([[0.0, -1, -9], [-3, 0, -9], [-9, -0.5, 0]]).double()
    seen = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 1, 1]]).bool()
    peers = nearest_peers(Evidence(log_lik, seen).pairs, 2)
    # (0, 1): both directions, -2; (1, 2): one direction, -0.5; (0, 2) was never measured
    assert peers.ids[0, 0] == 1 and peers.valid[0].tolist() == [True, False]
    assert peers.ids[1].tolist() == [2, 0] and peers.valid[1].tolist() == [True, True]
    assert peers.ids[2, 0] == 1 and peers.valid[2].tolist() == [True, False]
    mean = peers.average(torch.tensor([[1.0], [2.0], [4.0]]).double())
    assert mean[:, 0].tolist() == [2.0, 2.5, 2.0]


def test_seeds_are_scattered_over_the_groups():
    evidence, same = planted(60, 5)
    evidence = thinned(evidence, 0.3)
    peers = nearest_peers(evidence.pairs)
    seeds = scattered_seeds(peers, 5)
    assert len(set(seeds)) == 5 and int(same[seeds][:, seeds].sum()) == 5
    assert scattered_seeds(peers, 5, first=17)[0] == 17
    assert sorted(scattered_seeds(peers, 99)) == list(range(60))


@pytest.mark.parametrize("seed", range(4))
def test_memberships_spread_where_farthest_seeds_know_too_little(seed):
    """One pair in ten: most clients never met a seed."""
    evidence, same = planted(200, 5, seed=seed)
    evidence = thinned(evidence, 0.1, seed)
    near = similarity(evidence.log_lik, evidence.seen)
    farthest = seeded_omega(near, 5, 0).argmax(1)
    assert not recovered(farthest, same)
    omega = spread_omega(nearest_peers(evidence.pairs), 5)
    torch.testing.assert_close(omega.sum(1), torch.ones(200).double())
    agree = (omega.argmax(1)[:, None] == omega.argmax(1)) == same
    assert float(agree.double().mean()) > 0.95
    prior = SBM(num_blocks=5)
    state = prior.e_step(prior.init(200, {}, 0), evidence)
    assert recovered(state.omega.argmax(1), same)


def test_a_client_that_met_nobody_belongs_to_all_blocks_alike():
    evidence = thinned(planted(20, 2)[0], 0.3)
    seen = evidence.seen.clone()
    seen[7], seen[:, 7] = False, False
    peers = nearest_peers(evidence._replace(seen=seen).pairs)
    assert not bool(peers.valid[7].any())
    assert 7 not in scattered_seeds(peers, 20) and len(scattered_seeds(peers, 20)) == 19
    assert spread_omega(peers, 2)[7].tolist() == [0.5, 0.5]
    nobody = Peers(torch.zeros(3, 2).long(), torch.zeros(3, 2).bool())
    assert bool(spread_omega(nobody, 5).isfinite().all())  # more blocks than clients


def test_dense_evidence_starts_from_farthest_seeds_as_before():
    evidence, _ = planted(30, 3)
    rng = torch.Generator().manual_seed(0)
    near = similarity(evidence.log_lik, evidence.seen)
    found = first_omega(evidence.pairs, 3, True, 0, rng)
    assert torch.equal(found, seeded_omega(near, 3, int(near.sum(1).argmax())))


@pytest.mark.parametrize("prior", [SBM(num_blocks=4), MMSBM(num_blocks=4)])
@pytest.mark.parametrize("K", [1, 2, 3])
def test_next_to_nothing_measured(prior, K):
    evidence = noise(K, 1)._replace(seen=torch.eye(K, dtype=torch.bool))
    state = prior.e_step(prior.init(K, {}, 0), evidence)
    assert bool(state.w.values.isfinite().all())
    assert bool(prior.elbo(state, evidence).isfinite())


# ---------------------------------------------------------------------- fresh starts


def test_memberships_compete_with_fresh_ones_when_many_more_pairs_are_known():
    evidence, same = planted(240, 12)
    few, many = thinned(evidence, 0.02), thinned(evidence, 0.15)
    prior = SBM(num_blocks=12)
    state = prior.e_step(prior.init(240, {}, 0), few)
    assert int(state.known) == int(few.seen.sum())
    stuck = prior.e_step(state._replace(known=torch.tensor(10**9)), many)
    fresh = prior.e_step(state, many)
    assert not recovered(stuck.omega.argmax(1), same)
    assert recovered(fresh.omega.argmax(1), same)
    assert float(prior.elbo(fresh, many)) > float(prior.elbo(stuck, many))
    assert int(fresh.known) == int(many.seen.sum())


def test_a_little_more_or_less_evidence_goes_on_from_the_last_memberships():
    evidence, _ = planted(60, 5)
    prior = SBM(num_blocks=5)
    state = prior.e_step(prior.init(60, {}, 0), thinned(evidence, 0.4))
    more = evidence._replace(seen=thinned(evidence, 0.4).seen | thinned(evidence, 0.05, 1).seen)
    for other in (more, thinned(evidence, 0.2)):
        after = prior.e_step(state, other)
        assert int(after.known) == int(state.known)
        warm = replace(prior, init_mode="random").e_step(state, other)  # no start is drawn
        assert torch.equal(after.w.dense(), warm.w.dense())


@pytest.mark.parametrize("prior", [SBM(num_blocks=6), MMSBM(num_blocks=6)])
def test_wrong_memberships_are_left_while_all_pairs_are_measured(
    prior, monkeypatch: pytest.MonkeyPatch
):
    evidence, same = planted(60, 6)
    other = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    wrong = evidence._replace(log_lik=evidence.log_lik[other][:, other])
    state = prior.e_step(prior.init(60, {}, 0), wrong)
    found = prior.e_step(state, evidence)
    assert recovered(prior.describe(found)["blocks"], same)
    monkeypatch.setattr(pairs_module, "DENSE", 2.0)  # never
    stuck = prior.e_step(state, evidence)
    assert float(prior.elbo(found, evidence)) > float(prior.elbo(stuck, evidence))
    assert not recovered(prior.describe(stuck)["blocks"], same)


def test_the_better_bound_stays():
    """Fresh memberships that are worse do not replace good ones."""
    evidence, same = planted(120, 4)
    good = SBM(num_blocks=4).e_step(SBM(num_blocks=4).init(120, {}, 0), evidence)
    prior = SBM(num_blocks=4, init_mode="random", sweeps=1)
    alone = prior.e_step(prior.init(120, {}, 0), evidence)
    assert not recovered(alone.omega.argmax(1), same)
    after = prior.e_step(good._replace(known=torch.tensor(1)), evidence)
    assert recovered(after.omega.argmax(1), same) and int(after.known) == 120**2
