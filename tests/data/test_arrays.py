"""A person's own data."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from scool import LocalOnly, LocalSGD, fit
from scool.data.arrays import from_arrays
from scool.data.transform import CIFAR10
from scool.errors import ConfigError, DataError, ModelError

RNG = np.random.default_rng(0)


def client(size: int, labels: tuple[int, ...] = (0, 1)) -> tuple[np.ndarray, np.ndarray]:
    return RNG.normal(size=(size, 3)), np.resize(labels, size)


def test_pairs_of_unequal_sizes() -> None:
    own = [client(10), client(5, (1, 2)), client(1)]
    names = ["a", "b", "c"]
    f = from_arrays(own, groups=[0, 1, 0], client_names=names, val_fraction=0.25, classes="own")
    assert f.test.sizes.tolist() == [2, 1, 0]
    assert f.val.sizes.tolist() == [2, 1, 0] and f.train.sizes.tolist() == [6, 3, 1]
    assert f.classes.tolist() == [[True, True, False], [False, True, True], [True, False, False]]
    assert f.truth is not None and f.truth.tolist() == [[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]]
    assert f.train.x.dtype == torch.float32


def test_every_sample_lands_in_one_part() -> None:
    x = np.arange(20.0)
    f = from_arrays([(x[:12], np.zeros(12, int)), (x[12:], np.zeros(8, int))], val_fraction=0.3)
    for i, expected in enumerate((x[:12], x[12:])):
        found = [s.x[s.index[i]][s.mask[i]].flatten().tolist() for s in (f.train, f.val, f.test)]
        assert sorted(found[0] + found[1] + found[2]) == expected.tolist()


def test_four_arrays_mappings_and_datasets_are_the_same() -> None:
    (x, y), (xt, yt) = client(6), client(4)
    whole = TensorDataset(torch.tensor(x), torch.tensor(y))
    held = TensorDataset(torch.tensor(xt), torch.tensor(yt))
    forms: list[Any] = [
        (x, y, xt, yt),
        {"x_train": x, "y_train": y, "x_test": xt, "y_test": yt},
        {"x": x, "y": y, "x_test": torch.tensor(xt), "y_test": torch.tensor(yt)},
        (whole, held),
    ]
    f = from_arrays(forms)
    for i in range(4):
        np.testing.assert_allclose(f.train.x[f.train.index[i]], x.astype(np.float32))
        np.testing.assert_array_equal(f.test.y[i], yt)
    alone = from_arrays([whole], test_fraction=0.5)
    assert alone.train.sizes.tolist() == [3] and alone.test.sizes.tolist() == [3]


def test_own_validation_data() -> None:
    (x, y), (xv, yv) = client(6), client(2)
    f = from_arrays([{"x": x, "y": y, "x_val": xv, "y_val": yv}], val_fraction=0.5, test_fraction=0)
    assert (f.train.sizes.item(), f.val.sizes.item(), f.test.sizes.item()) == (6, 2, 0)


def test_regression() -> None:
    x = RNG.normal(size=(10, 2))
    f = from_arrays([(x, x @ [1.0, 2.0]), (x[:3], x[:3, 0])], task="regression")
    assert f.train.y.shape == (2, 8, 1) and f.train.y.dtype == torch.float32
    assert f.classes.shape == (2, 1) and f.num_outputs == 1
    wide = from_arrays([(x, x)], task="regression")
    assert wide.num_outputs == 2


def test_images_with_a_transform() -> None:
    images = RNG.integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
    f = from_arrays([(images, np.array([0, 1, 0, 1]))], transform=CIFAR10)
    assert f.train.x.dtype == torch.uint8
    with pytest.raises(DataError, match="uint8 and there is no transform"):
        from_arrays([(images, np.array([0, 1, 0, 1]))])


def test_tokens_stay_whole_numbers_from_the_arrays_to_a_prediction() -> None:
    """The label is whether word 0 occurs; only an embedding can tell."""
    clients: list[Any] = []
    for _ in range(3):
        x = RNG.integers(0, 20, (60, 5))
        clients.append((x, (x == 0).any(axis=1).astype(int)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = from_arrays(clients, tokens=True)
    few = [(x[:2], y[:2]) for x, y in clients[:1]] + clients[1:]
    with pytest.warns(UserWarning, match=r"1 of 3 clients have no test samples \(clients 0\)"):
        from_arrays(few)
    assert f.train.x.dtype == torch.int64
    assert from_arrays(clients).train.x.dtype == torch.float32
    net = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(40, 2))
    result = fit(f, net, LocalOnly(sgd=LocalSGD(lr=0.5)), rounds=8, device="cpu")
    assert float(result.history[-1]["train_loss"]) < float(result.history[0]["train_loss"]) / 2
    assert result.outputs(0, clients[0][0]).shape == (60, 2)
    with pytest.raises(ConfigError, match="give whole numbers"):
        result.predict(0, clients[0][0] + 0.5)
    with pytest.raises(DataError, match=r"client 1 train inputs are torch\.float32"):
        from_arrays([clients[0], (clients[1][0].astype("float32"), clients[1][1])], tokens=True)


def test_truth_by_rule_or_matrix() -> None:
    own = [client(5), client(5, (1, 2))]
    overlap, given = from_arrays(own, truth="overlap"), from_arrays(own, truth=torch.eye(2))
    assert overlap.truth is not None and overlap.truth.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert given.truth is not None and given.truth.tolist() == [[1, 0], [0, 1]]
    assert from_arrays(own).truth is None


def test_the_callers_arrays_are_copied() -> None:
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    f = from_arrays([(x, y)])
    x.fill_(7)
    assert float(f.train.x.max()) == 0


class Empty(Dataset):
    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ([], "no clients"),
        (None, "clients = None is not possible: give a list"),
        ([client(3), client(0)], "client 1 has no training sample"),
        ([client(3), ([], [])], "client 1 has no training sample"),
        ([Empty()], "client 0 has no training sample"),
        ([client(3), "text"], "client 1 is a str"),
        ([client(3), (1, 2, 3)], "client 1 is a tuple"),
        ([{"x_train": [[1.0]], "labels": [1]}], "entry 'labels'"),
        ([{"x_train": [[1.0]]}], "client 0 train data lacks y"),
        ([(np.zeros((3, 2)), np.zeros(2, int))], "one target per sample"),
        ([(np.zeros((3, 2)), np.zeros(3))], "labels are whole numbers .*y.astype"),
        ([(np.zeros((3, 2)), np.full(3, 0.5))], "labels are torch.float64"),
        ([client(3), (np.zeros((3, 4)), np.zeros(3, int))], "client 1 train samples have shape"),
        ([(np.zeros((2, 1)), np.array([0, -1]))], "label -1: labels are 0, 1, ..."),
        ([(np.zeros((2, 1)), ["cat", "dog"])], "labels are .*<U3, such as cat: encode labels as 0"),
        ([(np.zeros((2, 1)), np.array([0, None]))], "client 0 train labels are of type object"),
        ([(np.array([["a"]]), [0])], "client 0 train inputs are of type <U1"),
        ([(np.array([[1j]]), [0])], "client 0 train inputs are complex .*: give real ones"),
        ([(np.array([[1j]], object), [0])], "train inputs are of type object, such as 1j"),
        ([(torch.ones(1, 1), torch.ones(1) * 1j)], "client 0 train labels are complex"),
        ([(torch.eye(2).to_sparse(), [0, 1])], r"train inputs are sparse: give x.to_dense\(\)"),
        ([(csr_matrix(np.eye(2)), [0, 1])], r"inputs are a csr_matrix: give .*toarray\(\)"),
        ([(np.zeros((2, 1)), [[0], [1, 2]])], "labels have samples of different lengths, such"),
        ([(np.array([[1, "red"]], object), [0])], "of type object, such as red: .*from_frame"),
        ([client(3), client(3, (0, 10**10))], "client 1 has label 10000000000, .*encode labels"),
        ([client(60, (0, 5000))], "5001 classes for 60 samples.*num_classes"),
        ([client(20_000, (0, 100_000))], "100001 classes for 20000 samples"),
        ([(*client(4), *client(2, (7,)))], "class 7 in its task, but nobody holds"),
    ],
)
def test_refuses(own: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays(own, test_fraction=0)


def test_many_classes_are_possible_where_they_are_announced() -> None:
    f = from_arrays([client(6, (0, 5000))], num_classes=5001, test_fraction=0)
    assert f.num_outputs == 5001
    with pytest.raises(ConfigError, match="num_classes = 0"):
        from_arrays([client(4)], num_classes=0)


def test_groups_by_name() -> None:
    own = [client(5) for _ in range(4)]
    names = ["north", "south", "north", "east"]
    for given in (names, np.array(names)):
        f = from_arrays(own, groups=given)  # pyright: ignore[reportArgumentType]
        assert f.groups is not None and f.groups.tolist() == [0, 1, 0, 2]
        assert f.truth is not None and f.truth[0].tolist() == [0.5, 0, 0.5, 0]
    wrong: list[Any] = [["a", 1, "a", 1], [0, 1, None, 1], [0.0, 1.0, np.nan, 1.0], 5, [[0, 1]] * 4]
    for groups in wrong:
        with pytest.raises(DataError, match=r"groups .*: give a .* client"):
            from_arrays(own, groups=groups)


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ([[1.5, -0.5], [0, 1]], r"truth\[0, 1\] = -0.5"),
        ([[0.5, 0.5], [np.nan, 1]], r"truth\[1, 0\] = nan"),
        ([[0.5, 0.5], [1, 1]], r"sum to one \(row 1 sums to 2\)"),
        ([["a", "b"], ["c", "d"]], "truth cannot be read"),
    ],
)
def test_refuses_a_truth_that_is_no_graph(truth: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays([client(5), client(5)], truth=truth)


def test_samples_of_a_dataset_need_one_shape() -> None:
    class Ragged(Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            return torch.zeros(row + 1), 0

    with pytest.raises(DataError, match=r"inputs have shapes \(1,\) and \(2,\)"):
        from_arrays([Ragged()])


def test_refuses_options() -> None:
    with pytest.raises(DataError, match="label 1: labels are 0 to 0"):
        from_arrays([client(4)], num_classes=1)
    with pytest.raises(ConfigError, match=r"test_fraction = 1\.5"):
        from_arrays([client(4)], test_fraction=1.5)
    with pytest.raises(ConfigError, match="unknown task"):
        from_arrays([client(4)], task="ranking")  # pyright: ignore[reportArgumentType]


def mentioned(**options: Any) -> str:
    """What is warned about while a federation is made."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_arrays(**options)
    return " ".join(str(w.message) for w in caught)


def test_doubts_are_said() -> None:
    (x, y), noise = client(20), RNG.normal(size=20)
    assert mentioned(clients=[(x, y), (x + 1, y)]) == ""
    said = mentioned(clients=[(x, y), (x, y)])
    assert said.startswith("8 of 8 test rows are also training rows of other clients (clients 0, 1")
    said = mentioned(clients=[(x, y), (x, y * 0)])
    assert "1 of 2 clients have training rows of one class only (clients 1): alone they" in said
    said = mentioned(clients=[(x, y, x[:4], y[:4]), (x[:10], y[:10], x[10:], y[10:])])
    assert said.startswith(
        "4 of 14 test rows are also training rows of the same client (clients 0)"
    )
    holes = x.copy()
    holes[[3, 5], 1] = np.nan
    said = mentioned(clients=[(x, y), (holes, y)], test_fraction=0.0, client_names=["a", "b"])
    assert "2 of 2 clients have no test samples" in said
    assert "client 1 (b) is left out of every run, because 2 of its 20 training rows" in said
    said = mentioned(clients=[(x, 900 + noise), (x, 900 + noise)], task="regression")
    assert "targets are large (mean " in said and "standardise them" in said
    assert mentioned(clients=[(x, noise)], task="regression") == ""
    said = mentioned(clients=[(x, noise), (x, noise * 0)], task="regression")
    assert "1 of 2 clients have the same target in all test samples (clients 1): R^2" in said


@pytest.mark.parametrize("kind", [object, np.longdouble, ">f8"])
def test_numbers_are_numbers_in_whatever_array(kind: Any) -> None:
    x, y = client(10)
    f = from_arrays([(x.astype(kind), y.astype(object))])
    assert torch.equal(f.train.x, from_arrays([(x, y)]).train.x)


def test_names_of_clients_are_different() -> None:
    with pytest.raises(DataError, match="client_names has 'a' 2 times"):
        from_arrays([client(5)] * 3, client_names=["a", "b", "a"])
    with pytest.raises(DataError, match="2 client_names for 3 clients: give a name per client"):
        from_arrays([client(1)] * 3, client_names=["a", "b"])


def test_models_of_tokens_and_data_without_say_so() -> None:
    x, y = RNG.integers(0, 20, (30, 5)), np.resize([0, 1], 30)
    embeds = nn.Sequential(nn.Embedding(20, 2), nn.Flatten(), nn.Linear(10, 2))
    for given, model, message in (
        (from_arrays([(x, y)]), embeds, "make the federation with tokens=True"),
        (from_arrays([(x, y)], tokens=True), "linear", "begin the model with an embedding"),
        (from_arrays([(x + 20, y)], tokens=True), embeds, "the embedding knows 0 to 19"),
    ):
        with pytest.raises(ModelError, match=message):
            fit(given, model, LocalOnly(), rounds=1)
