"""Federations of real owners, on tiny files of the same form made here."""

import dataclasses
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from scool import DataConfig, LocalOnly, LocalSGD, fit, heart_disease, load
from scool.cli.main import dispatch
from scool.data import speech
from scool.data.catalogue import DATASETS
from scool.data.federation import Federation
from scool.data.inventory import check, fetch, status
from scool.data.owners import OWNERS, content_digest
from scool.data.row_splits import RowSplit
from scool.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
REAL = Path(__file__).parents[2] / "data"


def landmine() -> dict[str, np.ndarray]:
    client = np.repeat(np.arange(29, dtype=np.int16), 10)
    return {
        "x": RNG.normal(size=(290, 9)),
        "y": np.resize(np.uint8([0, 0, 1]), 290),
        "client": client,
    }


def school() -> dict[str, np.ndarray]:
    x = RNG.integers(0, 2, (60, 28), dtype=np.uint8)
    x[:, -1] = 1
    masks = np.stack([np.resize(np.roll([True, True, True, False], k), 60) for k in range(10)])
    y = RNG.integers(0, 70, 60).astype(np.uint8)
    return {"x": x, "y": y, "client": np.repeat(np.int16([0, 1, 2]), 20), "train_masks": masks}


def wisdm() -> str:
    frame = pd.DataFrame(RNG.normal(size=(60, 3)), columns=["X0", "XPEAK", "RESULTANT"])
    frame.insert(0, "user", np.resize([3, 12], 60))
    frame.insert(0, "UNIQUE_ID", np.arange(60))
    frame["XAVG"], frame["class"] = 0, np.repeat(["Jogging", "Sitting", "Walking"], 20)
    text = frame.astype({"XPEAK": object})
    text.loc[4, "XPEAK"] = "?"
    return text.to_csv(index=False)


def parkinsons() -> str:
    frame = pd.DataFrame({"subject#": np.repeat([1, 2], 30), "age": np.repeat([60, 70], 30)})
    frame["test_time"] = np.tile(np.repeat(np.arange(5.0), 6), 2) + 0.25
    frame["motor_UPDRS"] = 20 + frame["test_time"]
    frame["total_UPDRS"] = 30 + frame["test_time"]
    frame["HNR"] = RNG.normal(size=60)
    return frame.to_csv(index=False)


def shakespeare() -> str:
    said = [("x", n, "AB"[n % 2], "to be, or not to be: that is it") for n in range(330)]
    said += [("x", 999, "C", "no")]
    return pd.DataFrame(said, columns=["play", "speech", "role", "text"]).to_csv(index=False)


MAKERS: dict[str, Any] = {f.__name__: f for f in (landmine, school, wisdm, parkinsons, shakespeare)}


def write(root: Path, name: str) -> Path:
    path, content = root / OWNERS[name].file, MAKERS[name]()
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, str):
        path = path.with_name(path.name + ".gz")
        path.write_bytes(gzip.compress(content.encode()))
    else:
        np.savez(path, **content)
    return path


def loaded(root: Path, name: str, seed: int = 0, val_fraction: float = 0.2) -> Federation:
    config = DataConfig(name, data_dir=str(root), verify_checksums=False, val_fraction=val_fraction)
    return load(config, seed)


def test_heart_disease_comes_with_the_package() -> None:
    f = heart_disease(seed=1, val_fraction=0.2)
    assert f.client_names == ("Budapest", "Cleveland", "Long Beach", "Switzerland")
    sizes = sum(getattr(f, part).sizes for part in ("train", "val", "test"))
    assert sizes.tolist() == [294, 303, 200, 123]
    assert f.class_names == ("absent", "present") and f.classes.all()
    positive = sum(f.counts(part)[:, 1] for part in ("train", "val", "test"))
    assert positive.tolist() == [106, 139, 149, 115]  # 36, 46, 75 and 93 %
    same = load(DataConfig("heart_disease", val_fraction=0.2), 1)
    assert torch.equal(same.test.x, f.test.x) and not torch.equal(heart_disease().test.x, f.test.x)
    assert check("heart-disease", Path("nowhere")) == "heart-disease: built in, nothing to check"


def test_landmine(tmp_path: Path) -> None:
    write(tmp_path, "landmine")
    f = loaded(tmp_path, "landmine")
    assert f.num_clients == 29 and f.class_names == ("clutter", "mine")
    assert f.groups is not None and f.groups.tolist() == [0] * 15 + [1] * 14
    assert f.client_names is not None and f.client_names[14] == "15"
    assert [s.sizes.tolist()[0] for s in (f.train, f.val, f.test)] == [6, 2, 2]


def test_school_has_its_ten_splits(tmp_path: Path) -> None:
    write(tmp_path, "school")
    f = loaded(tmp_path, "school", seed=13)
    assert f.task == "regression" and f.input_shape == (27,)
    assert f.test.sizes.tolist() == [5, 5, 5] and f.val.sizes.tolist() == [3, 3, 3]
    content = school()
    again = OWNERS["school"].build(content, RowSplit(seed=13))
    mask = content["train_masks"][3]
    assert again.preprocessing is not None
    inputs = again.preprocessing.transform(
        pd.DataFrame(content["x"][:, :27], columns=[f"column {n + 1}" for n in range(27)])
    )
    np.testing.assert_allclose(again.test.x, inputs[~mask], rtol=1e-5)


def test_wisdm(tmp_path: Path) -> None:
    write(tmp_path, "wisdm")
    f = loaded(tmp_path, "wisdm")
    assert f.client_names == ("3", "12") and f.class_names == ("Jogging", "Sitting", "Walking")
    assert f.preprocessing is not None
    assert f.preprocessing.features == ("X0", "XPEAK", "RESULTANT")
    assert f.notes[0].startswith("1 missing cells")
    assert f.counts("test").tolist() == [[2, 2, 2], [2, 2, 2]]


def test_a_day_of_a_patient_is_in_one_part(tmp_path: Path) -> None:
    write(tmp_path, "parkinsons")
    f = loaded(tmp_path, "parkinsons")
    days = f.in_unit(torch.cat([f.train.y[0, :, 0], f.val.y[0, :, 0], f.test.y[0, :, 0]])[:, None])
    sizes = [s.sizes.tolist()[0] for s in (f.train, f.val, f.test)]
    assert sizes == [18, 6, 6]
    found = days[:, 0].round(decimals=2).split([s.mask.shape[1] for s in (f.train, f.val, f.test)])
    assert [len(part.unique()) for part in found] == [3, 1, 1]


def test_shakespeare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "shakespeare")
    monkeypatch.setattr(speech, "OFTEN", 60)
    f = loaded(tmp_path, "shakespeare")
    assert f.client_names == ("A (x)", "B (x)") and f.takes_tokens and f.input_shape == (20,)
    names = f.class_names or ()
    assert set(names) == {"\n", speech.RARE, *"to be, or not to be: that is it"}
    text = "to be, or not to be: that is it"
    x, y = f.train.x[f.train.index[0]], f.train.y[0]
    for row, answer in zip(x[:30].tolist(), y[:30].tolist(), strict=True):
        before = "".join(names[c] for c in row).lstrip("\n")
        assert (before + names[answer]).lstrip("\n") in text
    assert int(f.test.sizes.min()) > 0 and int(f.val.sizes.min()) > 0
    result = fit(f, "tokens", LocalOnly(sgd=LocalSGD(steps=30, lr=0.5)), rounds=1, device="cpu")
    assert float(result.score.min()) > 0


def test_files_are_wanted_and_checked_by_content(tmp_path: Path) -> None:
    place = tmp_path / "wisdm" / "wisdm_transformed.csv"
    with pytest.raises(DataError, match=r"wisdm_transformed\.csv is missing .*put .* from W"):
        loaded(tmp_path, "wisdm")
    path = write(tmp_path, "wisdm")
    with pytest.raises(DataError, match="holds something else than the published data"):
        load(DataConfig("wisdm", data_dir=str(tmp_path)))
    content = gzip.decompress(path.read_bytes())
    entry = dataclasses.replace(OWNERS["wisdm"], sha256=content_digest(content))
    path.write_bytes(gzip.compress(content, compresslevel=1))  # packed by somebody else
    packed = entry.load(tmp_path)
    path.unlink()
    place.write_bytes(content)  # or not at all
    assert torch.equal(entry.load(tmp_path).train.x, packed.train.x)
    arrays = landmine()
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    with np.load(tmp_path / "a.npz") as stored:
        assert content_digest(dict(stored)) == content_digest(arrays)
    arrays["y"][0] ^= 1
    assert content_digest(arrays) != content_digest(landmine())
    place.write_bytes(b"\x00")
    (tmp_path / "landmine").mkdir()
    (tmp_path / "landmine/landmine.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"landmine\.npz cannot be read"):
        loaded(tmp_path, "landmine")


def test_the_inventory_knows_them(tmp_path: Path) -> None:
    states = {row.name: row.state for row in status(tmp_path)}
    assert states["heart-disease"] == "built in" and states["school"] == "missing"
    write(tmp_path, "wisdm")
    assert {row.name: row.state for row in status(tmp_path)}["wisdm"] == "present"
    with pytest.raises(DataError, match=r"cannot be fetched: put .*landmine\.npz.*it is Landmine"):
        fetch("landmine", tmp_path)
    for name, entry in OWNERS.items():
        assert DATASETS[name].clients == entry.clients and entry.licence
        assert DataConfig(name).task == entry.task


def test_options_that_share_out_are_refused() -> None:
    for options in ({"partition": "iid"}, {"clients": 3}, {"groups": 2}):
        with pytest.raises(ConfigError, match="heart-disease says whose samples are whose"):
            load(DataConfig("heart-disease", **options))


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "school")
    words = ["--dataset", "school", "--data-dir", str(tmp_path), "--no-verify-checksums"]
    words += ["--rounds", "1", "--device", "cpu", "--quiet", "--json", "--no-figures"]
    assert dispatch(["compare", "--methods", "local", *words, "--out", str(tmp_path / "c")]) == 0
    assert '"r2_mean"' in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_real_files(name: str) -> None:
    entry = OWNERS[name]
    if not any((REAL / f"{entry.file}{end}").exists() for end in ("", ".gz")):
        pytest.skip(f"no {entry.file} under data/")
    f = entry.load(REAL)
    assert f.num_clients == entry.clients
