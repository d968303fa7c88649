"""The federation of a run: a dataset and how it is shared out, from options to clients."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from scool.data.build import from_partition
from scool.data.datasets import DATASETS as DATASETS
from scool.data.datasets import OWN_TABLE
from scool.data.datasets import Dataset as Dataset
from scool.data.digits import TEST_SIZE, digits, digits_by_class
from scool.data.federation import Federation, Task, Truth
from scool.data.own_table import TableOptions, load_table, looked_at
from scool.data.owners import OWNERS
from scool.data.partition import keep_some, share_out
from scool.data.synthetic import synthetic
from scool.data.tables import TABLE_ENDINGS
from scool.errors import ConfigError, check_fields, require, unknown

Partition = Literal["auto", "permuted", "noniid", "sbm", "pathological", "dirichlet", "iid"]


def spelled(name: str) -> str:
    """A name as the catalogue spells it."""
    return name.replace("_", "-")


def find(name: str) -> Dataset:
    """The entry of a dataset; an unknown name is refused with the nearest one."""
    if name.lower().endswith(TABLE_ENDINGS):
        raise ConfigError(
            f"dataset = {name!r} is not possible: give a file by --data {name} --client COLUMN "
            "--label COLUMN, or in Python to scool.from_frame"
        )
    name = spelled(name)
    if name not in DATASETS:
        unknown("dataset", name, DATASETS)
    return DATASETS[name]


@dataclass(frozen=True)
class DataConfig:
    """Which federation: a dataset and how it is shared out."""

    dataset: str = "digits"
    """One of those that `scool data list` shows, such as digits, wisdm or cifar10."""
    data_dir: str | None = None
    """Where data files lie; default: $SCOOL_DATA, else ./data."""
    partition: Partition = "auto"
    """How samples are shared out; auto: permuted for digits, the paper's noniid for images."""
    clients: int = 0
    """Number of clients; 0: 40 for digits, 20 for synthetic, 100 for the others."""
    groups: int = 0
    """Planted groups of digits (permuted) and synthetic; 0: four."""
    samples_per_client: int = 0
    """Training samples per client; 0: 24 for digits (permuted), 40 for synthetic, else all."""
    classes_per_client: int = 0
    """For noniid, sbm and pathological; 0: two of ten classes, ten of a hundred."""
    dirichlet_alpha: float = 0.5
    """For dirichlet: the smaller, the less alike the clients."""
    truth: Truth = "identical"
    """Who should cooperate in noniid and sbm: same classes, any common, by share or its square."""
    val_fraction: float = 0.0
    """Share of each client's training samples set aside for validation."""
    test_fraction: float = 0.0
    """Share of each client's own samples for the test: of a table (0: a fifth), or of images, whose
    two files are then shared out together (0: all test samples of its classes)."""
    augment: bool = True
    """Use the dataset's training augmentation where it has one."""
    task: Task = "classification"
    """What synthetic asks for."""
    unequal_sizes: bool = False
    """Synthetic and pathological: clients of different sizes."""
    verify_checksums: bool = True
    """Check data files against the official sizes and checksums."""
    data: str = ""
    """A table of your own, CSV or Parquet, in place of a dataset; see --client and --label."""
    table: TableOptions = field(default_factory=TableOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.data:
            self._take_file()
        else:
            is_named = spelled(self.dataset) == OWN_TABLE
            require(not is_named, "dataset", self.dataset, "give the file: --data FILE")
            for name, value in vars(self.table).items():
                is_default = value == getattr(TableOptions, name)
                require(is_default, name, value, "it needs --data FILE, a table of your own")
        owners = OWNERS.get(spelled(self.dataset))
        if owners is not None:
            object.__setattr__(self, "task", owners.task)
        for name in ("clients", "groups", "samples_per_client", "classes_per_client"):
            value = getattr(self, name)
            require(value >= 0, name, value, "give a positive number, or 0 for the default")
        for name in ("val_fraction", "test_fraction"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "give 0 to below 1")
        require(
            self.dirichlet_alpha > 0, "dirichlet_alpha", self.dirichlet_alpha, "give more than 0"
        )

    def _take_file(self) -> None:
        """The file takes the place of the dataset; records name it by its absolute path."""
        is_free = self.dataset in (DataConfig.dataset, OWN_TABLE)
        require(is_free, "dataset", self.dataset, "leave it out, or leave out --data")
        object.__setattr__(self, "dataset", OWN_TABLE)
        object.__setattr__(self, "data", str(Path(self.data).expanduser().absolute()))

    @property
    def num_clients(self) -> int:
        """The number of clients, known before the data are read."""
        if self.data:
            return self.table.count or looked_at(self.data, self.table, self.task)[0].count
        return self.clients or find(self.dataset).clients


def config_like(federation: Federation) -> DataConfig:
    """A dataset whose recipes suit a federation that is not of the catalogue: one of images for
    inputs with three axes, else a small one."""
    if len(federation.input_shape) == 3:
        return DataConfig("cifar10")
    return DataConfig("synthetic", task=federation.task)


def data_root(data_dir: str | Path | None = None) -> Path:
    """Where data files lie: the folder asked for, $SCOOL_DATA, or ./data."""
    return Path(data_dir or os.environ.get("SCOOL_DATA") or "data")


def load(config: DataConfig, seed: int = 0) -> Federation:
    """The federation that a configuration asks for; the same seed gives the same clients.

    >>> load(DataConfig(clients=8, groups=2)).name
    'digits/permuted'
    """
    given: Any = config
    remedy = "give a DataConfig, e.g. DataConfig(dataset='digits')"
    require(isinstance(given, DataConfig), "config", given, remedy)
    dataset = find(config.dataset)
    is_owners = spelled(config.dataset) in OWNERS
    if is_owners or config.dataset in ("synthetic", "digits"):
        _refuse(config, "test_fraction", "only images and tables of your own have it")
    if config.data:
        return _load_table(config, seed)
    if is_owners:
        return _load_owners(config, seed)
    if config.dataset == "synthetic":
        return _load_synthetic(config, seed)
    require(config.task == "classification", "task", config.task, "only synthetic has regression")
    if config.partition != "pathological":
        _refuse(config, "unequal_sizes", "only synthetic and partition pathological have it")
    if config.dataset == "digits":
        return _load_digits(config, dataset, seed)
    return load_images(config, dataset, seed)


def _refuse(config: DataConfig, field: str, remedy: str) -> None:
    """An option that would be silently ignored is a mistake."""
    value = getattr(config, field)
    require(value == getattr(DataConfig, field), field, value, remedy)


def _refuse_others(config: DataConfig, kind: str) -> None:
    """Refuse options that belong to other partitions."""
    if kind != "dirichlet":
        _refuse(config, "dirichlet_alpha", "it needs partition dirichlet")
    if kind not in ("noniid", "sbm", "pathological"):
        _refuse(config, "truth", "it needs partition noniid or sbm, whose tasks are class sets")


def _refuse_sharing(config: DataConfig, what: str) -> None:
    """Refuse options of datasets that are shared out, if samples have owners."""
    _refuse(config, "partition", f"{what} says whose samples are whose")
    _refuse_others(config, "owners")
    for name in ("clients", "groups", "samples_per_client", "classes_per_client", "unequal_sizes"):
        _refuse(config, name, f"{what} says whose samples are whose: leave it out")


def _load_table(config: DataConfig, seed: int) -> Federation:
    _refuse_sharing(config, "the table")
    fractions = (config.val_fraction, config.test_fraction)
    return load_table(config.data, config.table, config.task, *fractions, seed)


def _load_owners(config: DataConfig, seed: int) -> Federation:
    name = spelled(config.dataset)
    _refuse_sharing(config, name)
    return OWNERS[name].load(
        data_root(config.data_dir),
        seed=seed,
        val_fraction=config.val_fraction,
        verify=config.verify_checksums,
    )


def _load_synthetic(config: DataConfig, seed: int) -> Federation:
    require(
        config.partition == "auto", "partition", config.partition, "synthetic has planted groups"
    )
    _refuse(config, "classes_per_client", "synthetic clients have all classes of their group")
    _refuse_others(config, "planted")
    clients = config.num_clients
    return synthetic(
        clients,
        config.groups or min(4, clients),
        config.samples_per_client or 40,
        task=config.task,
        seed=seed,
        unequal=config.unequal_sizes,
        val_fraction=config.val_fraction,
    )


def _load_digits(config: DataConfig, dataset: Dataset, seed: int) -> Federation:
    clients = config.num_clients
    kind = "permuted" if config.partition == "auto" else config.partition
    _refuse_others(config, kind)
    if kind == "permuted":
        _refuse(config, "classes_per_client", "permuted digits have all classes; try noniid")
        return digits(
            clients,
            config.groups or min(4, clients),
            config.samples_per_client or max(1, min(24, (1797 - TEST_SIZE) // clients)),
            seed=seed,
            val_fraction=config.val_fraction,
        )
    _refuse(config, "groups", f"partition {kind} has no groups to set; leave it out")
    return digits_by_class(
        kind,
        clients,
        classes_per_client=config.classes_per_client or dataset.classes_per_client,
        samples_per_client=config.samples_per_client,
        alpha=config.dirichlet_alpha,
        unequal=config.unequal_sizes,
        truth_kind=config.truth,
        seed=seed,
        val_fraction=config.val_fraction,
    )


def load_images(config: DataConfig, dataset: Dataset, seed: int) -> Federation:
    kind = "noniid" if config.partition == "auto" else config.partition
    require(kind != "permuted", "partition", kind, "only digits has it; use noniid, sbm, ...")
    _refuse_others(config, kind)
    _refuse(config, "groups", f"partition {kind} has no groups to set; leave it out")
    assert dataset.read is not None
    data = dataset.read(data_root(config.data_dir), verify=config.verify_checksums)
    if config.test_fraction:
        x, y = torch.cat([data.x_train, data.x_test]), torch.cat([data.y_train, data.y_test])
        data = data._replace(x_train=x, y_train=y)
    per_client = config.classes_per_client or dataset.classes_per_client
    alpha = config.dirichlet_alpha
    unequal = config.unequal_sizes
    parts = share_out(kind, data.y_train, config.num_clients, per_client, alpha, seed, unequal)
    if config.samples_per_client:
        parts = keep_some(parts, data.y_train, config.samples_per_client, seed)
    augmented = dataset.transform
    return from_partition(
        f"{config.dataset}/{kind}",
        *data[:4],
        parts,
        truth_kind=None if kind == "dirichlet" else config.truth,
        val_fraction=config.val_fraction,
        seed=seed,
        transform=augmented.plain() if augmented and not config.augment else augmented,
        class_names=data.class_names,
        test_fraction=config.test_fraction,
    )
