"""Readers of the standard files, on tiny files made here; damaged files are refused."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scool.data import images
from scool.data.images import read_mini_imagenet
from scool.data.labelled import DataFile, read_file, read_npz, write_npz
from scool.errors import DataError

RNG = np.random.default_rng(0)
REAL = Path(__file__).parents[2] / "data"


def test_read_file_says_what_is_wrong(tmp_path: Path) -> None:
    content = bytes(range(100))
    file = DataFile("a.bin", 100, hashlib.md5(content).hexdigest())
    with pytest.raises(DataError, match=r"a\.bin is missing: get it"):
        read_file(tmp_path, file, "get it")
    (tmp_path / "a.bin").write_bytes(content)
    assert read_file(tmp_path, file, "get it") == content
    (tmp_path / "a.bin").write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"truncated .* expected 100 bytes, found 99: get it"):
        read_file(tmp_path, file, "get it")
    flipped = content[:50] + bytes([content[50] ^ 1]) + content[51:]
    (tmp_path / "a.bin").write_bytes(flipped)
    found = hashlib.md5(flipped).hexdigest()
    with pytest.raises(DataError, match=f"altered: expected MD5 {file.md5}, found {found}: get it"):
        read_file(tmp_path, file, "get it")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        read_file(tmp_path, DataFile("folder"), "get it")


def write_cifar(folder: Path, names: list[str], ranges: tuple[int, ...]) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True)
    written = {}
    for name in names:
        labels = np.stack([RNG.integers(0, high, 6) for high in ranges], axis=1)
        records = np.concatenate([labels, RNG.integers(0, 256, (6, 3072))], axis=1)
        written[name] = records.astype(np.uint8)
        (folder / name).write_bytes(written[name].tobytes())
    return written


def test_cifar10(tmp_path: Path) -> None:
    names = [file.name for file in (*images.CIFAR10_TRAIN, images.CIFAR10_TEST)]
    written = write_cifar(tmp_path / images.CIFAR10_FOLDER, names, (10,))
    data = images.read_cifar10(tmp_path, verify=False)
    assert data.x_train.shape == (30, 3, 32, 32) and data.x_train.dtype == torch.uint8
    first = written["data_batch_1.bin"][0]
    assert data.y_train[0] == first[0] and data.x_train[0, 1, 2, 3] == first[1 + 1024 + 2 * 32 + 3]
    np.testing.assert_array_equal(data.y_test, written["test_batch.bin"][:, 0])
    with pytest.raises(DataError, match=r"expected 30,730,000 bytes, found 18,438: unpack"):
        images.read_cifar10(tmp_path)
    (tmp_path / images.CIFAR10_FOLDER / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin is missing: unpack cifar-10"):
        images.read_cifar10(tmp_path, verify=False)


def test_cifar100_uses_the_fine_label(tmp_path: Path) -> None:
    written = write_cifar(tmp_path / images.CIFAR100_FOLDER, ["train.bin", "test.bin"], (20, 100))
    data = images.read_cifar100(tmp_path, verify=False)
    np.testing.assert_array_equal(data.y_train, written["train.bin"][:, 1])
    np.testing.assert_array_equal(data.x_test.flatten(1), written["test.bin"][:, 2:])
    with pytest.raises(DataError, match="expected 153,700,000 bytes"):
        images.read_cifar100(tmp_path)


def test_cifar_records_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="truncated"):
        images.decode_cifar(bytes(3072), (10,), "f", "get it")
    with pytest.raises(DataError, match="truncated"):
        images.decode_cifar(b"", (10,), "f", "get it")
    with pytest.raises(DataError, match="label 10, expected 0 to 9"):
        images.decode_cifar(bytes([10]) + bytes(3072), (10,), "f", "get it")


@pytest.mark.skipif(not (REAL / images.CIFAR10_FOLDER).exists(), reason="no CIFAR-10 under data/")
def test_the_real_cifar10(tmp_path: Path) -> None:
    data = images.read_cifar10(REAL)
    assert data.y_train.bincount().tolist() == [5000] * 10
    assert data.y_test.bincount().tolist() == [1000] * 10
    folder = tmp_path / images.CIFAR10_FOLDER
    folder.mkdir()
    content = bytearray((REAL / images.CIFAR10_FOLDER / "data_batch_1.bin").read_bytes())
    content[12345] ^= 1
    (folder / "data_batch_1.bin").write_bytes(content)
    with pytest.raises(DataError, match="altered: expected MD5 5dd7e06a"):
        images.read_cifar10(tmp_path)


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.mark.parametrize("packed", [True, False])
def test_mnist(tmp_path: Path, packed: bool) -> None:
    folder = tmp_path / ("mnist" if packed else "MNIST/raw")
    folder.mkdir(parents=True)
    x, y = RNG.integers(0, 256, (5, 28, 28)), np.arange(5)
    for name, array in zip(images.IDX_FILES, (x, y, x[:2], y[:2]), strict=True):
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))
    data = images.read_mnist(tmp_path, verify=False)
    assert data.x_train.shape == (5, 1, 28, 28) and data.y_test.tolist() == [0, 1]
    np.testing.assert_array_equal(data.x_train[:, 0], x)
    with pytest.raises(DataError, match="expected 47,040,016 bytes"):
        images.read_mnist(tmp_path)
    with pytest.raises(DataError, match=r"fashion-mnist.*is missing: put train-images"):
        images.read_fashion_mnist(tmp_path)
    last = folder / (f"{images.IDX_FILES[3]}.gz" if packed else images.IDX_FILES[3])
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(DataError, match="cannot be unpacked" if packed else "truncated"):
        images.read_mnist(tmp_path, verify=False)


def test_a_file_is_judged_by_its_content_whoever_packed_it(tmp_path: Path) -> None:
    content = bytes(range(100)) * 50
    file = DataFile("a", len(content), hashlib.md5(content).hexdigest())
    for level in (1, 9):
        (tmp_path / "a.gz").write_bytes(gzip.compress(content, level, mtime=level))
        assert read_file(tmp_path, file, "get it", packed=True) == content
    (tmp_path / "a.gz").write_bytes(gzip.compress(content[::-1]))
    with pytest.raises(DataError, match=f"expected MD5 {file.md5}"):
        read_file(tmp_path, file, "get it", packed=True)


def test_idx_that_does_not_fit() -> None:
    with pytest.raises(DataError, match="does not begin with 2051"):
        images.decode_idx(idx(np.arange(3)), 3, "f", "get it")
    with pytest.raises(DataError, match="expected 11 bytes"):
        images.decode_idx(idx(np.arange(3)) + b"x", 1, "f", "get it")


def test_mnist_labels_must_fit_the_images(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    x = np.zeros((3, 28, 28))
    for name, array in zip(
        images.IDX_FILES, (x, np.array([1, 2, 77]), x, np.arange(3)), strict=True
    ):
        (tmp_path / "mnist" / name).write_bytes(idx(array))
    with pytest.raises(DataError, match="labels up to 77"):
        images.read_mnist(tmp_path, verify=False)


def test_npz_round_trip_and_damage(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    y = np.arange(6, dtype=np.uint8)
    path = tmp_path / "cifar10.npz"
    write_npz(path, {"x_train": x, "y_train": y, "x_test": x[:2], "y_test": y[:2]})
    data = images.read_cifar10(tmp_path)
    np.testing.assert_array_equal(data.x_train.permute(0, 2, 3, 1), x)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(DataError, match="labels run from 0 to 5, expected 0 to 4"):
        read_npz(path, 5, (32, 32, 3), "get it")
    with pytest.raises(DataError, match=r"images are \(32, 32, 3\), expected \(28, 28\)"):
        read_npz(path, 10, (28, 28), "get it")
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"altered: the checksum of x_train|cannot be read"):
        read_npz(path, 10, (32, 32, 3), "get it")
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        read_npz(path, 10, (32, 32, 3), "get it")


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "evil.npz"
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(path, x_train=objects, y_train=objects, x_test=objects, y_test=objects)
    with pytest.raises(DataError, match="cannot be read"):
        read_npz(path, 10, (32, 32, 3), "get it")


def write_mini_arrays(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir()
    x = RNG.integers(0, 256, (12, 84, 84, 3), dtype=np.uint8)
    y = np.repeat(np.arange(2, dtype=np.uint8), 6)
    np.save(folder / "images.npy", x)
    np.save(folder / "labels.npy", y)
    np.save(folder / "is_train_of_class.npy", np.tile([True] * 5 + [False], 2))
    (folder / "wnids.txt").write_text("n01\nn02\n")
    return x, y


def test_mini_imagenet_arrays(tmp_path: Path) -> None:
    folder = tmp_path / "mini_imagenet"
    x, _ = write_mini_arrays(folder)
    data = read_mini_imagenet(tmp_path, verify=False)
    assert data.x_train.shape == (10, 3, 84, 84) and data.y_test.tolist() == [0, 1]
    np.testing.assert_array_equal(data.x_test[1].permute(1, 2, 0), x[11])
    assert data.class_names == ("n01", "n02")
    with pytest.raises(DataError, match="holds 12 images, expected 60,000"):
        read_mini_imagenet(tmp_path)
    (folder / "images.npy").write_bytes((folder / "images.npy").read_bytes()[:-10])
    with pytest.raises(DataError, match=r"images\.npy is truncated"):
        read_mini_imagenet(tmp_path, verify=False)
    (folder / "labels.npy").unlink()
    (folder / "images.npy").unlink()
    with pytest.raises(DataError, match=r"images\.npy is missing: put images\.npy"):
        read_mini_imagenet(tmp_path, verify=False)


def test_mini_imagenet_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mini_imagenet"
    (folder / "images").mkdir(parents=True)
    for part, label, side in (("train", "n03", 84), ("val", "n01", 100), ("test", "n02", 84)):
        rows = ["filename,label"]
        for i in range(6):
            name = f"{label}{i:08d}.png"
            picture = np.full((side, side, 3), i, dtype=np.uint8)
            Image.fromarray(picture).save(folder / "images" / name)
            rows.append(f"{name},{label}")
        (folder / f"{part}.csv").write_text("\n".join(rows) + "\n")
    data = read_mini_imagenet(tmp_path, verify=False)
    assert data.class_names == ("n01", "n02", "n03")
    assert data.y_test.tolist() == [2, 0, 1] and len(data.y_train) == 15
    assert data.x_test.flatten(1).unique().tolist() == [5]
    (folder / "images" / "n0300000002.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"n0300000002\.png is truncated or altered"):
        read_mini_imagenet(tmp_path, verify=False)
    (folder / "images" / "n0300000002.png").unlink()
    with pytest.raises(DataError, match=r"n0300000002\.png is missing"):
        read_mini_imagenet(tmp_path, verify=False)
    (folder / "val.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"val\.csv has no columns filename, label"):
        read_mini_imagenet(tmp_path, verify=False)
