"""Copies of the state: nobody changes one before it is given back, then its memory serves again."""

import torch

from scool.recording.checkpoint import HostCopies


def test_a_copy_does_not_follow_the_state_until_it_is_given_back() -> None:
    copies, state = HostCopies(), {"w": torch.ones(3), "flag": torch.tensor([True])}
    first = copies.take(state)
    state["w"].zero_()
    second = copies.take(state)
    assert first["w"].tolist() == [1, 1, 1] and second["w"].tolist() == [0, 0, 0]
    copies.give_back(first)
    third = copies.take(state)
    assert third["w"].data_ptr() == first["w"].data_ptr() and third["w"].tolist() == [0, 0, 0]
    assert second["w"].data_ptr() != third["w"].data_ptr()


def test_memory_is_taken_for_what_changes_its_shape_or_type() -> None:
    copies = HostCopies()
    copies.give_back(copies.take({"w": torch.ones(3)}))
    grown = copies.take({"w": torch.arange(4)})
    assert grown["w"].dtype == torch.int64 and grown["w"].tolist() == [0, 1, 2, 3]
    other = copies.take({"v": torch.zeros(2, 2).T})
    assert set(other) == {"v"} and other["v"].shape == (2, 2)
