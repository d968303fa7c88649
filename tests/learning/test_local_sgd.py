"""Which samples each client sees at each step: a function of (seed, round, client) alone."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from scool.errors import ConfigError
from scool.learning.local_sgd import Batches, LocalSGD, draw_samples, plan_batches

SIZES = [7, 4, 1, 10]


def mask_of(sizes: list[int], width: int = 0) -> Tensor:
    return torch.arange(width or max(sizes))[None] < torch.tensor(sizes)[:, None]


def plan(sgd: LocalSGD, round: int = 0, seed: int = 0, ids: list[int] | None = None) -> Batches:
    ids = list(range(len(SIZES))) if ids is None else ids
    return plan_batches(sgd, mask_of(SIZES)[ids], torch.tensor(ids), round, seed)


def steps_of(batches: Batches, row: int) -> list[list[int]]:
    """The sample positions of each step of a client, padding left out."""
    return [
        batches.position[row, s][batches.weight[row, s] > 0].tolist()
        for s in range(batches.position.shape[1])
        if batches.active[row, s]
    ]


@pytest.mark.parametrize("round", [0, 1, 5])
def test_every_epoch_is_a_permutation_of_the_clients_own_samples(round: int) -> None:
    batches = plan(LocalSGD(epochs=3, batch_size=3), round)
    for client, size in enumerate(SIZES):
        steps = steps_of(batches, client)
        per_epoch = -(-size // 3)
        assert len(steps) == 3 * per_epoch
        orders = []
        for e in range(3):
            epoch = steps[e * per_epoch : (e + 1) * per_epoch]
            assert [len(batch) for batch in epoch[:-1]] == [3] * (per_epoch - 1)
            orders.append([row for batch in epoch for row in batch])
            assert sorted(orders[-1]) == list(range(size))
        if size >= 7:
            assert orders[0] != orders[1]  # a fresh shuffle, not the same again


def test_rounds_and_seeds_and_clients_shuffle_differently() -> None:
    sgd = LocalSGD(epochs=1, batch_size=20)
    mask, ids = mask_of([30, 30]), torch.arange(2)
    orders = {
        tuple(plan_batches(sgd, mask, ids, round, seed).position[client, 0].tolist())
        for round in (0, 1)
        for seed in (0, 1)
        for client in (0, 1)
    }
    assert len(orders) == 8


def test_steps_go_on_where_the_last_round_stopped() -> None:
    """Rounds of 2 steps, strung together, are the steps of one long round."""
    short = [plan(LocalSGD(steps=2, batch_size=3), round) for round in range(6)]
    long = plan(LocalSGD(steps=12, batch_size=3))
    for client in range(len(SIZES)):
        strung = [step for part in short for step in steps_of(part, client)]
        assert strung == steps_of(long, client)
        seen = Counter(row for step in strung for row in step)
        assert max(seen.values()) - min(seen.values()) <= 1 and len(seen) == SIZES[client]


def test_epochs_and_the_same_number_of_steps_agree() -> None:
    by_epoch = plan_batches(
        LocalSGD(epochs=2, batch_size=4), mask_of([8]), torch.tensor([3]), 1, seed=2
    )
    by_step = plan_batches(
        LocalSGD(steps=4, batch_size=4), mask_of([8]), torch.tensor([3]), 1, seed=2
    )
    assert torch.equal(by_epoch.position, by_step.position)


@pytest.mark.parametrize("sgd", [LocalSGD(epochs=2, batch_size=3), LocalSGD(steps=5, batch_size=4)])
def test_a_client_does_not_depend_on_who_is_planned_with_it_nor_on_padding(sgd: LocalSGD) -> None:
    whole = plan(sgd, round=2)
    for ids in ([2], [3, 0], [1, 2]):
        part = plan(sgd, round=2, ids=ids)
        for row, client in enumerate(ids):
            assert steps_of(part, row) == steps_of(whole, client)
    wide = plan_batches(sgd, mask_of(SIZES, width=25), torch.arange(4), 2, 0)
    assert all(steps_of(wide, c) == steps_of(whole, c) for c in range(4))


def test_weights_mark_samples_and_finished_clients() -> None:
    batches = plan(LocalSGD(epochs=1, batch_size=4))
    assert batches.position.shape == (4, 3, 4)
    assert batches.weight.sum(dim=(1, 2)).tolist() == SIZES
    assert batches.active.sum(dim=1).tolist() == [2, 1, 1, 3]
    assert set(batches.weight.unique().tolist()) == {0.0, 1.0}
    assert int(batches.position.max()) < 10 and int(batches.position.min()) >= 0
    huge = plan(
        LocalSGD(epochs=2, batch_size=10**9)
    )  # a batch is no larger than the largest client
    assert huge.position.shape == (4, 2, 10) and huge.weight.sum(dim=2)[:, 1].tolist() == SIZES


def test_draws_are_without_replacement_and_belong_to_their_stream() -> None:
    mask = mask_of(SIZES)
    position, weight = draw_samples(mask, torch.arange(4), 5, key=9)
    assert position.shape == weight.shape == (4, 5)
    assert weight.sum(dim=1).tolist() == [5, 4, 1, 5]
    for client, size in enumerate(SIZES):
        drawn = position[client][weight[client] > 0].tolist()
        assert len(set(drawn)) == len(drawn) and max(drawn) < size
    alone, _ = draw_samples(mask[3:], torch.tensor([3]), 5, key=9)
    assert torch.equal(alone[0], position[3])
    assert not torch.equal(draw_samples(mask, torch.arange(4), 5, key=10)[0], position)
    assert not torch.equal(draw_samples(mask[3:], torch.tensor([7]), 5, key=9)[0][0], position[3])


def test_all_samples_are_drawn_for_zero_or_too_many() -> None:
    for count in (0, 99):
        position, weight = draw_samples(mask_of(SIZES), torch.arange(4), count, key=1)
        assert position.shape == (4, 10) and weight.sum(dim=1).tolist() == SIZES


@pytest.mark.parametrize(
    "option",
    [
        {"lr": -0.1},
        {"lr": float("nan")},
        {"epochs": 0},
        {"steps": -1},
        {"batch_size": 0},
        {"momentum": 1.0},
        {"weight_decay": -1e-3},
    ],
)
def test_impossible_options_name_the_field(option: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        LocalSGD(**option)  # pyright: ignore[reportArgumentType]
