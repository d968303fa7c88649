"""Paired differences of two methods: means, both intervals, and who is worse off."""

import math

import pytest
import torch
from scipy import stats

from scool.evaluation.paired import interval, paired_difference

OURS = torch.tensor([[90.0, 70.0, 50.0, 61.0], [92.0, 69.0, 54.0, 60.0], [88.0, 71.0, 55.0, 59.0]])
THEIRS = torch.tensor([[80.0, 72.0, 50.0, 60.0]]).expand(3, -1)


def test_intervals_are_those_of_scipy_over_seeds_and_over_clients() -> None:
    gain = paired_difference(OURS, THEIRS)
    differences = (OURS - THEIRS).double()
    for found, values in (
        (gain.over_seeds, differences.mean(dim=1)),
        (gain.over_clients, differences.mean(dim=0)),
    ):
        test = stats.ttest_1samp(values.numpy(), 0).confidence_interval(0.95)
        assert found is not None and found.count == len(values)
        assert (found.low, found.high) == pytest.approx((test.low, test.high))
    assert gain.mean == pytest.approx(float(differences.mean()))


def test_splits_of_the_same_samples_widen_what_an_owner_may_call_noise() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 5.0])
    plain, wider = interval(values), interval(values, split_ratio=0.25)
    assert plain is not None and wider is not None
    assert wider.high - wider.low == pytest.approx(2**0.5 * (plain.high - plain.low))
    ours = -torch.tensor([[1.0, 1.0], [2.0, 1.1], [4.0, 0.9], [5.0, 1.0]])
    zero = torch.zeros_like(ours)
    assert paired_difference(ours, zero).clearly_worse == [0, 1]
    assert paired_difference(ours, zero, split_ratio=0.5).clearly_worse == [1]


def test_who_is_worse_off_is_named_the_worst_first() -> None:
    names = ["Bern", "Ulm", "Lyon", "Graz"]
    gain = paired_difference([[1.0, 5.0, 3.0, 9.0]], [[2.0, 5.0, 8.0, math.nan]], names=names)
    assert gain.worse == [2, 0]
    assert gain.names_worse == ["Lyon", "Bern"]
    assert gain.words().endswith("2 of 3 clients worse off: Lyon, Bern")
    assert gain.compared == 3
    assert gain.share_worse == pytest.approx(2 / 3)


def test_a_smaller_loss_is_a_gain() -> None:
    gain = paired_difference([[0.2, 0.9]], [[0.5, 0.8]], higher_is_better=False)
    assert gain.names_worse == ["1"]
    assert gain.mean == pytest.approx(0.1)


def test_round_off_is_no_loss() -> None:
    assert paired_difference([[0.1 + 0.2]], [[0.3]]).worse == []
    assert paired_difference([[0.3]], [[0.1 + 0.2]]).worse == []


def test_seeds_with_clients_of_their_own_are_not_averaged_by_place() -> None:
    ours, theirs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.zeros(2, 2)
    assert paired_difference(ours, theirs).share_worse == 0
    apart = paired_difference(ours, theirs, same_clients=False)
    assert apart.share_worse == 0.5
    assert apart.names_worse == ["1 of seed 1", "0 of seed 2"]
    for names in (["Bern", "Ulm"], ["Bern", "Ulm", "Lyon", "Graz"]):
        named = paired_difference(ours, theirs, same_clients=False, seeds=[7, 9], names=names)
        assert named.names_worse == ["Ulm of seed 7", f"{names[-2]} of seed 9"]
    assert apart.over_clients is not None and apart.over_clients.count == 4


def test_what_cannot_be_known_is_said() -> None:
    gain = paired_difference([[1.0, 2.0]], [[0.0, 0.0]])
    assert gain.over_seeds is None
    assert "over seeds unknown" in gain.words()
    nothing = paired_difference([[math.nan]], [[1.0]])
    assert nothing.words() == "no client has a number with both methods"
    assert nothing.to_dict()["share_worse"] is None
    assert interval(torch.tensor([1.0, math.nan])) is None


def test_other_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="not of the same runs"):
        paired_difference([[1.0, 2.0]], [[1.0]])
