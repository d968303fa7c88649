"""D25 on synthetic labels, and the other ways to share samples out."""

import time

import pytest
import torch

from scool.data import partition
from scool.errors import ConfigError, DataError


def labels_in_random_order(classes: int, each: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.arange(classes).repeat(each)[torch.randperm(classes * each, generator=rng)]


def all_rows(parts: partition.Parts) -> list[int]:
    return torch.cat(parts.indices).tolist()


@pytest.mark.parametrize("kind", ["noniid", "sbm"])
@pytest.mark.parametrize(
    ("classes", "each", "per_client", "holders"), [(10, 5000, 2, 20), (100, 500, 10, 10)]
)
def test_the_papers_numbers(
    kind: str, classes: int, each: int, per_client: int, holders: int
) -> None:
    labels = labels_in_random_order(classes, each)
    parts = partition.share_out(kind, labels, 100, per_client, 0.5, seed=10)
    assert [len(rows) for rows in parts.indices] == [500] * 100
    assert parts.classes.sum(dim=1).tolist() == [per_client] * 100
    assert parts.classes.sum(dim=0).tolist() == [holders] * classes
    assert sorted(all_rows(parts)) == list(range(len(labels)))  # disjoint, nothing lost
    for rows, own in zip(parts.indices, parts.classes, strict=True):
        assert set(labels[rows].tolist()) == set(own.nonzero().flatten().tolist())


def test_sbm_groups_have_identical_classes_in_file_order() -> None:
    labels = labels_in_random_order(10, 43)
    parts = partition.noniid_sbm(labels, 20, 2)
    assert parts.groups is not None and parts.groups.tolist() == [
        g for g in range(5) for _ in "1234"
    ]
    for client in range(20):
        group, s = divmod(client, 4)
        assert parts.classes[client].nonzero().flatten().tolist() == [2 * group, 2 * group + 1]
        expected = []
        for label in (2 * group, 2 * group + 1):
            rows = [i for i, y in enumerate(labels.tolist()) if y == label]
            expected += rows[10 * s :] if s == 3 else rows[10 * s : 10 * s + 10]
        assert parts.indices[client].tolist() == expected


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize(("clients", "per_client"), [(20, 2), (7, 3), (12, 10)])
def test_any_number_of_classes_for_each_client(
    clients: int, per_client: int, unequal: bool
) -> None:
    labels = labels_in_random_order(10, 120)
    parts = partition.share_out("pathological", labels, clients, per_client, 0.5, 3, unequal)
    assert parts.classes.sum(dim=1).tolist() == [per_client] * clients
    holders = parts.classes.sum(dim=0)
    assert int(holders.max() - holders.min()) <= 1
    assert sorted(all_rows(parts)) == list(range(1200))  # disjoint, nothing lost
    sizes = [[int((labels[rows] == c).sum()) for rows in parts.indices] for c in range(10)]
    spread = max(max(s for s in own if s) - min(s for s in own if s) for own in sizes)
    assert spread > 20 if unequal else spread <= 1


def test_noniid_rows_are_partitions_of_the_classes() -> None:
    parts = partition.noniid(labels_in_random_order(10, 40), 20, 2, seed=1)
    for s in range(4):  # clients s R to s R + R - 1
        assert parts.classes[5 * s : 5 * s + 5].sum(dim=0).tolist() == [1] * 10
    assert len({tuple(own.tolist()) for own in parts.classes}) > 5


def test_same_seed_same_clients() -> None:
    labels = labels_in_random_order(10, 50)
    for kind in ("noniid", "pathological", "dirichlet", "iid"):
        first, again, other = (
            all_rows(partition.share_out(kind, labels, 10, 2, 0.5, seed)) for seed in (4, 4, 5)
        )
        assert first == again and first != other, kind


def test_impossible_numbers_are_refused_with_a_remedy() -> None:
    labels = labels_in_random_order(10, 20)
    with pytest.raises(ConfigError, match=r"classes_per_client = 3 .* divisor of the 10"):
        partition.noniid(labels, 10, 3, 0)
    with pytest.raises(ConfigError, match=r"clients = 12 .* multiple of 5 clients; give 10"):
        partition.noniid_sbm(labels, 12, 2)
    with pytest.raises(ConfigError, match="class 0 has 20 samples for 40 clients"):
        partition.noniid(labels, 200, 2, 0)
    with pytest.raises(ConfigError, match=r"classes_per_client = 11 .* give 1 to 10"):
        partition.pathological(labels, 10, 11, 0)
    with pytest.raises(ConfigError, match="give fewer clients"):
        partition.pathological(torch.tensor([0] * 99 + [1]), 50, 2, 0)
    with pytest.raises(ConfigError, match="did you mean 'noniid'"):
        partition.share_out("non-iid", labels, 10, 2, 0.5, 0)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 100.0])
def test_dirichlet_gives_everyone_something(alpha: float) -> None:
    labels = labels_in_random_order(10, 100)
    parts = partition.dirichlet(labels, 30, alpha, seed=2, min_size=5)
    assert sorted(all_rows(parts)) == list(range(1000))
    assert min(len(rows) for rows in parts.indices) >= 5


def test_dirichlet_alpha_sets_how_alike_clients_are() -> None:
    labels = labels_in_random_order(10, 1000)
    narrow, wide = (
        partition.dirichlet(labels, 20, alpha, seed=0).classes.sum().item() for alpha in (0.02, 50)
    )
    assert narrow < 100 and wide == 200


def test_dirichlet_of_1000_clients_is_quick() -> None:
    labels = labels_in_random_order(10, 5000)
    start = time.perf_counter()
    parts = partition.dirichlet(labels, 1000, 0.1, seed=0, min_size=10)
    assert time.perf_counter() - start < 2
    assert min(len(rows) for rows in parts.indices) >= 10


def test_as_many_clients_as_samples() -> None:
    labels = torch.tensor([0, 1, 1])
    for kind in ("dirichlet", "iid"):
        parts = partition.share_out(kind, labels, 3, 1, 0.1, 0)
        assert [len(rows) for rows in parts.indices] == [1, 1, 1]
        with pytest.raises(ConfigError, match=r"clients = 4 .* at most 3"):
            partition.share_out(kind, labels, 4, 1, 0.1, 0)


def test_iid_clients_have_all_classes_as_their_task() -> None:
    parts = partition.iid(labels_in_random_order(10, 3), 10, seed=0)
    assert bool(parts.classes.all()) and {len(rows) for rows in parts.indices} == {3}


def test_explicit() -> None:
    labels = torch.tensor([0, 2, 1])
    parts = partition.explicit(labels, [[0, 1], torch.tensor([2])])
    assert parts.classes.tolist() == [[True, False, True], [False, True, False]]
    with pytest.raises(DataError, match="client 1 has no sample"):
        partition.explicit(labels, [[0], []])
    with pytest.raises(DataError, match="client 0 asks for rows 1 to 3"):
        partition.explicit(labels, [[1, 3]])
    with pytest.raises(ConfigError):
        partition.explicit(labels, [])


def test_keep_some() -> None:
    labels = labels_in_random_order(10, 40)
    parts = partition.noniid_sbm(labels, 10, 2)
    few = partition.keep_some(parts, labels, 7, seed=1)
    assert {len(rows) for rows in few.indices} == {7}
    for whole, some in zip(parts.indices, few.indices, strict=True):
        assert set(some.tolist()) <= set(whole.tolist())
