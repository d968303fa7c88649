"""Every method of the recipes keeps the contract: a new one is tested by being listed there."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from records import killed_after
from scool.algorithms import METHODS, SCooL
from scool.contracts import Engine
from scool.data.catalogue import DataConfig
from scool.data.federation import Federation
from scool.errors import DataError
from scool.evaluation.scores import describe_round, evaluate
from scool.graph.edges import as_matrix
from scool.models import ModelConfig
from scool.recording.checkpoint import flatten, save_checkpoint, unflatten
from scool.recording.folder import RunFolder, checkpoint_name
from scool.run.config import default_run
from scool.run.loop import fit
from scool.run.options import with_options
from scool.run.prepare import prepare_data
from toys import (
    assert_trees_equal,
    classification,
    is_finite,
    poisoned,
    regression,
    start,
    tanh_net,
)

ROUNDS = 3
SMALL = ModelConfig("mlp", hidden=(6,))  # two layers: some methods keep one of them at home


def method(name: str, lr: float = 0.05, **options: Any) -> Any:
    """A method as `scool run` would set it up, sparse after the second round."""
    algorithm = default_run(name, DataConfig()).algorithm
    algorithm = with_options(algorithm, {"lr": lr, "epochs": 2, "batch_size": 4} | options, "test")
    if isinstance(algorithm, SCooL):
        algorithm = with_options(algorithm, {"sparsify_round": 1, "fraction": 0.4}, "test")
    return algorithm


def steps(
    algorithm: Any, federation: Federation, rounds: int = ROUNDS, bad: int | None = None
) -> tuple[Any, Any, Any]:
    """The state after some rounds, their infos, and the engine; client `bad` has a NaN."""
    federation = prepare_data(federation, algorithm, seed=3)
    engine, theta0 = start(federation if bad is None else poisoned(federation, bad))
    state = algorithm.init(engine, theta0)
    infos = []
    for t in range(rounds):
        state, info = algorithm.step(engine, state, t)
        infos.append({**info, "graph": as_matrix(info["graph"])})
    return state, infos, engine


@pytest.fixture(params=sorted(METHODS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def check_round(
    algorithm: Any, state: Any, info: Any, engine: Any, federation: Federation, t: int
) -> None:
    K = federation.num_clients
    graph = as_matrix(info["graph"])
    assert graph.shape == (K, K) and is_finite(state.theta)
    assert bool(graph.isfinite().all()) and bool((graph >= 0).all())
    torch.testing.assert_close(graph.sum(dim=1).double(), torch.ones(K).double())
    assert info["train_loss"].shape == (K,)
    scorer = engine.view(
        "scores", algorithm.predictor(tanh_net(outputs=federation.num_outputs), federation.task)
    )
    scores = evaluate(scorer, state.theta, federation)
    assert bool(scores.loss.isfinite().all()) and bool(scores.score.isfinite().all())
    json.dumps(describe_round(t, info, scores, engine, federation), allow_nan=False)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_three_rounds(name: str, task: str) -> None:
    federation = classification() if task == "classification" else regression()
    algorithm = method(name)
    engine, theta0 = start(prepare_data(federation, algorithm, seed=3))
    state = algorithm.init(engine, theta0)
    for t in range(ROUNDS):
        state, info = algorithm.step(engine, state, t)
        check_round(algorithm, state, info, engine, federation, t)
    first = algorithm.init(engine, theta0).theta
    assert any(not torch.equal(t[0], first[n][0]) for n, t in state.theta.items())  # it learned


VERBS = {name for name, verb in vars(Engine).items() if inspect.isfunction(verb) and name[0] != "_"}
VERBS -= {"replicate", "begin_round", "quarantine"}


class Watched:
    """An engine that remembers which of its verbs are used, and which way models go."""

    def __init__(self, engine: Any, used: set[str], ways: set[str]) -> None:
        self.engine, self.used, self.ways = engine, used, ways

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)

        def verb(*values: Any, **options: Any) -> Any:
            self.used.add(name)
            if name == "mix":
                self.ways.add(options.get("via", "peers"))
            result = found(*values, **options)
            return Watched(result, self.used, self.ways) if name == "view" else result

        return verb if name in VERBS else found


def test_a_method_declares_the_verbs_it_uses_and_whom_it_meets(name: str) -> None:
    algorithm = method(name)
    engine, theta0 = start(prepare_data(classification(), algorithm, seed=3))
    watched = Watched(engine, set(), set())
    state = algorithm.init(watched, theta0)
    for t in range(4):
        state, _ = algorithm.step(watched, state, t)
    assert watched.used == algorithm.verbs
    if watched.ways:
        assert ("server" in watched.ways) == (algorithm.meets == "server")
    assert (watched.used == {"train"}) == (algorithm.meets == "nobody")


def test_a_graph_that_is_not_learned_does_not_depend_on_the_data(name: str) -> None:
    algorithm = method(name)
    if not algorithm.learns_graph:
        graphs = [steps(algorithm, classification(seed=s))[1][-1]["graph"] for s in (0, 1)]
        assert torch.equal(graphs[0], graphs[1])


@pytest.mark.parametrize("sizes", [(4,), (6, 4), (1, 6, 1), (1, 1)])
def test_one_client_two_clients_and_clients_of_one_sample(name: str, sizes: tuple) -> None:
    has_to_spare = max(sizes) if not method(name).judges_all else min(sizes)
    if has_to_spare == 1 and method(name).validation:
        with pytest.raises(DataError, match="1 training sample"):
            steps(method(name), regression(sizes))
        return
    if sum(sizes) > 2:
        federation = classification(sizes)
    else:  # two samples hold two classes
        federation = classification(sizes, classes=2)
    state, infos, engine = steps(method(name), federation)
    check_round(method(name), state, infos[-1], engine, federation, ROUNDS - 1)
    federation = regression(sizes)
    state, infos, engine = steps(method(name, lr=0.02), federation)
    check_round(method(name), state, infos[-1], engine, federation, ROUNDS - 1)


def test_a_client_in_quarantine_does_not_poison_the_others(name: str) -> None:
    for client in (0, 2):
        state, infos, engine = steps(method(name), classification(), bad=client)
        assert engine.active.tolist() == [i != client for i in range(4)]
        assert is_finite(state.theta)
        assert bool(infos[-1]["graph"].isfinite().all())
        loss = infos[-1]["train_loss"]
        assert loss.isfinite().tolist() == engine.active.tolist()


def test_the_state_survives_a_checkpoint(name: str, tmp_path: Path) -> None:
    """D31: save, restore into a fresh engine, and the next round is the same to the bit."""
    algorithm = method(name)
    federation = classification()
    for rounds in (1, 2):  # before and after the graph gets sparse
        state, _, engine = steps(algorithm, federation, rounds)
        expected, info = algorithm.step(engine, state, rounds)
        save_checkpoint(tmp_path / checkpoint_name(rounds), rounds, flatten(state))
        engine, theta0 = start(prepare_data(federation, algorithm, seed=3))
        loaded = RunFolder(tmp_path).load_checkpoint(rounds)
        restored = unflatten(algorithm.init(engine, theta0), loaded.tensors)
        assert loaded.rounds == rounds and type(restored) is type(state)
        assert_trees_equal(flatten(restored), flatten(state))
        assert all(
            a.dtype == b.dtype
            for a, b in zip(flatten(restored).values(), flatten(state).values(), strict=True)
        )
        found, other = algorithm.step(engine, restored, rounds)
        assert_trees_equal(flatten(found), flatten(expected))
        assert torch.equal(as_matrix(other["graph"]), as_matrix(info["graph"]))


def test_stopping_and_resuming_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    """D31 through `fit`, with a client that is in quarantine."""
    federation = poisoned(classification((5, 3, 8, 6, 4)), 3)
    options = {"seed": 2, "device": "cpu", "checkpoint_every": 2}
    fit(federation, SMALL, method(name), rounds=5, out=tmp_path / "a", **options)
    fit(federation, SMALL, method(name), rounds=3, out=tmp_path / "b", **options)
    killed_after(tmp_path / "b", 2)
    fit(federation, SMALL, method(name), rounds=5, out=tmp_path / "b", resume=True, **options)
    files = ["metrics.jsonl", *(f"graphs/{t:06d}.safetensors" for t in range(5))]
    for file in [*files, "checkpoint-000005.safetensors"]:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_results_do_not_depend_on_the_chunk(name: str) -> None:
    federation = classification()
    whole, parts = (
        fit(federation, SMALL, method(name), rounds=3, device="cpu", client_chunk=chunk)
        for chunk in (0, 1)
    )
    for n, t in whole.theta.items():
        torch.testing.assert_close(parts.theta[n], t, rtol=0, atol=1e-5)
