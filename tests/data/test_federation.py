"""What a federation promises, the true graphs, and data that is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from scool.data.build import from_partition, true_graph
from scool.data.federation import Federation
from scool.data.partition import explicit, noniid
from scool.errors import ConfigError, DataError


def small(**changes: Any) -> Federation:
    """Two clients: 0 has classes {8, 0} stored in that order, 1 has {0, 3}."""
    y = torch.tensor([8, 0, 0, 3, 3])
    x = torch.arange(5.0)[:, None]
    parts = explicit(torch.cat([y, torch.tensor([9])]), [[0, 1], [2, 3, 4]])
    made = from_partition("small", x, y, x + 10, torch.tensor([0, 3, 8, 8, 9]), parts)
    return replace(made, **changes)


def test_labels_keep_their_names_and_tests_cover_the_own_classes() -> None:
    f = small()
    assert f.num_clients == 2 and f.num_outputs == 10 and f.input_shape == (1,)
    assert f.train.y.tolist() == [[8, 0, 8], [0, 3, 3]]  # padding repeats the client's first
    assert f.train.index.tolist() == [[0, 1, 0], [2, 3, 4]]
    assert f.train.sizes.tolist() == [2, 3]
    assert [f.test.y[i][f.test.mask[i]].tolist() for i in range(2)] == [[0, 8, 8], [0, 3]]
    assert f.val.sizes.tolist() == [0, 0] and f.val.index.tolist() == [[0], [2]]


def test_masked_labels_do_not_depend_on_class_ids() -> None:
    """D30 for the data: renaming classes renames targets and tasks and changes nothing else."""
    y = torch.arange(10).repeat(20)
    x = torch.randn(200, 3)
    rename = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    parts = noniid(y, 10, 2, seed=0)
    renamed = explicit(rename[y], parts.indices)
    plain = from_partition("a", x, y, x, y, parts)
    other = from_partition("b", x, rename[y], x, rename[y], renamed)
    assert torch.equal(rename[plain.train.y], other.train.y)
    assert torch.equal(plain.classes, other.classes[:, rename])
    assert torch.equal(plain.test.index, other.test.index)
    assert torch.equal(plain.truth, other.truth)


def test_true_graphs_by_hand() -> None:
    classes = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]).bool()
    identical = [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    overlap = [[1 / 3] * 3 + [0]] * 3 + [[0, 0, 0, 1]]
    fraction = [[0.4, 0.4, 0.2, 0], [0.4, 0.4, 0.2, 0], [0.25, 0.25, 0.5, 0], [0, 0, 0, 1]]
    squared = [[4 / 9, 4 / 9, 1 / 9, 0]] * 2 + [[1 / 6, 1 / 6, 4 / 6, 0], [0, 0, 0, 1]]
    for kind, expected in (
        ("identical", identical),
        ("overlap", overlap),
        ("fraction", fraction),
        ("squared", squared),
    ):
        found = true_graph(classes, kind)  # pyright: ignore[reportArgumentType]
        torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=1e-7)
    with pytest.raises(ConfigError, match="did you mean 'overlap'"):
        true_graph(classes, "overlp")  # pyright: ignore[reportArgumentType]


def test_a_subset_of_classes_is_not_the_same_set() -> None:
    classes = torch.tensor([[1, 1], [1, 0]]).bool()
    assert true_graph(classes, "identical").tolist() == [[1, 0], [0, 1]]
    assert true_graph(classes.flip(0), "identical").tolist() == [[1, 0], [0, 1]]


def test_padding_never_shows_another_clients_row() -> None:
    y = torch.zeros(5).long()
    f = from_partition("p", torch.zeros(5, 1), y, torch.zeros(5, 1), y, explicit(y, [[0, 1], [3]]))
    assert f.train.index.tolist() == [[0, 1], [3, 3]] and f.val.index.tolist() == [[0], [3]]


def test_validation_comes_from_the_clients_own_training_samples() -> None:
    y = torch.arange(4).repeat(25)
    x = torch.randn(100, 2)
    parts = explicit(y, [range(0, 40), range(40, 99), [99]])
    f = from_partition("v", x, y, x, y, parts, val_fraction=0.25, seed=1)
    assert f.train.sizes.tolist() == [30, 45, 1] and f.val.sizes.tolist() == [10, 14, 0]
    for i, rows in enumerate(parts.indices):
        own = f.train.index[i][f.train.mask[i]].tolist() + f.val.index[i][f.val.mask[i]].tolist()
        assert sorted(own) == rows.tolist()
    again = from_partition("v", x, y, x, y, parts, val_fraction=0.25, seed=1)
    other = from_partition("v", x, y, x, y, parts, val_fraction=0.25, seed=2)
    assert torch.equal(f.val.index, again.val.index)
    assert not torch.equal(f.val.index, other.val.index)
    with pytest.raises(ConfigError, match="val_fraction = 1"):
        from_partition("v", x, y, x, y, parts, val_fraction=1.0)


def test_one_client_one_sample() -> None:
    y = torch.tensor([0, 1])
    f = from_partition("one", torch.zeros(2, 3), y, torch.zeros(2, 3), y, explicit(y, [[1]]))
    assert f.train.sizes.tolist() == [1] and f.test.sizes.tolist() == [1]
    assert f.truth is not None and f.truth.tolist() == [[1.0]]


def test_non_finite_inputs_are_left_to_the_engine() -> None:
    f = small()
    replace(f, train=f.train._replace(x=torch.full((5, 1), float("nan"))))


def test_moving_keeps_the_pool_shared() -> None:
    moved = small().to("cpu")
    assert moved.train.x.data_ptr() == moved.val.x.data_ptr()


def test_describe() -> None:
    text = replace(small(), groups=torch.tensor([0, 1]), client_names=("a", "b")).describe()
    assert "train samples       2 / 2 / 3 (min / median / max)" in text
    assert "groups              2 of 1 clients" in text and "classes per client  2" in text


def bad(part: str, **fields: Any) -> dict[str, Any]:
    return {part: getattr(small(), part)._replace(**fields)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (bad("train", mask=torch.tensor([[True] * 3, [False] * 3])), "client 1 has no training"),
        (bad("train", y=torch.tensor([[8, 0, 0], [0, 3, 10]])), "client 1 .* label 10: .* 0 to 9"),
        (bad("test", y=torch.full((2, 3), -1)), "client 0 has test label -1"),
        (bad("train", y=torch.tensor([[8, 0, 0], [0, 3, 5]])), "label 5, which is not among"),
        (bad("train", index=torch.tensor([[0, 1, 5], [2, 3, 4]])), "rows 0 to 5 of a pool of 5"),
        (bad("train", index=torch.tensor([[0, 1, -1], [2, 3, 4]])), "rows -1 to 4"),
        (bad("train", mask=torch.ones(2, 3)), "mask is torch.float32"),
        (bad("val", y=torch.zeros(2, 2).long()), "val data .* y has shape"),
        (bad("test", index=torch.zeros(3, 2).long()), "test data .* index has shape"),
        (bad("test", x=torch.zeros(9, 2)), r"inputs have shape \(2,\), not \(1,\)"),
        (bad("train", x=torch.zeros(5, 1, dtype=torch.uint8)), "uint8 and there is no transform"),
        ({"classes": torch.ones(2, 10).bool()}, "class 1 in its task, but nobody holds"),
        ({"truth": torch.eye(3)}, r"truth has shape \(3, 3\)"),
        ({"truth": torch.ones(2, 2)}, "rows that sum to one"),
        ({"truth": torch.full((2, 2), torch.nan)}, r"truth\[0, 0\] = nan"),
        ({"truth": torch.tensor([[1.0, 0.0], [2.0, -1.0]])}, r"truth\[1, 1\] = -1"),
        ({"groups": torch.zeros(3)}, "groups has shape"),
        ({"client_names": ("a",)}, "1 client_names for 2 clients"),
    ],
)
def test_unusable_data_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        small(**changes)


def test_messages_name_the_client() -> None:
    f = small(client_names=("north", "south"))
    with pytest.raises(DataError, match=r"client 1 \(south\)"):
        replace(f, train=f.train._replace(mask=torch.tensor([[True] * 3, [False] * 3])))
