"""The embedded federation: groups that name the digits differently."""

import pytest
import torch

from scool.data.digits import digit_images, digits, digits_by_class
from scool.errors import ConfigError


def test_default_federation() -> None:
    f = digits(seed=5)
    assert f.num_clients == 40 and f.input_shape == (64,) and f.train.x.dtype == torch.float32
    assert f.train.sizes.tolist() == [24] * 40 and f.test.sizes.tolist() == [357] * 40
    assert float(f.train.x.min()) == 0 and float(f.train.x.max()) == 1
    assert f.groups is not None and f.groups.tolist() == [i % 4 for i in range(40)]
    assert bool(f.classes.all())
    train, test = set(f.train.index.flatten().tolist()), set(f.test.index.flatten().tolist())
    assert len(train) == 960 and len(test) == 357 and not train & test
    balance = torch.stack([own.bincount(minlength=10) for own in f.train.y])
    assert int(balance.min()) >= 1 and int(balance.max()) <= 5
    expected = (f.groups[:, None] == f.groups[None, :]).double() / 10
    assert f.truth is not None
    torch.testing.assert_close(f.truth, expected)
    assert f.train.x is f.test.x


def test_each_group_has_one_way_to_name_digits() -> None:
    f, (_, y) = digits(seed=1), digit_images()
    assert f.groups is not None
    names = {}
    for group in range(4):
        own = f.groups == group
        for split in (f.train, f.test):
            pairs = {
                *zip(
                    y[split.index[own]].flatten().tolist(),
                    split.y[own].flatten().tolist(),
                    strict=True,
                )
            }
            assert len(pairs) == 10 and len({name for _, name in pairs}) == 10
            assert names.setdefault(group, pairs) == pairs
    assert len({tuple(sorted(pairs)) for pairs in names.values()}) == 4


def test_seed_decides_everything() -> None:
    first, again, other = digits(seed=3), digits(seed=3), digits(seed=4)
    assert torch.equal(first.train.y, again.train.y)
    assert torch.equal(first.train.index, again.train.index)
    assert not torch.equal(first.train.index, other.train.index)


@pytest.mark.parametrize(
    ("clients", "groups", "size"), [(1, 1, 1), (2, 2, 1), (7, 3, 5), (1440, 4, 1)]
)
def test_any_size(clients: int, groups: int, size: int) -> None:
    f = digits(clients, groups, size, val_fraction=0.5)
    assert f.num_clients == clients and int(f.train.sizes.min()) >= 1
    assert int(f.test.sizes.min()) >= 1


def test_too_many() -> None:
    with pytest.raises(ConfigError, match=r"100 clients x 24 samples do not fit the 1440 .* 14"):
        digits(100)
    with pytest.raises(ConfigError, match=r"groups = 5 .* 1 to 4"):
        digits(4, groups=5, samples_per_client=2)
    with pytest.raises(ConfigError, match="give 1 to 1440"):
        digits(2000, samples_per_client=1)


@pytest.mark.parametrize("kind", ["noniid", "sbm", "dirichlet", "iid"])
def test_by_class(kind: str) -> None:
    f = digits_by_class(kind, 20, seed=2, val_fraction=0.1)
    assert int(f.train.sizes.sum() + f.val.sizes.sum()) == 1440
    assert (f.truth is None) == (kind == "dirichlet")
    few = digits_by_class(kind, 20, seed=2, samples_per_client=10)
    assert int(few.train.sizes.max()) <= 10
