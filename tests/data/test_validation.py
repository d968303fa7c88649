"""Setting validation samples aside."""

import pytest

from scool.data.build import with_validation
from scool.errors import DataError
from toys import classification, regression


def rows(split, client: int) -> set[int]:
    return set(split.index[client][split.mask[client]].tolist())


@pytest.mark.parametrize("make", [classification, regression])
def test_each_client_gives_a_share_and_nothing_is_lost(make) -> None:
    whole = make((5, 2, 10, 6))
    parts = with_validation(whole, 0.2, seed=1)
    assert parts.val.sizes.tolist() == [1, 1, 2, 1]
    for client in range(4):
        train, val = rows(parts.train, client), rows(parts.val, client)
        assert not train & val and train | val == rows(whole.train, client)
    # labels travel with their samples
    labels = {
        int(r): y
        for r, y in zip(whole.train.index.flatten(), whole.train.y.flatten(0, 1), strict=True)
    }
    for split in (parts.train, parts.val):
        for r, y in zip(split.index[split.mask], split.y[split.mask], strict=True):
            assert bool((labels[int(r)] == y).all())


def test_the_choice_belongs_to_the_seed() -> None:
    whole = classification((20, 20))
    picks = [rows(with_validation(whole, 0.3, seed).val, 0) for seed in (1, 1, 2)]
    assert picks[0] == picks[1] != picks[2]


def test_validation_data_that_is_there_stays() -> None:
    parts = with_validation(classification(), 0.3, seed=1)
    assert with_validation(parts, 0.3, seed=2) is parts


def test_a_client_with_one_sample_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"client 1 has 1 training sample.*Give the client more"):
        with_validation(classification((5, 1)), 0.2, seed=0)


def test_a_fraction_of_nothing_is_refused() -> None:
    with pytest.raises(Exception, match="validation = 0"):
        with_validation(classification(), 0.0, seed=0)


def test_a_class_that_validation_would_use_up_is_named_with_the_reason() -> None:
    federation = classification((2, 2), classes=2, groups=1)  # two of each class in all
    seeds = range(40)
    messages = []
    for seed in seeds:
        try:
            with_validation(federation, 0.5, seed)
        except DataError as error:
            messages.append(str(error))
    assert 0 < len(messages) < len(seeds)  # where both clients give the same class away
    assert all("aside for validation leaves too few: client" in text for text in messages)


def test_the_last_sample_of_a_class_stays_where_not_all_must_be_judged() -> None:
    whole = classification((2, 2), classes=2, groups=1)
    given_back = 0
    for seed in range(40):
        parts = with_validation(whole, 0.5, seed, of_all=False)
        assert set(parts.train.y[parts.train.mask].tolist()) == {0, 1}
        given_back += int(parts.val.sizes.min() == 0)
        for client in range(2):
            train, val = rows(parts.train, client), rows(parts.val, client)
            assert not train & val and train | val == rows(whole.train, client)
    assert 0 < given_back < 40
