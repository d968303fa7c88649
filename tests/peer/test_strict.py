"""Peers that wait for each other compute what one process with all clients computes, to the bit."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.worlds import peer_engine, rounds_of, simulated, together
from scool.algorithms import METHODS, Tracks
from scool.algorithms.shared.settling import OVER
from scool.data.catalogue import DataConfig
from scool.errors import ConfigError
from scool.graph.edges import as_matrix
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.peer.offered import averaging_models, check_elastic, check_method, on_peers
from scool.peer.post import AGREED, PeerError
from scool.run.config import default_run
from scool.run.options import with_options
from scool.run.prepare import prepare_data
from toys import (
    assert_trees_close,
    assert_trees_equal,
    classification,
    overflowing,
    poisoned,
    regression,
    softmax_regression,
    tanh_net,
)

ROUNDS = 3


def method(name: str, **options: Any) -> Any:
    """A method as `scool run` would set it up, sparse after the second round."""
    algorithm = on_peers(default_run(name, DataConfig()).algorithm)
    options = {"lr": 0.05, "epochs": 2, "batch_size": 4} | options
    if name.startswith("scool-"):
        options = {"sparsify_round": 1, "fraction": 0.4} | options
    return with_options(algorithm, options, "test")


def is_offered(name: str) -> bool:
    try:
        check_method(on_peers(default_run(name, DataConfig()).algorithm), name)
        return True
    except ConfigError:
        return False


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "scool": [
        {},
        {"kinds": "alone,graph,drawn", "aggregate": "models"},
        {"kinds": "alone,graph", "lr": 0.0},
    ],
    "scool-sbm": [{}, {"aggregate": "models"}],
    "dpsgd": [{"topology": "ring"}, {"topology": "ring", "order": "cta"}],
    "spdb": [{"topology": "ring"}, {"topology": "ring", "form": "primal-dual"}],
    "dfedpgp": [{"degree": 2}],
    "pens": [{"fraction": 0.5, "select_rounds": 2}],
    "fedfomo": [{"fraction": 0.5, "participation": 0.75}],
    "l2c": [{"sparsify_round": 1, "fraction": 0.5}, {"average": "models"}],
}
OFFERED = [name for name in METHODS if is_offered(name)]
SERVED = [n for n in METHODS if default_run(n, DataConfig()).algorithm.meets == "server"]
ALIKE = [torch.float32, torch.float64]
CASES = [
    (name, options, dtype)
    for name in OFFERED
    for options in OPTIONS.get(name, [{}])
    for dtype in (ALIKE[:1] if name in SERVED else ALIKE)
]


@pytest.mark.parametrize(("name", "options", "dtype"), CASES)
def test_equal_to_the_simulator_to_the_bit(name: str, options: dict, dtype: torch.dtype) -> None:
    algorithm, module = method(name, **options), tanh_net().to(dtype)
    federation = prepare_data(classification(), algorithm, seed=0)
    state, infos, engine = simulated(algorithm, federation, module, ROUNDS)
    peers = together(algorithm, federation, module, ROUNDS)
    for i, (own, told, peer) in enumerate(peers):
        assert_trees_equal(own.theta, {n: t[[i]] for n, t in state.theta.items()})
        for t in range(ROUNDS):
            found, expected = (as_matrix(run[t]["graph"]) for run in (told, infos))
            assert torch.equal(found[i], expected[i])
        assert peer.ledger.samples == engine.ledger.samples
        knows_one_row = name in ("pens", "fedfomo", "l2c")
        if not knows_one_row and name not in SERVED:  # of all others, not from a server
            assert peer.ledger == engine.ledger


def test_all_end_judging_in_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """And who breaks is left out of the evidence; the others go on without the judges."""
    monkeypatch.setattr("scool.algorithms.shared.settling.CALM", 2)
    monkeypatch.setattr("scool.algorithms.shared.settling.MOVED", 1.0)
    algorithm, module = method("scool", kinds="alone,common"), softmax_regression().float()
    whole = poisoned(classification((5, 9, 8, 6, 7)), 1)
    federation = prepare_data(whole, algorithm, seed=0)
    state, _, engine = simulated(algorithm, federation, module, 4)
    assert state.calm == OVER and engine.health.words.keys() == {1}
    for i, (own, _, peer) in enumerate(together(algorithm, federation, module, 4)):
        assert torch.equal(own.calm, state.calm)
        assert_trees_equal(own.theta, {n: t[[i]] for n, t in state.theta.items()})
        judged = {t for _, t, slot in peer._post._heard if slot.startswith("judge")}
        assert judged == {0, 1}


def test_what_a_server_would_average_each_peer_averages_itself() -> None:
    federation, module = classification(), tanh_net()
    _, _, engine = simulated(method("fedavg"), federation, module, ROUNDS)
    [(_, _, peer), *_] = together(method("fedavg"), federation, module, ROUNDS)
    assert engine.ledger.messages == {"server": ROUNDS * 2 * 4}
    assert peer.ledger.messages == {"mix": ROUNDS * 4 * 3}
    assert peer.ledger.bytes["mix"] * 2 == engine.ledger.bytes["server"] * 3


def test_who_breaks_is_left_out_by_all() -> None:
    """One has bad data, one diverges while it trains."""
    federation = overflowing(poisoned(classification((5, 3, 8, 6, 4)), 1), 3)
    algorithm, module = method("scool-sbm"), softmax_regression().float()
    state, _, engine = simulated(algorithm, federation, module, ROUNDS)
    assert engine.health.words.keys() == {1, 3}
    for i, (own, _, peer) in enumerate(together(algorithm, federation, module, ROUNDS)):
        assert_trees_equal(own.theta, {n: t[[i]] for n, t in state.theta.items()})
        assert peer.health.words == engine.health.words


@pytest.mark.parametrize("name", ["scool-sbm", "scool"])
def test_regression_differs_by_rounding_only(name: str) -> None:
    """Owners tell mean and spread of their targets, not the targets."""
    algorithm, module = method(name, lr=0.02), tanh_net(outputs=2)
    if name == "scool":
        algorithm = replace(algorithm, kinds="alone,graph")
    federation = prepare_data(regression(), algorithm, seed=0)
    state, _, _ = simulated(algorithm, federation, module, ROUNDS)
    for i, (own, _, _) in enumerate(together(algorithm, federation, module, ROUNDS)):
        assert_trees_close(own.theta, {n: t[[i]] for n, t in state.theta.items()})


@pytest.mark.parametrize("seed", range(3))
def test_a_bad_network_changes_nothing(seed: int) -> None:
    federation, module, algorithm = classification(), tanh_net(), method("scool-sbm")
    state, _, _ = simulated(algorithm, federation, module, ROUNDS)
    network = MemoryNetwork(4, seed=seed, loss=0.3, delay=(0.0, 0.4))
    for i, (own, _, _) in enumerate(together(algorithm, federation, module, ROUNDS, network)):
        assert_trees_equal(own.theta, {n: t[[i]] for n, t in state.theta.items()})
    assert network.now > 1.0


@pytest.mark.parametrize("behind", [0, 2])
def test_a_peer_that_dies_comes_back_from_its_checkpoint(behind: int) -> None:
    """The others wait; it repeats the rounds that its last checkpoint does not know."""
    federation, module, algorithm = classification(), tanh_net(), method("scool-sbm")
    state, _, _ = simulated(algorithm, federation, module, 6)
    network = MemoryNetwork(4, delay=(0.1, 0.2))
    saved: dict[int, Any] = {}
    posts: list[Any] = []

    def live(transport: MemoryTransport) -> Any:
        engine, theta0 = peer_engine(transport, federation, module)
        posts.append(engine._post)
        done = max(max(saved) - behind, 0) if saved else 0
        own = saved[done] if done else algorithm.init(engine, theta0)
        for t in range(done, 6):
            engine.begin_round(t)
            own, _ = algorithm.step(engine, own, t)
            if transport.place == 2:
                saved[t + 1] = own
        return own

    network.kill(2, at=2.0)
    network.start(2, live, at=30.0)
    found = network.run(dict.fromkeys(range(4), live))
    assert network.now > 30.0 and len(saved) == 6
    assert not [words for post in posts for words in post.problems]  # it says again what it said
    for i, own in found.items():
        assert_trees_equal(own.theta, {n: t[[i]] for n, t in state.theta.items()})


def test_a_round_of_few_records() -> None:
    """Who broke, how the round before ended and which model is there go in one record."""
    federation, module, algorithm = classification(), tanh_net(), method("scool-sbm")
    for _, _, peer in together(algorithm, federation, module, ROUNDS):
        for t in range(ROUNDS):
            said = {slot for _, round, slot in peer._post._heard if round == t}
            assert said == {"0-ready", "1-losses", "2-mix"}
            first = peer._post.heard(t, "0-ready").values()
            assert all((AGREED in message.body) == (t > 0) for message in first)


def test_a_peer_with_other_numbers_stops_the_run() -> None:
    federation, module, algorithm = classification(), tanh_net(), method("scool-sbm")

    def live(transport: MemoryTransport) -> Any:
        engine, theta0 = peer_engine(transport, federation, module)
        own = algorithm if transport.place else replace(algorithm, cross_ema=0.1)
        return rounds_of(own, engine, theta0, ROUNDS)

    with pytest.raises(PeerError, match="has other losses or weights after round 1"):
        MemoryNetwork(4).run(dict.fromkeys(range(4), live))


REFUSED = {
    "pfedgraph": "needs a server",
    "ifca": "needs a server",
    "cga": "needs .*train_at",
    "scool-attention": "needs total",
    "dada": "needs fetch",
    "truth": "needs the true graph",
}


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_what_peers_cannot_do_is_refused_with_a_remedy(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*{why}.*Use scool-sbm, or dpsgd"):
        check_method(default_run(name, DataConfig()).algorithm, name)


def test_the_recommended_method_is_refused_only_where_losses_of_samples_would_leave() -> None:
    with pytest.raises(ConfigError, match=r"'scool' does not run .*Leave evidence out, or set it"):
        check_method(Tracks(), "scool")
    check_method(on_peers(Tracks()), "scool")
    assert on_peers(Tracks()).verbs >= {"gather", "view", "judge"}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("scaffold", {}, "control variates would add up"),
        ("scool", {"aggregate": "updates"}, "aggregate = 'updates' is not possible"),
        ("spdb", {"form": "primal-dual"}, "dual variables would add up"),
    ],
)
def test_what_cannot_miss_anything_is_refused_in_elastic_runs(
    name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_elastic(method(name, **options), name)
    assert averaging_models(method("scool")).averages_updates == ""


def test_the_documentation_lists_every_method_where_it_belongs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "peers.md").read_text()
    rows = dict(re.findall(r"^\| (yes|need a server|need what .*) \| (`.*`) \|$", page, re.M))
    listed = {why: set(re.findall(r"`([^`]+)`", names)) for why, names in rows.items()}
    assert listed.pop("yes") == set(OFFERED)
    needs_server = set(SERVED) - set(OFFERED)
    assert listed.pop("need a server") == needs_server
    [others] = listed.values()
    assert others == METHODS.keys() - needs_server - set(OFFERED)
