"""Datasets by name, their configuration, and getting them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from scool.algorithms import DPSGD
from scool.data.catalogue import DATASETS, DataConfig, data_root, load
from scool.data.inventory import check, convert, fetch, status
from scool.errors import ConfigError, DataError
from scool.models import ModelConfig
from tiny_images import write_cifar10

RNG = np.random.default_rng(0)


def rows(count: int, image: str, label: str, grey: bool, classes: int) -> list[dict[str, Any]]:
    shape = (28, 28) if grey else (32, 32, 3)
    return [
        {image: Image.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8)), label: i % classes}
        for i in range(count)
    ]


def test_defaults() -> None:
    assert load(DataConfig()).num_clients == DataConfig().num_clients == 40
    synthetic = DataConfig(dataset="synthetic")
    assert load(synthetic).num_clients == synthetic.num_clients == 20
    assert DataConfig(dataset="mini-imagenet").num_clients == 100
    assert load(DataConfig(dataset="synthetic", task="regression")).task == "regression"


@pytest.mark.parametrize("dataset", ["digits", "synthetic"])
@pytest.mark.parametrize("clients", [1, 2, 3, 200])
def test_any_number_of_clients_works_with_defaults(dataset: str, clients: int) -> None:
    config = DataConfig(dataset=dataset, clients=clients)
    assert load(config, seed=1).num_clients == config.num_clients == clients


def test_the_seed_decides() -> None:
    config = DataConfig(partition="noniid", clients=10)
    first, again, other = (load(config, seed).train.index for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "cifar-10"}, "did you mean 'cifar10'"),
        ({"clients": -1}, "clients = -1"),
        ({"val_fraction": 1.0}, "val_fraction = 1.0"),
        ({"dirichlet_alpha": 0.0}, "dirichlet_alpha = 0.0"),
        ({"clients": 3, "groups": 4}, "groups = 4"),
        ({"samples_per_client": 100}, r"40 clients x 100 samples do not fit the 1440"),
        ({"task": "regression"}, "only synthetic"),
        ({"unequal_sizes": True}, "unequal_sizes"),
        ({"classes_per_client": 2}, "classes_per_client = 2"),
        ({"partition": "sbm", "groups": 2}, "groups = 2"),
        ({"partition": "sbm", "clients": 12}, "multiple of 5"),
        ({"dataset": "synthetic", "partition": "iid"}, "planted groups"),
        ({"dataset": "cifar10", "partition": "permuted"}, "only digits"),
    ],
)
def test_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(DataConfig(**options))


def test_where_data_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCOOL_DATA", raising=False)
    assert data_root() == Path("data")
    monkeypatch.setenv("SCOOL_DATA", "/elsewhere")
    assert data_root() == Path("/elsewhere") and data_root("here") == Path("here")


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.read])
def test_a_missing_dataset_says_what_to_put_where(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path}.* is missing: (unpack|put) .*{tmp_path}"):
        load(DataConfig(dataset=name, data_dir=str(tmp_path)))
    with pytest.raises(DataError, match="is missing"):
        check(name, tmp_path)


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.hub])
def test_fetch_then_load(name: str, tmp_path: Path) -> None:
    hub, classes = DATASETS[name].hub, DATASETS[name].num_classes
    assert hub is not None
    grey = "mnist" in name
    splits = {
        "train": rows(4 * classes, hub.image, hub.label, grey, classes),
        "test": rows(classes, hub.image, hub.label, grey, classes),
    }
    asked: list[str] = []

    def load_dataset(path: str) -> dict[str, list[dict[str, Any]]]:
        asked.append(path)
        return splits

    assert fetch(name, tmp_path, load_dataset) == tmp_path / f"{name}.npz"
    assert asked == [hub.path]
    assert dict((row.name, row.state) for row in status(tmp_path))[name] == "present"
    assert re.search(r"classes; the published set has [67]0,000$", check(name, tmp_path))  # a few
    f = load(DataConfig(dataset=name, data_dir=str(tmp_path), clients=20))
    assert f.num_clients == 20 and f.train.x.dtype == torch.uint8
    stored = torch.from_numpy(np.array(splits["train"][7][hub.image]))
    loaded = f.train.x[7, 0] if grey else f.train.x[7].permute(1, 2, 0)
    assert torch.equal(loaded, stored)
    assert f.transform is not None and f.transform == DATASETS[name].transform
    plain = load(DataConfig(dataset=name, data_dir=str(tmp_path), clients=20, augment=False))
    assert plain.transform == f.transform.plain()
    few = DataConfig(dataset=name, data_dir=str(tmp_path), clients=10, samples_per_client=2)
    assert int(load(few).train.sizes.max()) == 2


def test_fetch_without_network_or_room(tmp_path: Path) -> None:
    def offline(path: str) -> None:
        raise ConnectionError("no route to host")

    with pytest.raises(DataError, match=r"no route to host\): put the files .*data_batch_1\.bin"):
        fetch("cifar10", tmp_path, offline)
    with pytest.raises(DataError, match=r"cannot be fetched: put the files .*images\.npy"):
        fetch("mini-imagenet", tmp_path)
    assert fetch("digits", tmp_path) is None
    with pytest.raises(ConfigError, match="did you mean 'cifar100'"):
        fetch("cifar-100", tmp_path)
    (tmp_path / "file").write_text("")
    splits = {part: rows(2, "img", "label", False, 2) for part in ("train", "test")}
    with pytest.raises(DataError, match="cannot be written"):
        fetch("cifar10", tmp_path / "file", lambda path: splits)


def test_fetch_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'scool\[hub\]', or put the files"):
        fetch("mnist", tmp_path)


def test_convert_refuses_another_dataset() -> None:
    with pytest.raises(DataError, match="no part 'test'"):
        convert({"train": rows(1, "img", "label", False, 2)}, "img", "label")
    with pytest.raises(DataError, match="columns img, label, expected image"):
        convert({"train": rows(1, "img", "label", False, 2)}, "image", "label")


def test_built_in_datasets_need_no_check(tmp_path: Path) -> None:
    assert check("digits", tmp_path) == "digits: built in, nothing to check"
    assert {row.state for row in status(tmp_path)} == {"built in", "missing"}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: load(DataConfig(dirichlet_alpha=3.0)), "dirichlet_alpha = 3.0 .* needs partition"),
        (lambda: load(DataConfig(test_fraction=0.2)), "test_fraction = 0.2 .* only images"),
        (lambda: load(DataConfig(truth="overlap")), "truth = 'overlap' .* needs partition noniid"),
        (
            lambda: ModelConfig("linear", hidden=(3,)),
            r"hidden = \(3,\) .* linear has no such layers",
        ),
        (lambda: DPSGD(matrix="f.csv", degree=4), "degree = 4 .* the matrix says who is joined"),
        (lambda: DPSGD(matrix="f.csv", topology="ring"), "topology = 'ring' .* the matrix says"),
    ],
)
def test_options_that_cannot_act_are_refused(build: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build()
    assert load(DataConfig(partition="noniid", truth="overlap", clients=10)).truth is not None
    assert load(DataConfig(partition="dirichlet", dirichlet_alpha=3.0, clients=6)).num_clients == 6


def test_clients_may_be_tested_on_a_share_of_their_own(tmp_path: Path) -> None:
    given = {"dataset": "cifar10", "data_dir": str(write_cifar10(tmp_path)), "clients": 6}
    given |= {"verify_checksums": False, "partition": "pathological", "classes_per_client": 3}
    federation = load(DataConfig(**given, test_fraction=0.25, unequal_sizes=True), seed=1)
    rows = [part.index[part.mask] for part in (federation.train, federation.test)]
    assert sorted(torch.cat(rows).tolist()) == list(range(120))  # of both files, each once
    assert federation.test.x is federation.train.x
    for k in range(6):
        own = federation.client(k)
        assert len(own.test.y) == int(0.25 * (len(own.test.y) + len(own.train.y)))
        assert set(own.test.y.tolist()) <= set(federation.classes[k].nonzero().flatten().tolist())
