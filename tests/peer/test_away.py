"""Models and graphs of elastic runs, from owners' folders: who is away misses rounds, and nobody
loses what was learned."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import scool
from scool.algorithms import Tracks
from scool.algorithms.shared.settling import OVER
from scool.cli.main import run_command
from scool.data.build import with_validation
from scool.engine.local import LocalEngine
from scool.graph.edges import as_matrix
from scool.models import parameters_of
from scool.peer import keeping_up
from scool.peer.elastic import Elastic
from scool.peer.memory import MemoryNetwork, MemoryTransport
from scool.peer.post import Post
from scool.recording.checkpoint import flatten
from scool.recording.folder import RunFolder

pytest.importorskip("cryptography", reason="pip install scool[peer]")

from peer.pilots import ADDRESSES, NAMES, live, simulated
from scool.peer.pilot import Trial, make_pilot
from toys import classification, tanh_net

ROUNDS = 16
OPTIONS = {"epochs": 2, "batch_size": 4, "sparsify_round": 2, "fraction": 0.4}
DELAY = (0.05, 0.1)


@pytest.fixture
def pilot(tmp_path: Path) -> Path:
    folder = tmp_path / "pilot"
    trial = Trial(rounds=ROUNDS, mode="elastic", deadline=6.0)
    make_pilot(folder, ADDRESSES, trial, OPTIONS, classification())
    return folder


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    return RunFolder.open(folder / name / "run").rows()


def missed(folder: Path, name: str) -> list[int]:
    """The rounds that went by without this peer."""
    place = NAMES.index(name)
    return [row["round"] for row in rows_of(folder, name) if place in row.get("absent", [])]


def own_rows(folder: Path) -> torch.Tensor:
    """(K, K): of each peer its own row of the last graph."""
    graphs = [as_matrix(RunFolder.open(folder / n / "run").read_graph(ROUNDS - 1)) for n in NAMES]
    return torch.stack([graph[place] for place, graph in enumerate(graphs)])


def test_without_faults_it_is_the_simulation_up_to_rounding(pilot: Path) -> None:
    MemoryNetwork(4, delay=DELAY).run({place: live(pilot, place) for place in range(4)})
    expected = simulated(pilot)
    assert torch.allclose(own_rows(pilot), as_matrix(expected.graphs[ROUNDS - 1]), atol=1e-5)
    for place, name in enumerate(NAMES):
        assert not missed(pilot, name)
        model = scool.load_model(pilot / name / "run").network.state_dict()
        for n, t in expected.model(place).state_dict().items():
            assert torch.allclose(model[n], t, atol=1e-5)


@pytest.mark.parametrize("is_fresh", [False, True])
def test_who_was_killed_takes_part_again(pilot: Path, is_fresh: bool) -> None:
    """From its checkpoint, or with an empty folder: it takes the graph from the others."""
    network = MemoryNetwork(4, delay=DELAY)
    network.kill(1, at=1.4)
    run = pilot / "bob" / "run"
    if is_fresh:
        network.at(1.8, lambda: shutil.rmtree(run))
    network.start(1, live(pilot, 1), at=2.2)
    network.run({place: live(pilot, place) for place in range(4)})
    away = missed(pilot, "bob")
    assert 2 <= len(away) < ROUNDS - 3 and (away[0] == 0) == is_fresh
    rows = rows_of(pilot, "ann")
    assert rows[away[-1]]["absent"] == [1] and "absent" not in rows[-1]
    last = [as_matrix(RunFolder.open(pilot / n / "run").read_graph(ROUNDS - 1)) for n in NAMES]
    assert all(torch.allclose(graph, last[0], atol=1e-6) for graph in last)  # all agree again
    assert rows_of(pilot, "bob")[-1]["scores"][1] >= simulated(pilot).score[1] - 1.0
    assert run_command(["verify", str(run)]) == 0


def test_a_place_that_nobody_takes_and_an_owner_who_comes_late(tmp_path: Path) -> None:
    trial = Trial(rounds=ROUNDS, mode="elastic", deadline=3.0, places=6)
    make_pilot(tmp_path / "pilot", ADDRESSES, trial, OPTIONS, classification())
    network = MemoryNetwork(4, delay=DELAY)
    programs = {place: live(tmp_path / "pilot", place) for place in range(4)}
    network.start(3, programs.pop(3), at=5.0)
    network.run(programs)
    rows = rows_of(tmp_path / "pilot", "ann")
    assert rows[0]["absent"] == [3, 4, 5] and rows[-1]["absent"] == [4, 5]
    assert len(missed(tmp_path / "pilot", "dan")) >= 2


def test_the_recommended_method_bears_loss_and_absence(tmp_path: Path) -> None:
    """Who was away hears how far the others have come; owner i says what its weights are."""
    options = {"epochs": 1, "batch_size": 4, "fraction": 0.4, "kinds": "alone,graph"}
    trial = Trial(method="scool", rounds=8, mode="elastic", deadline=30.0)
    make_pilot(tmp_path / "pilot", ADDRESSES, trial, options, classification())
    network = MemoryNetwork(4, seed=1, loss=0.01, delay=(0.01, 0.02))
    network.kill(1, at=0.8)
    network.start(1, live(tmp_path / "pilot", 1), at=1.0)
    network.run({place: live(tmp_path / "pilot", place) for place in range(4)})
    away = missed(tmp_path / "pilot", "bob")
    assert away and max(away) < 6
    found = [rows_of(tmp_path / "pilot", name)[-1] for name in NAMES]
    expected = simulated(tmp_path / "pilot").history[-1]
    for place, row in enumerate(found):
        assert "absent" not in row
        assert row["scores"][place] >= expected["scores"][place] - 2.0
        told = [torch.tensor([w[place] for w in own["tracks"].values()]) for own in found]
        assert all(torch.allclose(weights, told[place], atol=0.02) for weights in told)


def test_who_comes_back_after_judging_is_over_is_not_taken_for_a_newcomer() -> None:
    """Those who give it the graph do not know its scores, which say that it has weights."""
    engine = LocalEngine(with_validation(classification(), 0.3, 0), tanh_net(), seed=0)
    method = Tracks(kinds="alone,common", evidence="sums")
    state = method.init(engine, parameters_of(tanh_net()))
    mine, theirs = (torch.full_like(state.scores, torch.nan) for _ in range(2))
    mine[1], theirs[0] = 70.0, 80.0
    given = keeping_up._common(state._replace(scores=theirs, calm=torch.tensor(OVER)))
    found = keeping_up._with_common(state._replace(scores=mine), given)
    assert found.calm == OVER and torch.equal(found.scores.isnan(), mine.isnan())


def test_neither_models_nor_their_momentum_travel_with_the_graph() -> None:
    engine = LocalEngine(with_validation(classification(), 0.3, 0), tanh_net(), seed=0)
    method = Tracks(kinds="alone,drawn", evidence="sums", aggregate="models")
    state = method.init(engine, parameters_of(tanh_net()))
    assert any("velocity" in name for name in flatten(state))
    given = keeping_up._common(state)
    assert not [name for name in given if name.endswith(("weight", "bias"))]
    assert "models/drawn/method/method/neighbours" in given


def test_a_late_comer_learns_from_others_though_nobody_gave_it_the_graph(
    pilot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after all have chosen their neighbours, and chooses its own."""
    monkeypatch.setattr(keeping_up.KeepingUp, "_with_graph", lambda self, state, *_: state)
    network = MemoryNetwork(4, delay=DELAY)
    programs = {place: live(pilot, place) for place in range(4)}
    network.start(3, programs.pop(3), at=10.0)
    network.run(programs)
    assert 4 <= len(missed(pilot, "dan")) < ROUNDS - 3
    assert float(own_rows(pilot)[3, :3].sum()) > 0.1


def test_the_graph_is_asked_for_until_it_is_there() -> None:
    """Those who have it may begin the round a moment later."""
    network, found = MemoryNetwork(2), []

    def give(me: MemoryTransport) -> None:
        post = Post(me, "run", 2, 100_000)
        while me.now() < 0.7:
            me.wait(0.7)
        post.say(3, keeping_up.STATE, tensors={"n": torch.ones(2)}, push=False)
        while me.now() < 2.0:
            me.wait(2.0)

    def take(me: MemoryTransport) -> None:
        view = Elastic(Post(me, "run", 2, 100_000), 9, 4.0, 2)
        view.source = (0,)
        part = keeping_up.KeepingUp(scool.LocalOnly(), view, view._post)
        post = view._post
        post.round = 3
        found.append(part._with_graph({"n": torch.zeros(2)}, 2, 3))

    network.run({0: give, 1: take})
    assert torch.equal(found[0]["n"], torch.ones(2))
