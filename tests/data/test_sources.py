"""Hugging Face datasets, image folders and .npz files of one's own."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from scool import LocalOnly, fit, from_arrays, from_datasets, from_image_folder, from_npz
from scool.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


class Names:
    """What the library calls ClassLabel."""

    names = ("cat", "dog")


class Rows:
    """A dataset with the parts of the library's interface that are used."""

    def __init__(self, columns: dict[str, list[Any]], named: bool = True) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {"label": Names()} if named else {}

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame(self.columns)


def columns(count: int) -> dict[str, list[Any]]:
    return {
        "user": [f"u{n % 2}" for n in range(count)],
        "weight": RNG.normal(size=count).tolist(),
        "label": [n // 2 % 2 for n in range(count)],
    }


def library(values: dict[str, list[Any]]) -> Any:
    """The real library where it is installed, else an object like its datasets."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        return Rows(values)
    names = datasets.ClassLabel(names=list(Names.names))
    return datasets.Dataset.from_dict(values).cast_column("label", names)


@pytest.mark.parametrize("make", [Rows, library])
def test_datasets_with_columns_of_numbers(make: Any) -> None:
    f = from_datasets(make(columns(40)), client="user", label="label", seed=1)
    assert f.client_names == ("u0", "u1") and f.class_names == ("cat", "dog")
    assert f.train.sizes.tolist() == [16, 16] and f.preprocessing is not None
    parts = {"train": make(columns(20)), "test": make(columns(8))}
    f = from_datasets(parts, client="user", label="label")
    assert f.train.sizes.tolist() == [10, 10] and f.test.sizes.tolist() == [4, 4]
    for wrong, message in (
        ({"client": "usr"}, "'usr' is not a column of the dataset: did you mean 'user'"),
        ({"image": "img"}, "'img' is not a column"),
    ):
        with pytest.raises(DataError, match=message):
            from_datasets(make(columns(4)), **({"client": "user", "label": "label"} | wrong))
    with pytest.raises(DataError, match="the dataset has parts all: give one"):
        from_datasets({"all": make(columns(4))}, client="user", label="label")
    with pytest.raises(DataError, match="is a list: give a dataset"):
        from_datasets([1], client="user", label="label")


@pytest.mark.parametrize("named", [True, False])
def test_datasets_with_images(named: bool) -> None:
    images = [RNG.integers(0, 256, (6, 4, 3), dtype=np.uint8) for _ in range(20)]
    values = columns(20) | {"image": [Image.fromarray(i) for i in images]}
    f = from_datasets(
        Rows(values, named), client="user", label="label", image="image", test_fraction=0.5
    )
    assert f.train.x.shape == (10, 3, 6, 4) and f.train.x.dtype == torch.uint8
    assert f.class_names == (("cat", "dog") if named else ("0", "1"))
    stored = {bytes(i.transpose(2, 0, 1).tobytes()) for i in images}
    assert all(bytes(x.numpy().tobytes()) in stored for x in f.train.x)


def write_images(root: Path, shape: tuple[int, ...] = (5, 4, 3)) -> None:
    for client in ("north", "south"):
        for label in ("ill", "well"):
            folder = root / client / label
            folder.mkdir(parents=True)
            for n in range(3):
                pixels = RNG.integers(0, 256, shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{n}.png")


def test_image_folders(tmp_path: Path) -> None:
    write_images(tmp_path / "a")
    (tmp_path / "a/north/ill/notes.txt").write_text("not an image")
    f = from_image_folder(tmp_path / "a", test_fraction=0.5)
    assert (
        f.name == "a" and f.client_names == ("north", "south") and f.class_names == ("ill", "well")
    )
    assert f.train.x.shape == (6, 3, 5, 4) and f.classes.all()
    assert from_image_folder(tmp_path / "a", size=(3, 2), grey=True).input_shape == (1, 3, 2)
    result = fit(f, "linear", LocalOnly(), rounds=1, device="cpu")
    assert result.predict("north", f.test.x[:2]).shape == (2,)
    for part in ("train", "test"):
        write_images(tmp_path / "b" / part)
    assert from_image_folder(tmp_path / "b").test.sizes.tolist() == [6, 6]


def test_image_folders_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        from_image_folder(tmp_path / "no")
    (tmp_path / "a/north").mkdir(parents=True)
    with pytest.raises(DataError, match="has no images in CLIENT/CLASS/"):
        from_image_folder(tmp_path / "a")
    write_images(tmp_path / "b")
    Image.new("RGB", (9, 9)).save(tmp_path / "b/north/ill/0.png")
    with pytest.raises(DataError, match=r"shapes \(3, 5, 4\) and \(3, 9, 9\).*size=\(5, 4\)"):
        from_image_folder(tmp_path / "b")
    (tmp_path / "b/north/ill/0.png").write_bytes(b"no")
    with pytest.raises(DataError, match=r"0\.png cannot be read as an image"):
        from_image_folder(tmp_path / "b")


def test_folders_without_images_are_named(tmp_path: Path) -> None:
    for client in ("north", "south"):
        for number in range(4):
            place = tmp_path / client / "ill" / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(RNG.integers(0, 255, (4, 4, 3), dtype=np.uint8)).save(place)
    (tmp_path / "west").mkdir()
    (tmp_path / ".thumbs").mkdir()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert from_image_folder(tmp_path).client_names == ("north", "south")
    assert "folders 'west' have no images in CLIENT/CLASS/" in str(caught[0].message)


def test_npz(tmp_path: Path) -> None:
    x, y = RNG.normal(size=(20, 3)), np.resize([0, 1], 20)
    for name in ("north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    np.savez(
        tmp_path / "all.npz", x=np.tile(x, (2, 1)), y=np.tile(y, 2), client=np.repeat([7, 12], 20)
    )
    expected = from_arrays([(x, y), (x, y)]).train.x
    listed = from_npz([tmp_path / "north.npz", tmp_path / "south.npz"])
    assert torch.equal(listed.train.x, expected) and listed.client_names == ("north", "south")
    one = from_npz(tmp_path / "all.npz")
    assert torch.equal(one.train.x, expected) and one.client_names == ("7", "12")
    (tmp_path / "all.npz").unlink()
    assert from_npz(tmp_path).client_names == ("north", "south")
    (tmp_path / "west.npz").write_bytes(b"no")
    with pytest.raises(DataError, match=r"west\.npz is not an \.npz file: save it by"):
        from_npz(tmp_path)
    with pytest.raises(DataError, match=r"no\.npz is missing"):
        from_npz(tmp_path / "no.npz")
    np.savez(tmp_path / "odd.npz", x=x, client=y)
    with pytest.raises(DataError, match="give x, y and client"):
        from_npz(tmp_path / "odd.npz")
    with pytest.raises(ConfigError, match="give a folder"):
        (tmp_path / "empty").mkdir()
        from_npz(tmp_path / "empty")
