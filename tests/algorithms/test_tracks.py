"""Several kinds of cooperation, mixed per owner by evidence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import scool
from scool.algorithms import Tracks
from scool.algorithms.between_rounds import Averaged, with_between
from scool.algorithms.shared.evidence import are_weights, from_samples, from_sums
from scool.algorithms.shared.held_out import TRIED, held_out
from scool.algorithms.shared.settling import CALM, OVER, needed_calm, settled
from scool.algorithms.tracks import _heard
from scool.data.build import with_validation, without_validation
from scool.data.catalogue import DataConfig
from scool.engine.local import LocalEngine
from scool.errors import ConfigError, DataError
from scool.graph.edges import as_matrix
from scool.models.mixture import Mixture, member
from scool.priors.tracks import STEPS
from scool.run.config import default_run
from scool.run.options import with_options
from scool.run.prepare import prepare_data
from toys import assert_trees_equal, classification, regression, start, tanh_net

SGD = scool.LocalSGD(lr=0.1, epochs=1, batch_size=4)


def after(method: Any, engine: Any, theta0: Any, rounds: int) -> Any:
    state = method.init(engine, theta0)
    for t in range(rounds):
        state, _ = method.step(engine, state, t)
    return state


def test_each_kind_trains_as_it_would_alone() -> None:
    """The models on all samples, the judges without those that are held out."""
    tracks = Tracks(sgd=SGD)
    whole = classification((7, 9, 8))
    engine, theta0 = start(prepare_data(whole, tracks, seed=3))
    state = after(tracks, engine, theta0, 3)
    everything, _ = start(without_validation(engine.federation))
    for a, (name, method) in enumerate(tracks.methods(3).items()):
        alone = after(method, everything, theta0, 3).theta
        assert_trees_equal(member(state.theta, a), alone)
        assert_trees_equal(state.judges[name].theta, after(method, engine, theta0, 3).theta)


@pytest.mark.parametrize("partition", ["permuted", "noniid", "sbm"])
def test_drawn_as_the_only_kind_is_the_method_scool_drawn(partition: Any) -> None:
    """Bit for bit, with slow momentum, an average of models, and graphs of tasks that overlap."""
    data = DataConfig("digits" if partition == "permuted" else "cifar10", partition=partition)
    small = {"lr": 0.1, "epochs": 1, "batch_size": 4}
    alone = with_options(default_run("scool-drawn", data), small, "test")
    recipe = default_run("scool", data)
    assert ("drawn" in recipe.algorithm.kinds) == (data.dataset == "cifar10")
    ours = with_options(recipe, small | {"kinds": "drawn"}, "test").algorithm
    between = alone.settings.slow_momentum, alone.settings.model_average
    method = with_between(alone.algorithm, *between)
    assert min(between) > 0 and ours.methods(6)["drawn"] == method
    engine, theta0 = start(prepare_data(classification((7, 9, 8, 6, 9, 7)), ours, seed=3))
    everything, _ = start(without_validation(engine.federation))
    state, expected = ours.init(engine, theta0), method.init(everything, theta0)
    for t in range(14):  # until the graph is sparse and peers are drawn
        state, info = ours.step(engine, state, t)
        expected, plain = method.step(everything, expected, t)
        assert_trees_equal(member(state.theta, 0), expected.theta)
        assert_trees_equal(state.models["drawn"].method.theta, expected.method.theta)
        torch.testing.assert_close(as_matrix(info["graph"]), as_matrix(plain["graph"]))
    assert all(not torch.equal(t, expected.theta[n]) for n, t in expected.method.theta.items())


def test_a_kind_with_momentum_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    federation = scool.digits(num_clients=4, groups=2, seed=0)
    tracks = Tracks(sgd=SGD, kinds="graph,drawn")
    settings: Any = {"device": "cpu", "checkpoint_every": 2}
    whole = scool.fit(federation, "mlp", tracks, rounds=5, **settings)
    out: Any = {"out": tmp_path / "run", **settings}
    scool.fit(federation, "mlp", tracks, rounds=2, **out)
    resumed = scool.fit(federation, "mlp", tracks, rounds=5, resume=True, **out)
    assert_trees_equal(resumed.theta, whole.theta)


def test_validation_samples_come_back_to_training() -> None:
    whole = classification((7, 9, 8))
    back = without_validation(with_validation(whole, 0.3, seed=0))
    assert back.train.sizes.tolist() == [7, 9, 8] and back.val.sizes.tolist() == [0, 0, 0]
    for i in range(3):
        rows = [f.train.index[i][f.train.mask[i]].sort().values for f in (whole, back)]
        assert torch.equal(rows[0], rows[1])
    own = replace(whole, val=whole.test)  # of another pool
    joined = without_validation(own)
    sizes = (whole.train.sizes + whole.test.sizes).tolist()
    assert joined.train.sizes.tolist() == sizes
    i, n = 1, int(whole.train.sizes[1])
    x = joined.train.x[joined.train.index[i][joined.train.mask[i]]][n:]
    assert torch.equal(x, whole.test.x[whole.test.index[i][whole.test.mask[i]]])


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_an_answer_is_the_average_of_those_of_the_kinds(task: str) -> None:
    federation = classification((9, 8)) if task == "classification" else regression((9, 8))
    tracks = Tracks(sgd=replace(SGD, lr=0.05), kinds="alone,common", pooling=1.0)
    result = scool.fit(federation, "mlp", tracks, rounds=3, device="cpu")
    assert isinstance(result.module, Mixture)
    x = torch.randn(5, *federation.input_shape)
    plain = result.module.members[0]
    tracks_ = result.history[-1]["tracks"]
    weights = torch.tensor([tracks_["alone"][0], tracks_["common"][0]])
    theta = scool.run.result.unstack(result.theta, 0)  # type: ignore[attr-defined]
    answers = [functional_call(plain, member(theta, a), (x,)) for a in range(2)]
    if task == "classification":
        beta = theta["sharpness"]
        absent = theta["trust"][:, None] * (1 - theta["classes"])
        shares = [(b * f - a).softmax(dim=1) for b, f, a in zip(beta, answers, absent, strict=True)]
        mean = sum(w * p for w, p in zip(weights, shares, strict=True)).log()
    else:
        mean = sum(w * f for w, f in zip(weights, answers, strict=True))
    torch.testing.assert_close(result.outputs(0, x), mean, rtol=1e-4, atol=1e-5)


def test_contradicting_groups_choose_the_graph_and_strangers_themselves() -> None:
    """Two groups that name digits differently: one model for all cannot explain both, and nothing
    is lost against the graph by itself."""
    federation = scool.digits(num_clients=8, groups=2, samples_per_client=40, seed=0)
    sgd = scool.LocalSGD(lr=0.2, epochs=2, batch_size=8)
    tracks = Tracks(sgd=sgd, fraction=0.5)
    settings: Any = {"rounds": 15, "device": "cpu", "eval_every": 15}
    result = scool.fit(federation, "mlp", tracks, **settings)
    graph = scool.fit(federation, "mlp", tracks.methods(8)["graph"], **settings)
    population = result.history[-1]["population"]
    assert population["graph"] > 0.8 and sum(population.values()) == pytest.approx(1)
    assert float((result.accuracy - graph.accuracy).mean()) > -1
    judged = {k: torch.tensor(v).mean() for k, v in result.history[-1]["held_out"].items()}
    assert judged["graph"] > judged["common"] + 10 and judged["graph"] > judged["alone"] + 2
    said = result.advice()
    assert said is not None and len(said) == 8
    assert sum(words.startswith(f"client {i} gains from") for i, words in enumerate(said)) >= 5
    assert not any("learns mostly alone" in words for words in said)


def test_judging_goes_on_while_weights_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scool.algorithms.shared.settling.CALM", 3)
    tracks = Tracks(sgd=SGD, kinds="alone,common")
    engine, theta0 = start(prepare_data(classification((7, 9, 8)), tracks, seed=3))
    state = after(tracks, engine, theta0, 1)
    moving = state._replace(anchor=1 - state.weights, calm=torch.tensor(2))
    moved, _ = tracks.step(engine, moving, 1)
    assert moved.calm == 0 and torch.equal(moved.anchor, moved.weights)
    small = torch.tensor([[0.97, 0.03]], dtype=torch.float64).expand(3, -1)
    monkeypatch.setattr("scool.algorithms.shared.evidence.with_strangers", lambda *_: small)
    calm, _ = tracks.step(engine, state._replace(anchor=small, calm=torch.tensor(2)), 1)
    assert calm.calm == OVER and calm.weights.tolist() == [[1.0, 0.0]] * 3
    later, info = tracks.step(engine, calm, 2)
    assert torch.equal(later.weights, calm.weights)
    assert_trees_equal(later.judges["alone"].theta, calm.judges["alone"].theta)
    assert_trees_equal(member(later.theta, 1), member(calm.theta, 1))  # nobody uses it
    name = next(iter(later.theta))
    assert name.startswith("members.0.") and not torch.equal(later.theta[name], calm.theta[name])
    assert bool(info["train_loss"].isfinite().all())


def test_slow_kinds_are_given_time() -> None:
    """[TRACK-calm]: weights that last moved in round 30 have settled in round 60, not in 50; and
    not before a moving average has forgotten the first models."""
    still = torch.tensor([[0.7, 0.3], [0.96, 0.04]], dtype=torch.float64)
    for moved_in, memory, over_in in (2, 0.0, 22), (30, 0.0, 60), (30, 0.98, 130), (30, 0.8, 60):
        anchor, calm = still, torch.tensor(0)
        for t in range(moved_in, over_in):  # the rounds after it, from 0
            assert calm < OVER
            weights, anchor, calm = settled(still, anchor, calm, needed_calm(t, memory))
        assert calm == OVER and weights.tolist() == [[0.7, 0.3], [1.0, 0.0]]
    _, anchor, calm = settled(still, still.flip(1), torch.tensor(CALM + 100), CALM)
    assert calm == 0 and torch.equal(anchor, still)


def test_who_was_away_has_the_weights_of_the_population() -> None:
    tracks = Tracks(sgd=SGD, kinds="alone,common")
    engine, theta0 = start(prepare_data(classification((7, 9, 8)), tracks, seed=3))
    engine.health.absent[1] = True
    state = after(tracks, engine, theta0, 2)
    torch.testing.assert_close(state.weights[1], state.population)
    assert bool(state.scores[1].isnan().all()) and bool(state.scores[[0, 2]].isfinite().all())
    engine.health.absent[1], engine.health.absent[0] = False, True
    later, _ = tracks.step(engine, state, 2)
    assert torch.equal(later.weights[0], state.weights[0])
    assert bool(later.scores.isfinite().all())


def test_a_model_of_one_layer_has_no_body() -> None:
    settings: Any = {"rounds": 2, "device": "cpu"}
    result = scool.fit(classification((9, 8)), "linear", Tracks(sgd=SGD), **settings)
    assert isinstance(result.module, Mixture) and len(result.module.members) == 3


def test_sure_models_are_made_as_sure_as_they_are_right() -> None:
    """[TRACK-beta]: by a search over the same values."""
    engine, theta0 = start(with_validation(classification((30, 40, 20)), 0.5, seed=0))
    theta = {name: 30 * t for name, t in engine.replicate(theta0).items()}
    seen = held_out(engine, [theta, engine.replicate(theta0)])
    assert seen.log_lik.shape[2] == 2 and bool((seen.sharpness[0] < 1).all())
    module, val = tanh_net(outputs=engine.federation.num_outputs), engine.federation.val

    def explained(tried: tuple[float, float]) -> float:
        means = []
        for i in range(3):
            x = val.x[val.index[i][val.mask[i]]].double()
            outputs = functional_call(module, {n: t[i] for n, t in theta.items()}, x)
            outputs = tried[0] * outputs - tried[1] * ~engine.federation.classes[i]
            means.append(-cross_entropy(outputs, val.y[i][val.mask[i]]))
        return float(torch.stack(means).mean())

    best = max(TRIED, key=explained)
    assert (float(seen.sharpness[0]), float(seen.trust[0])) == best
    assert float(seen.log_lik[..., 0].nanmean(1).mean()) == pytest.approx(explained(best))


def strangers() -> scool.Federation:
    """Four owners with two of four classes each: what is easy to tell apart is another owner's."""
    rng = torch.Generator().manual_seed(0)
    held = [(0, 1), (2, 3), (0, 1), (2, 3)]
    clients = []
    for classes in held:
        y = torch.tensor(classes)[torch.arange(60) % 2]
        x = torch.randn(60, 6, generator=rng)
        x[:, 0] += 3.0 * (y % 2) - 1.5  # which of its two; nothing says whose they are
        clients.append((x, y))
    return scool.from_arrays(clients, classes="own")


@pytest.mark.parametrize("evidence", ["samples", "sums"])
def test_a_model_of_others_is_told_which_classes_an_owner_holds(evidence: Any) -> None:
    """By itself a common model answers with classes of others half of the time, and the evidence
    would be against it though it tells an owner's own classes apart."""
    tracks = Tracks(sgd=SGD, kinds="common", evidence=evidence)
    settings: Any = {"rounds": 8, "device": "cpu"}
    result = scool.fit(strangers(), "mlp", tracks, **settings)
    plain = scool.fit(strangers(), "mlp", scool.FedAvg(sgd=SGD), **settings)
    unmasked = [float(run.history[-1]["unmasked_accuracy_mean"]) for run in (result, plain)]
    assert unmasked[1] < 70 and unmasked[0] > 90
    theta = result.theta
    assert theta["classes"].tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]] * 2
    assert bool((theta["trust"] > 0).all())
    told = result.model(1)
    x = result.federation.test.x[:5]
    assert bool((told(x).argmax(dim=1) >= 2).all())


def test_a_mixture_of_an_older_record_trusts_all_alike() -> None:
    module = torch.nn.Linear(3, 4)
    old, new = (Mixture(module, 2, "classification", n) for n in (0, 1))
    assert "classes" not in old.state_dict() and "trust" not in old.state_dict()
    x = torch.randn(5, 3)
    torch.testing.assert_close(old(x), new(x))


def test_a_member_without_weight_may_be_anything() -> None:
    federation = classification((9, 8))
    result = scool.fit(federation, "mlp", Tracks(sgd=SGD), rounds=1, device="cpu")
    assert isinstance(result.module, Mixture)
    theta = {n: t[0].clone() for n, t in result.theta.items()}
    theta["log_weights"] = torch.tensor([0.0, -69.0, -69.0, -69.0])
    x = torch.randn(5, *federation.input_shape)
    fine = functional_call(result.module, theta, (x,))
    for name in [n for n in theta if n.startswith("members.3.")]:
        theta[name] = theta[name] + torch.inf
    assert torch.equal(functional_call(result.module, theta, (x,)), fine)


def test_a_kind_that_breaks_leaves_its_owner_in_the_run() -> None:
    tracks = Tracks(sgd=SGD, kinds="alone,common")
    engine, theta0 = start(prepare_data(classification((7, 9, 8)), tracks, seed=3))
    state = after(tracks, engine, theta0, 1)
    broken = {n: t.clone() for n, t in state.judges["common"].theta.items()}
    for t in broken.values():
        t[1] = torch.nan
    judges = {**state.judges, "common": state.judges["common"]._replace(theta=broken)}
    state, info = tracks.step(engine, state._replace(judges=judges), 1)
    assert bool(engine.active.all()) and not engine.health.reasons
    assert all(bool(weights.isfinite().all()) for weights in info["tracks"].values())
    assert state.lost.sum() >= 1 and bool(state.lost[1, 1, 1])
    fresh, _ = start(engine.federation)  # as after a resume: the engine knows nothing
    again, _ = tracks.step(fresh, state, 2)
    assert torch.equal(again.lost, state.lost)
    expected, info = tracks.step(engine, state, 2)
    assert_trees_equal(again.theta, expected.theta)


def test_models_are_loaded_and_exported(tmp_path: Path) -> None:
    federation = scool.digits(num_clients=4, groups=2, seed=0)
    result = scool.fit(
        federation, "mlp", Tracks(sgd=SGD), rounds=2, device="cpu", out=tmp_path / "run"
    )
    x = federation.test.x[:20]
    result.export(tmp_path / "out")
    for place in ("run", "out"):
        model = scool.load_model(tmp_path / place, 2)
        torch.testing.assert_close(model(x), result.outputs(2, x))


def test_wrong_kinds() -> None:
    for kinds, words in (("", "some of"), ("alone,alone", "once"), ("alone,graf", "graph")):
        with pytest.raises(ConfigError, match=words):
            Tracks(kinds=kinds)


def test_views_share_the_ledger_and_not_the_health() -> None:
    engine, theta0 = start(with_validation(classification((7, 9, 8)), 0.3, seed=0))
    view = engine.view("a", whole=True)
    assert engine.view("a", whole=True) is view and view is not engine.view("b")
    assert view.sizes.tolist() == [7, 9, 8] and engine.sizes.tolist() != [7, 9, 8]
    view.train(view.replicate(theta0), SGD, 0)
    assert engine.ledger.close_round().samples == 24
    view.quarantine({0: scool.health.BROKEN_DATA})  # type: ignore[attr-defined]
    assert bool(engine.active.all()) and isinstance(view, LocalEngine)


def test_sums_come_to_the_weights_of_samples() -> None:
    """Step by step of EM, a step in each round, while nothing else moves."""
    federation = with_validation(classification((30, 40, 20)), 0.5, seed=0)
    engine, theta0 = start(federation)
    passes = replace(SGD, epochs=3)
    judges = [engine.train(engine.replicate(theta0), passes, t).theta for t in (0, 1)]
    whole = from_samples(engine, judges, 20.0)
    pi = torch.full((2,), 0.5, dtype=torch.float64)
    assert 0.1 < float(whole.population[0]) < 0.9  # else any rule would come there
    for _ in range(STEPS):
        sums = from_sums(engine, judges, pi, 20.0)
        pi = sums.population
    torch.testing.assert_close(pi, whole.population, atol=1e-6, rtol=0)
    torch.testing.assert_close(sums.weights, whole.weights, atol=1e-6, rtol=0)
    assert torch.equal(sums.sharpness, whole.sharpness)
    torch.testing.assert_close(sums.scores, whole.scores)


def test_sums_of_targets_and_of_who_is_not_there() -> None:
    engine, theta0 = start(with_validation(regression((20, 30, 16)), 0.5, seed=0))
    judges = [engine.replicate(theta0), engine.train(engine.replicate(theta0), SGD, 0).theta]
    engine.health.absent[1] = True
    whole = from_samples(engine, judges, 20.0)
    sums = from_sums(engine, judges, whole.population, 20.0)
    torch.testing.assert_close(sums.population, whole.population, atol=1e-6, rtol=0)
    torch.testing.assert_close(sums.weights[[0, 2]], whole.weights[[0, 2]], atol=1e-6, rtol=0)
    assert bool(sums.weights[1].isnan().all())  # nobody speaks for it


def test_what_an_owner_predicts_is_not_for_others_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that tells of targets where the others have classes halts nobody."""
    engine, theta0 = start(with_validation(classification((20, 30, 16)), 0.5, seed=0))
    judges = [engine.replicate(theta0), engine.train(engine.replicate(theta0), SGD, 0).theta]
    pi, gather = torch.full((2,), 0.5, dtype=torch.float64), engine.gather

    def told(rows: torch.Tensor) -> torch.Tensor:
        found = gather(rows)
        found[1, 0] = 1e308 if rows.shape[1] > 2 else found[1, 0]
        return found

    honest = from_sums(engine, judges, pi, 20.0)
    monkeypatch.setattr(engine, "gather", told)
    assert torch.equal(from_sums(engine, judges, pi, 20.0).weights, honest.weights)


def test_sums_leave_out_who_tells_what_cannot_be() -> None:
    rows = torch.tensor([[0.3, 0.7], [-0.2, 1.2], [0.3, 0.3], [torch.nan, 1.0]])
    assert are_weights(rows).tolist() == [True, False, False, False]


def test_the_median_says_when_judging_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of owners that count differently, because some missed something."""
    tracks = Tracks(sgd=SGD, kinds="alone,common", evidence="sums")
    engine, theta0 = start(prepare_data(classification((7, 9, 8)), tracks, seed=3))
    state = after(tracks, engine, theta0, 1)
    weights = torch.tensor([[0.98, 0.02]], dtype=torch.float64).expand(3, -1)
    for counts, is_over in ([OVER, 1, OVER], True), ([1, OVER, 20], False):
        rates = torch.tensor([0.0, 0.1, 0.1], dtype=torch.float64)  # one has not found any yet
        told = torch.cat([rates[:, None], torch.tensor(counts)[:, None], weights], dim=1)
        monkeypatch.setattr(engine, "gather", lambda _, told=told: told)
        heard = _heard(engine, state._replace(rate=torch.zeros(()).double()))
        assert float(heard.rate) == 0.1
        assert bool(heard.calm >= OVER) is is_over
        assert heard.weights[0].tolist() == pytest.approx([1.0, 0.0] if is_over else [0.98, 0.02])


@pytest.mark.parametrize("evidence", ["samples", "sums"])
def test_who_cannot_spare_a_sample_does_what_suits_the_others(evidence: Any) -> None:
    """An owner with a single sample takes part, learns, and is judged by nobody."""
    tracks = Tracks(sgd=SGD, kinds="alone,common", evidence=evidence)
    result = scool.fit(classification((9, 1, 8)), "mlp", tracks, rounds=3, device="cpu")
    last = result.history[-1]
    for kind, weights in last["tracks"].items():
        assert weights[1] == pytest.approx(last["population"][kind])
    assert [score is None for score in last["held_out"]["alone"]] == [False, True, False]
    said = result.advice()
    assert said is not None and "never judged itself" in said[1]


def test_nobody_can_spare_a_sample() -> None:
    with pytest.raises(DataError, match="client 0 has 1 training sample"):
        scool.fit(regression((1, 1)), "mlp", Tracks(sgd=SGD), rounds=1, device="cpu")
    engine, theta0 = start(regression((2, 2)))
    with pytest.raises(DataError, match="no validation samples"):
        Tracks(sgd=SGD).init(engine, theta0)


def test_validation_samples_of_some_owners_are_enough() -> None:
    some = with_validation(classification((9, 1, 8)), 0.3, seed=0, of_all=False)
    assert some.val.sizes.tolist() == [2, 0, 2] and some.train.sizes.tolist() == [7, 1, 6]
    tracks = Tracks(sgd=SGD, kinds="alone,common")
    assert prepare_data(some, tracks, seed=0) is some
    around = Averaged(tracks, 0.5)  # a wrapper asks for no more than the method in it
    assert prepare_data(some, around, seed=0) is some
    with pytest.raises(DataError, match="1 training sample"):
        with_validation(some, 0.3, seed=0)


def test_owners_in_other_units_are_judged_alike() -> None:
    """[TRACK-sigma]: what one owner's targets are measured in changes nobody's weights."""
    federation = with_validation(regression((20, 30, 16)), 0.5, seed=0)
    engine, theta0 = start(federation)
    fresh = engine.replicate(theta0)
    learned = engine.train(fresh, replace(SGD, epochs=9), 0).theta
    first = {n: torch.cat([learned[n][:1], t[1:]]) for n, t in fresh.items()}
    others = {n: torch.cat([fresh[n][:1], t[1:]]) for n, t in learned.items()}
    judges = [first, others]  # owner 0 is explained by one of them, the others by the other
    before = from_samples(engine, judges, 5.0)
    assert float(before.weights[0, 0]) > 0.6
    unit = torch.tensor([1.0, 1e6, 1.0], dtype=torch.float64)

    def told(theta: Any, split: Any, metric: Any, count: int) -> torch.Tensor:
        found = judge(theta, split, metric, count)
        found[:, 1:] *= unit[:, None] ** 2
        return found

    judge, engine.judge = engine.judge, told  # type: ignore[method-assign]
    after = from_samples(engine, judges, 5.0)
    sums = from_sums(engine, judges, after.population, 5.0)
    torch.testing.assert_close(after.weights, before.weights, atol=0.1, rtol=0)
    torch.testing.assert_close(sums.weights, after.weights, atol=1e-6, rtol=0)


def test_the_graph_says_how_many_peers_there_are_unless_told() -> None:
    """Models that learn from too few drift apart, and judges do not notice."""
    of = {f: Tracks(fraction=f, kinds="graph,drawn").methods(20) for f in (0.0, 0.225)}
    assert [of[f]["graph"].fraction for f in of] == [0.0, 0.225]
    assert [of[f]["drawn"].plain.fraction for f in of] == [0.5, 0.225]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_model_that_broke_though_its_judge_did_not_answers_no_more(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a rate near the edge: the models that answer train on more samples."""
    tracks = Tracks(sgd=SGD, kinds="alone,common", pooling=0.0)
    engine, theta0 = start(prepare_data(classification((7, 9, 8)), tracks, seed=3))
    whole = Tracks._train

    def wild(self: Tracks, *args: Any, **named: Any) -> Any:
        after, infos, lost = whole(self, *args, **named)
        if named["whole"]:
            loss = torch.tensor([0.5, torch.nan if is_lost else 1e9, 0.5])
            infos["common"] = infos["common"] | {"train_loss": loss}
            lost[1, 1] = is_lost
        return after, infos, lost

    calm = after(tracks, engine, theta0, 2)
    monkeypatch.setattr(Tracks, "_train", wild)
    found = after(tracks, engine, theta0, 2)
    assert found.weights[1].tolist() == [1.0, 0.0] != calm.weights[1].tolist()
    assert torch.equal(found.weights[[0, 2]], calm.weights[[0, 2]])
