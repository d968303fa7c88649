"""SCooL-SBM as a prior: planted groups, options, limits, the released program."""

import itertools
import math

import pytest
import torch

from reference.as_matrices import dense_state
from reference.sbm_released import two_sweeps
from reference.worlds import UNIFORM, noise, planted, recovered, rounds, seen_rounds
from scool.contracts import Evidence
from scool.errors import ConfigError
from scool.priors import SBM
from scool.priors.base import sweep_key
from scool.priors.blocks import farthest_seeds, similarity
from scool.priors.sbm import update_w
from scool.priors.sbm_released import _gamma_draws, released_sweeps
from scool.randomness import derive

MODES = ["gated", "always", "exclude"]


def off_diagonal(K):
    return ~torch.eye(K, dtype=torch.bool)


@pytest.mark.parametrize("seed", range(3))
def test_planted_groups_are_found_with_fixed_B(seed):
    evidence, same = planted(seed=seed)
    state = seen_rounds(SBM(sweeps=30, null_loglik=0.0), evidence, 1, seed)
    assert recovered(state.omega.argmax(1), same)
    assert state.w[same].mean() > 0.6 and state.w[~same].mean() < 0.02


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("blocks", [5, 8, 10])
@pytest.mark.parametrize("init", ["random", "seeded"])
def test_planted_groups_are_found_with_learned_B_and_a_null_model(blocks, init, seed):
    evidence, same = planted(seed=seed)
    state = seen_rounds(SBM(num_blocks=blocks, learn_B=True, init_mode=init), evidence, 5, seed)
    assert recovered(state.omega.argmax(1), same)
    assert state.w[same].mean() > 0.95 and state.w[~same].mean() < 0.02


def test_learned_B_without_null_model_collapses():
    evidence, _ = planted(30)
    state = seen_rounds(SBM(learn_B=True, null_loglik=0.0, sweeps=3), evidence, 40)
    assert state.w.mean() < 0.05


def test_surplus_blocks_empty_against_the_uniform_null_model():
    evidence, same = planted()
    state = seen_rounds(SBM(num_blocks=10, null_loglik="uniform"), evidence)
    assert recovered(state.omega.argmax(1), same) and state.w[same].mean() > 0.9


def test_surplus_blocks_split_groups_without_null_model():
    """Not wished for, but the maximum of the bound: without a null model edges only cost."""
    evidence, same = planted()
    state = seen_rounds(SBM(num_blocks=10, null_loglik=0.0), evidence)
    assert len(state.omega.argmax(1).unique()) == 10
    assert state.w[same].mean() > 20 * state.w[~same].mean()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tempered", ["entropy", "likelihood"])
def test_the_bound_never_falls_over_rounds(mode, tempered):
    evidence = noise(12, 1, density=0.8)
    prior = SBM(
        3, mode, 1.7, tempered, learn_B=True, learn_alpha=True, sweeps=2, init_mode="random"
    )
    state = prior.init(12, {}, 0)
    values = []
    for _ in range(6):
        state = prior.e_step(state, evidence)
        values.append(float(prior.elbo(state, evidence)))
        state = prior.m_step(state, evidence)
        values.append(float(prior.elbo(state, evidence)))
    assert min(b - a for a, b in itertools.pairwise(values)) >= -1e-9
    assert values[-1] > values[0] + 1e-3


@pytest.mark.parametrize("mode", MODES)
def test_unseen_pairs_enter_nothing(mode):
    evidence = noise(10, 2, density=0.6)
    other = evidence._replace(log_lik=torch.where(evidence.seen, evidence.log_lik, -77.0))
    prior = SBM(3, mode, learn_B=True, learn_alpha=True)
    bounds = [prior.elbo(rounds(prior, x, 3), x) for x in (evidence, other)]
    a, b = seen_rounds(prior, evidence, 3), seen_rounds(prior, other, 3)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y) and bool(torch.isfinite(x).all())
    assert (a.w[~evidence.seen] == 0).all()
    assert torch.equal(*bounds)
    diagonal = a.w.diagonal()[evidence.seen.diagonal()]
    assert bool((diagonal > 0).all()) if mode == "gated" else bool((diagonal == 0).all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("K", "M"), [(1, 1), (1, 4), (2, 1), (2, 5), (6, 1), (3, 8)])
def test_small_federations_and_many_blocks(mode, K, M):
    evidence = noise(K, 3)
    prior = SBM(M, mode, learn_B=True, learn_alpha=True, restarts=2)
    state = rounds(prior, evidence, 3)
    assert all(bool(torch.isfinite(x).all()) for x in dense_state(state))
    torch.testing.assert_close(state.omega.sum(1), torch.ones(K, dtype=torch.float64))
    assert torch.isfinite(prior.elbo(state, evidence))


def test_nothing_seen_gives_no_edges():
    evidence = noise(5)._replace(seen=torch.zeros(5, 5, dtype=torch.bool))
    state = seen_rounds(SBM(2, learn_B=True), evidence, 2)
    assert (state.w == 0).all() and bool(torch.isfinite(state.omega).all())


@pytest.mark.parametrize("T", [1.0, 2.5])
def test_one_block_is_a_sigmoid(T):
    evidence = noise(7)
    state = seen_rounds(SBM(1, temperature=T, b_in=0.5, null_loglik=0.0), evidence, 1)
    torch.testing.assert_close(state.w, torch.sigmoid(evidence.log_lik / T))
    learned = seen_rounds(
        SBM(1, b_in=0.3, learn_B=True, pseudo_count=0.0, null_loglik="uniform"), evidence, 1
    )
    logit = math.log(0.3 / 0.7)
    torch.testing.assert_close(learned.w, torch.sigmoid(evidence.log_lik - UNIFORM + logit))
    torch.testing.assert_close(learned.B[0, 0], learned.w.mean())


def test_temperature_limits_and_modes():
    evidence = noise(7)
    soft = seen_rounds(SBM(3, temperature=1e9), evidence, 1).w
    torch.testing.assert_close(soft, torch.full_like(soft, 0.5))
    hard = seen_rounds(SBM(3, temperature=1e-9), evidence, 1).w
    assert bool(((hard < 1e-9) | (hard > 1 - 1e-9)).all())
    entropy, likelihood = (
        seen_rounds(SBM(3, temperature_mode=mode), evidence, 2)
        for mode in ("entropy", "likelihood")
    )
    assert torch.equal(entropy.w, likelihood.w)
    differs = seen_rounds(SBM(3, temperature=2.0, temperature_mode="likelihood"), evidence, 1).w
    assert not torch.allclose(differs, seen_rounds(SBM(3, temperature=2.0), evidence, 1).w)


def test_null_models():
    evidence = noise(6)
    per_client = tuple(float(x) for x in torch.linspace(-2, 0, 6))
    w = seen_rounds(SBM(1, b_in=0.5, null_loglik=per_client), evidence, 1).w
    torch.testing.assert_close(w, torch.sigmoid(evidence.log_lik - torch.tensor(per_client)))
    named = seen_rounds(SBM(2, null_loglik="uniform"), evidence, 1).w
    assert torch.equal(named, seen_rounds(SBM(2, null_loglik=UNIFORM), evidence, 1).w)
    for learned, same_as in ((True, UNIFORM), (False, 0.0)):
        auto = seen_rounds(SBM(2, null_loglik="auto", learn_B=learned), evidence, 2).w
        assert torch.equal(
            auto, seen_rounds(SBM(2, null_loglik=same_as, learn_B=learned), evidence, 2).w
        )


def test_extreme_numbers_stay_finite():
    K = 1000
    rng = torch.Generator().manual_seed(0)
    log_lik = -1e4 * torch.rand(K, K, generator=rng)  # float32, as from a GPU
    evidence = Evidence(log_lik, torch.ones(K, K, dtype=torch.bool), UNIFORM)
    prior = SBM(4, b_in=1 - 1e-6, b_out=1e-6, sweeps=2, learn_B=True, learn_alpha=True)
    state = rounds(prior, evidence, 1)
    assert all(bool(torch.isfinite(x).all()) for x in dense_state(state))
    torch.testing.assert_close(state.omega.sum(1), torch.ones(K, dtype=torch.float64))
    assert torch.isfinite(prior.elbo(state, evidence)) and state.w.dtype == torch.float64


def test_a_step_is_a_function_of_state_and_evidence():
    evidence = noise(12, density=0.9)
    prior = SBM(4, init_mode="random", restarts=2)
    evidence, start = evidence._replace(seed=7, round=3), prior.init(12, {}, 7)
    first, again = (dense_state(prior.e_step(start, evidence)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)) and first.started
    for other in (evidence._replace(seed=8), evidence._replace(round=4)):
        assert not torch.equal(first.omega, prior.e_step(start, other).omega)


def test_the_key_of_a_round_is_the_same_for_who_missed_the_rounds_before():
    chain = [derive(7, "sbm")]
    for _ in range(600):
        chain.append(derive(chain[-1], "next"))
    sweep_key.cache_clear()
    assert sweep_key(7, "sbm", 600) == chain[600]  # at once, without the others
    assert all(sweep_key(7, "sbm", t) == chain[t] for t in (0, 1, 2, 255, 256, 257, 512, 513))


def test_the_input_is_left_alone():
    evidence = noise(6)
    prior = SBM(2, learn_B=True)
    state = prior.init(6, {}, 0)
    before = [x.clone() for x in dense_state(state)]
    prior.m_step(prior.e_step(state, evidence), evidence)
    assert all(torch.equal(a, b) for a, b in zip(before, dense_state(state), strict=True))


def test_restarts_keep_the_best_bound():
    evidence, _ = planted(30, 5, seed=4)
    bounds = []
    for restarts in (1, 8):
        prior = SBM(5, init_mode="random", sweeps=3, restarts=restarts)
        bounds.append(float(prior.elbo(rounds(prior, evidence, 1, seed=2), evidence)))
    assert bounds[1] >= bounds[0]


def test_warm_start_goes_on_and_cold_start_forgets():
    evidence, _ = planted(30, 3)
    empty = noise(30, scale=0.01)
    warm = SBM(3, sweeps=1)
    state = warm.e_step(warm.init(30, {}, 0), evidence)
    kept = warm.e_step(state, empty)
    cold = SBM(3, sweeps=1, warm_start=False).e_step(state, empty)
    assert not torch.allclose(kept.omega, cold.omega)


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 0},
        {"temperature": 0.0},
        {"alpha": 0.0},
        {"b_in": 1.0},
        {"b_out": 0.0},
        {"sweeps": 0},
        {"restarts": 0},
        {"pseudo_count": -1.0},
        {"null_loglik": "unifrom"},
        {"compat": "released", "self_mode": "always"},
        {"compat": "released", "learn_B": True},
    ],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(reversed(options)))):
        SBM(**options)


def test_released_weights_are_a_sigmoid_of_the_loss():
    evidence, _ = planted(100)
    T = 2.0
    prior = SBM(2, temperature=T, compat="released")
    s = prior.init(100, {}, 0)
    plain = torch.sigmoid(evidence.log_lik / T)
    rng = torch.Generator().manual_seed(0)
    log_w, omega = released_sweeps(evidence.log_lik, s.alpha, s.B, T, rng)
    assert (log_w.exp() - plain).abs().mean() < 2e-3
    assert omega.sum(1).max() < 0.9  # the normaliser has swallowed the block prior
    right = SBM(2, temperature=T, sweeps=2, init_mode="random")
    corrected = right.e_step(right.init(100, {}, 0), evidence).w.dense()
    assert (corrected - plain).abs().mean() > 0.03


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_released_sweeps_are_two_and_give_the_w_between_them(temperature):
    """Against naive loops, with few clients: there the block prior is still alive."""
    K, M = 5, 2
    log_lik = noise(K, 3, scale=1.0).log_lik
    state = SBM(M, compat="released").init(K, {}, 0)
    rng = torch.Generator().manual_seed(4)
    log_w, omega = released_sweeps(log_lik, state.alpha, state.B, temperature, rng)

    rng = torch.Generator().manual_seed(4)  # the same draws once more
    gamma = 1 - torch.rand(K, M, dtype=torch.float64, generator=rng)
    draws = _gamma_draws(gamma, rng)
    start = draws / draws.sum(1, keepdim=True)
    orders = [torch.randperm(K, generator=rng).tolist() for _ in range(2)]
    arrays = (x.numpy() for x in (log_lik, state.alpha, state.B))
    expected = two_sweeps(*arrays, temperature, gamma.numpy(), start.numpy(), orders)
    torch.testing.assert_close(log_w.exp(), torch.as_tensor(expected[0]))
    torch.testing.assert_close(omega, torch.as_tensor(expected[1]))


def test_released_rows_are_normalised_over_the_neighbours():
    evidence = noise(12, 5, density=0.5)
    evidence.seen[0] = False
    prior = SBM(2, compat="released")
    state = prior.init(12, {}, 0)
    first = dense_state(prior.e_step(state, evidence))
    rows = evidence.seen.any(1).double()
    torch.testing.assert_close(first.w.sum(1), rows)
    assert (first.w[~evidence.seen] == 0).all() and (first.w[0] == 0).all()
    assert torch.equal(prior.e_step(state, evidence).w.dense(), first.w)
    later = prior.e_step(state, evidence._replace(round=1)).w.dense()
    assert not torch.equal(later, first.w)  # a new draw in every round


@pytest.mark.parametrize("strangers", [0, 1])
def test_released_rows_that_underflow_are_the_limit_of_the_formula(strangers):
    """sigmoid(x - c) is proportional to exp(x) where c is large; clients that a row has not met
    change nothing."""
    K = 2 + strangers
    met = torch.ones(K, K, dtype=torch.bool)
    met[:2, 2:] = met[2:, :2] = False
    prior, log_lik = SBM(1, compat="released"), torch.full((K, K), -1.0).double()
    gap = torch.tensor([[0.0, 0.7], [-0.4, 0.0]]).double()
    for depth in (100.0, 800.0, 5000.0):  # the first does not underflow
        log_lik[:2, :2] = gap - depth
        w = prior.e_step(prior.init(K, {}, 0), Evidence(log_lik, met)).w.dense()
        torch.testing.assert_close(w[:2, :2], gap.softmax(1))
        assert (w[~met] == 0).all() and bool(w.isfinite().all())


def test_the_e_step_ends_with_w():
    evidence = noise(9, 4, density=0.8)
    prior = SBM(3, sweeps=1, init_mode="random")
    state = prior.e_step(prior.init(9, {}, 0), evidence)
    pairs = prior._pairs(evidence)
    assert torch.equal(state.w.values, update_w(pairs, state.omega, state.B, 1.0))


def test_seeds_come_from_different_groups():
    evidence, same = planted(12, 4)
    seeds = farthest_seeds(similarity(evidence.log_lik, evidence.seen), 4, first=0)
    assert len(set(seeds)) == 4 and int(same[seeds][:, seeds].sum()) == 4
    line = torch.tensor([0.0, 1.0, 9.0, 10.0, 5.0]).double()  # 10 is far, 9 is next to it, 5 is not
    near = (-(line[:, None] - line[None, :]).abs()).exp()
    assert farthest_seeds(near, 3, first=0) == [0, 3, 4]
    assert sorted(farthest_seeds(near, 9, first=2)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_are_finite_also_where_words_are_possible(value: float) -> None:
    for build in (lambda: SBM(null_loglik=value), lambda: SBM(temperature=value)):
        with pytest.raises(ConfigError, match="give a finite number"):
            build()
