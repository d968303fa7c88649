"""The datasets by name: what they are, which files they need, and what suits them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from scool.data import transform as transforms
from scool.data.images import (
    CIFAR10_FOLDER,
    CIFAR100_FOLDER,
    IDX_FILES,
    MINI_FOLDER,
    MINI_LISTS,
    read_cifar10,
    read_cifar100,
    read_fashion_mnist,
    read_mini_imagenet,
    read_mnist,
)
from scool.data.labelled import Labelled
from scool.data.owners import OWNERS
from scool.data.transform import ImageTransform


class Hub(NamedTuple):
    """Where the Hugging Face hub keeps a dataset, and its columns."""

    path: str
    image: str
    label: str


@dataclass(frozen=True)
class Dataset:
    """One entry of the catalogue."""

    about: str
    num_classes: int
    classes_per_client: int = 2
    clients: int = 100  # by default
    files: tuple[str, ...] = ()  # under the data root; none: built in
    instead: tuple[str, ...] = ()  # other files that will do
    read: Callable[..., Labelled] | None = None  # of images to share out
    num_images: int = 0  # training and test images of the published files
    transform: ImageTransform | None = None
    hub: Hub | None = None
    model: str = "mlp"  # by default: a key of `models`
    rate: float = 0.2  # by default, of what has no reader of images
    regression_rate: float = 0.02


OWN_TABLE = "own-table"
"""The entry for `--data FILE`; it has no public name."""

DATASETS: dict[str, Dataset] = {
    "digits": Dataset("8x8 handwritten digits, carried by scikit-learn", 10, clients=40),
    "synthetic": Dataset("planted groups with a known graph, made in memory", 5, clients=20),
    OWN_TABLE: Dataset(
        "a table of your own: --data FILE --client COLUMN --label COLUMN", 0, rate=0.05
    ),
    "cifar10": Dataset(
        "60,000 colour images, 10 classes",
        10,
        files=tuple(
            f"{CIFAR10_FOLDER}/{name}.bin"
            for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
        ),
        instead=("cifar10.npz",),
        read=read_cifar10,
        num_images=60_000,
        transform=transforms.CIFAR10,
        model="cnn2",
        hub=Hub("uoft-cs/cifar10", "img", "label"),
    ),
    "cifar100": Dataset(
        "60,000 colour images, 100 classes",
        100,
        10,
        files=(f"{CIFAR100_FOLDER}/train.bin", f"{CIFAR100_FOLDER}/test.bin"),
        instead=("cifar100.npz",),
        read=read_cifar100,
        num_images=60_000,
        transform=transforms.CIFAR100,
        model="cnn2",
        hub=Hub("uoft-cs/cifar100", "img", "fine_label"),
    ),
    "mnist": Dataset(
        "70,000 handwritten digits, 10 classes",
        10,
        files=tuple(f"mnist/{file}.gz" for file in IDX_FILES),
        instead=(f"mnist/{IDX_FILES[0]}", f"MNIST/raw/{IDX_FILES[0]}", "mnist.npz"),
        read=read_mnist,
        num_images=70_000,
        transform=transforms.MNIST,
        hub=Hub("ylecun/mnist", "image", "label"),
    ),
    "fashion-mnist": Dataset(
        "70,000 pictures of clothes, 10 classes",
        10,
        files=tuple(f"fashion-mnist/{file}.gz" for file in IDX_FILES),
        instead=(
            f"fashion-mnist/{IDX_FILES[0]}",
            f"FashionMNIST/raw/{IDX_FILES[0]}",
            "fashion-mnist.npz",
        ),
        read=read_fashion_mnist,
        num_images=70_000,
        transform=transforms.FASHION_MNIST,
        hub=Hub("zalando-datasets/fashion_mnist", "image", "label"),
    ),
    "mini-imagenet": Dataset(
        "60,000 photographs of 84x84, 100 classes",
        100,
        10,
        files=tuple(f"{MINI_FOLDER}/{n}.npy" for n in ("images", "labels", "is_train_of_class")),
        instead=(f"{MINI_FOLDER}/{MINI_LISTS[0]}",),
        read=read_mini_imagenet,
        num_images=60_000,
        transform=transforms.MINI_IMAGENET,
        model="cnn4",
    ),
}


DATASETS |= {
    name: Dataset(
        entry.about,
        0,
        clients=entry.clients,
        files=(entry.file,) if "/" in entry.file else (),
        instead=(f"{entry.file}.gz",),
        rate=0.05,
    )
    for name, entry in OWNERS.items()
}
DATASETS["shakespeare"] = replace(DATASETS["shakespeare"], model="tokens", rate=0.2)
