"""Running out of memory: less at once, the same result, said once."""

import warnings

import pytest
import torch
from torch import Tensor

from scool.engine.local import LocalEngine
from scool.engine.machine import Capacity, MemoryWarning
from scool.engine.steps.phases import Phase
from scool.errors import ModelError
from scool.evaluation.scores import correct
from scool.learning.local_sgd import LocalSGD
from scool.learning.losses import CrossDraw
from toys import assert_trees_close, classification, scattered, start, tanh_net

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=4)


def cramped(engine: LocalEngine, clients: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device on which more than so many clients or 4 rows a client do not fit."""
    formulation, seen = engine._formulation, []

    def guarded(name: str) -> None:
        inner = getattr(formulation, name)

        def call(*args, **kwargs):
            theta = next(a for a in args if isinstance(a, dict))
            phases = [a.ids for a in args if isinstance(a, Phase)]  # these models, whosever
            count = len(phases[0] if phases else next(iter(theta.values())))
            seen.append(count)
            if count > clients:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate much")
            return inner(*args, **kwargs)

        monkeypatch.setattr(formulation, name, call)

    for name in ("train", "outputs", "shared_outputs", "gradient"):
        guarded(name)
    return seen


def test_the_chunk_is_halved_and_results_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = classification((5, 3, 8, 6, 4, 4, 2))
    roomy, theta0 = start(federation)
    theta = scattered(roomy, theta0)
    pairs = torch.rand(7, 7, generator=torch.Generator().manual_seed(1)) < 0.3

    def work(engine: LocalEngine) -> list[Tensor]:
        trained = engine.train(theta, SGD, 1)
        visited = engine.train_at(theta, pairs, SGD, 1)
        dense = engine.cross_loss(theta, torch.ones(7, 7, dtype=torch.bool), CrossDraw(), 0)
        sparse = engine.cross_loss(theta, pairs, CrossDraw(), 0)
        grads = engine.gradient(theta, "train")
        score = engine.measure(theta, "test", correct)
        flat = [
            t.flatten()
            for tree in (trained.theta, visited.theta, grads.theta)
            for t in tree.values()
        ]
        return [torch.cat(flat), trained.loss, visited.loss, dense, sparse, grads.loss, score]

    tight, _ = start(federation)
    seen = cramped(tight, 2, monkeypatch)
    expected = work(roomy)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = work(tight)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12, equal_nan=True)
    assert max(seen) == 7 and tight._capacity.clients == 1  # 7 -> 3 -> 1
    mine = [w for w in told if w.category is MemoryWarning]
    assert len(mine) == 1 and "fewer clients and samples are taken at once" in str(mine[0].message)
    assert tight.ledger.messages == roomy.ledger.messages  # what was repeated is counted once


def test_what_cannot_fit_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, theta0 = start(classification())
    cramped(engine, 0, monkeypatch)
    with (
        warnings.catch_warnings(),
        pytest.raises(ModelError, match="does not fit into memory even for one client"),
    ):
        warnings.simplefilter("ignore")
        engine.train(engine.replicate(theta0), SGD, 0)


def test_a_room_frees_before_it_tries_again() -> None:
    freed: list[int] = []
    room = Capacity(4, 16, free=lambda: freed.append(1))
    tries: list[int] = []

    def work(ids: Tensor) -> None:
        tries.append(len(ids))
        if len(ids) > 2:
            raise torch.OutOfMemoryError("no")

    with pytest.warns(MemoryWarning):
        room.each(torch.arange(5), work)
    assert tries == [4, 2, 2, 1] and freed == [1]


def test_a_room_shrinks_from_what_was_tried() -> None:
    tries: list[int] = []

    def work(ids: Tensor) -> None:
        tries.append(len(ids))
        if tries in ([5], [4, 1]):
            raise torch.OutOfMemoryError("no")

    for clients, expected, left in ((1000, [5, 2, 2, 1], 2), (4, [4, 1, 1], 2)):
        tries.clear()
        room = Capacity(clients, 16, free=lambda: None)
        with pytest.warns(MemoryWarning):
            room.each(torch.arange(5), work)
        assert tries == expected and room.clients == left


def test_bf16_is_near_and_not_the_same() -> None:
    federation = classification((8, 8, 8, 8))
    module = tanh_net().float()
    plain, theta0 = start(federation, module)
    rounded, _ = start(federation, module, precision="bf16")
    theta = plain.replicate(theta0)
    a, b = (engine.train(theta, SGD, 0).theta for engine in (plain, rounded))
    moved = max(float((a[n] - theta[n]).abs().max()) for n in a)
    apart = max(float((a[n] - b[n]).abs().max()) for n in a)
    assert 0 < apart < 0.1 * moved
    assert all(t.dtype == torch.float32 for t in b.values())
    assert_trees_close(b, rounded.train(theta, SGD, 0).theta, atol=0)
