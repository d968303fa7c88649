"""Peers that wait for each other compute what one process with all clients computes, to the bit."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.worlds import peer_engine, rounds_of, simulated, together
from scool.algorithms import METHODS
from scool.data.catalogue import DataConfig
from scool.errors import ConfigError
from scool.graph.edges import as_matrix
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.peer.offered import check_method
from scool.peer.post import PeerError
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
    algorithm = default_run(name, DataConfig()).algorithm
    options = {"lr": 0.05, "epochs": 2, "batch_size": 4} | options
    if name.startswith("scool-"):
        options = {"sparsify_round": 1, "fraction": 0.4} | options
    return with_options(algorithm, options, "test")


def is_offered(name: str) -> bool:
    try:
        check_method(default_run(name, DataConfig()).algorithm, name)
        return True
    except ConfigError:
        return False


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "scool-sbm": [{}, {"aggregate": "models"}],
    "dpsgd": [{"topology": "ring"}, {"topology": "ring", "order": "cta"}],
    "spdb": [{"topology": "ring"}, {"topology": "ring", "form": "primal-dual"}],
    "dfedpgp": [{"degree": 2}],
    "pens": [{"fraction": 0.5, "select_rounds": 2}],
    "fedfomo": [{"fraction": 0.5, "participation": 0.75}],
    "l2c": [{"sparsify_round": 1, "fraction": 0.5}, {"average": "models"}],
}
OFFERED = [name for name in METHODS if is_offered(name)]
CASES = [(name, options) for name in OFFERED for options in OPTIONS.get(name, [{}])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "options"), CASES)
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
        if name not in ("pens", "fedfomo", "l2c"):  # their peers know only their own row
            assert peer.ledger == engine.ledger


def test_who_breaks_is_left_out_by_all() -> None:
    """One has bad data, one diverges while it trains."""
    federation = overflowing(poisoned(classification((5, 3, 8, 6, 4)), 1), 3)
    algorithm, module = method("scool-sbm"), softmax_regression().float()
    state, _, engine = simulated(algorithm, federation, module, ROUNDS)
    assert engine.health.words.keys() == {1, 3}
    for i, (own, _, peer) in enumerate(together(algorithm, federation, module, ROUNDS)):
        assert_trees_equal(own.theta, {n: t[[i]] for n, t in state.theta.items()})
        assert peer.health.words == engine.health.words


def test_regression_differs_by_rounding_only() -> None:
    """Owners tell mean and spread of their targets, not the targets."""
    federation, module = regression(), tanh_net(outputs=2)
    algorithm = method("scool-sbm", lr=0.02)
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

    def live(transport: MemoryTransport) -> Any:
        engine, theta0 = peer_engine(transport, federation, module)
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
    for i, own in found.items():
        assert_trees_equal(own.theta, {n: t[[i]] for n, t in state.theta.items()})


def test_a_peer_with_other_numbers_stops_the_run() -> None:
    federation, module, algorithm = classification(), tanh_net(), method("scool-sbm")

    def live(transport: MemoryTransport) -> Any:
        engine, theta0 = peer_engine(transport, federation, module)
        own = algorithm if transport.place else replace(algorithm, cross_ema=0.1)
        return rounds_of(own, engine, theta0, ROUNDS)

    with pytest.raises(PeerError, match="has other losses or weights after round 1"):
        MemoryNetwork(4).run(dict.fromkeys(range(4), live))


REFUSED = {
    "fedavg": "needs a server",
    "ditto": "needs a server",
    "cga": "needs gather, .*train_at",
    "scool-attention": "needs gather, total",
    "dada": "needs fetch",
    "truth": "needs the true graph",
}


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_what_peers_cannot_do_is_refused_with_a_remedy(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*{why}.*Use scool-sbm, or dpsgd"):
        check_method(default_run(name, DataConfig()).algorithm, name)


def test_the_documentation_lists_every_method_where_it_belongs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "peers.md").read_text()
    rows = dict(re.findall(r"^\| (yes|need a server|need what .*) \| (`.*`) \|$", page, re.M))
    listed = {why: set(re.findall(r"`([^`]+)`", names)) for why, names in rows.items()}
    assert listed.pop("yes") == set(OFFERED)
    needs_server = {n for n in METHODS if default_run(n, DataConfig()).algorithm.meets == "server"}
    assert listed.pop("need a server") == needs_server
    [others] = listed.values()
    assert others == METHODS.keys() - needs_server - set(OFFERED)
