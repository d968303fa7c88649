"""A table of one's own: who is who, what becomes of cells, and which rows are for what."""

import json
import re
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from scool import LocalOnly, LocalSGD, fit, from_frame, load_model
from scool.data.federation import Federation, Split
from scool.data.preprocessing import Preprocessing
from scool.data.row_splits import RowSplit
from scool.errors import ConfigError, DataError

RNG = np.random.default_rng(0)


def table(rows: int = 60) -> pd.DataFrame:
    """Three sites; the outcome follows from age and colour."""
    age = RNG.normal(50, 10, rows).round(1)
    colour = RNG.choice(["red", "green", "blue"], rows)
    ill = (age > 50) ^ (colour == "red")
    return pd.DataFrame(
        {
            "site": np.resize(["north", "south", "west"], rows),
            "age": age,
            "colour": colour,
            "smokes": RNG.random(rows) < 0.5,
            "outcome": np.where(ill, "ill", "well"),
        }
    )


def rows_of(split: Split, client: int) -> torch.Tensor:
    return split.x[split.index[client]][split.mask[client]]


def made(frame: Any, label: Any = "outcome", **options: Any) -> Federation:
    return from_frame(frame, "site", label, **options)


def test_names_types_and_scales() -> None:
    frame = table()
    f = made(frame, val_fraction=0.25)
    assert f.client_names == ("north", "south", "west") and f.class_names == ("ill", "well")
    assert f.classes.all() and f.task == "classification"
    assert [s.sizes.tolist() for s in (f.train, f.val, f.test)] == [[12] * 3, [4] * 3, [4] * 3]
    assert f.preprocessing is not None
    names = ("age", "colour=blue", "colour=green", "colour=red", "smokes")
    assert f.preprocessing.features == names
    train = torch.cat([rows_of(f.train, i) for i in range(3)])
    assert abs(float(train[:, 0].mean())) < 1e-5
    assert abs(float(train[:, 0].std(correction=0)) - 1) < 1e-5
    assert (train[:, 1:4].sum(dim=1) == 1).all() and set(train[:, 4].tolist()) == {0, 1}
    again = Preprocessing.from_dict(json.loads(json.dumps(f.preprocessing.to_dict())))
    assert again == f.preprocessing
    assert repr(f.test) == "Split(3 clients, 12 samples, inputs (5,))"
    assert made(frame, classes="own").classes.all()
    assert torch.equal(made(frame, seed=3).test.x, made(frame, seed=3).test.x)
    assert not torch.equal(made(frame, seed=3).test.x, made(frame, seed=4).test.x)


def test_everything_is_fitted_on_training_rows_alone() -> None:
    """Neither the values nor the categories of test rows leave a trace."""
    frame = table().assign(part=np.resize(["train", "val", "Test "], 60))
    frame["site"] = np.repeat(["a", "b"], 30)
    other = frame.copy()
    is_test = other["part"] != "train"
    other.loc[is_test, "age"] += 1000.0
    other.loc[is_test, "colour"] = "violet"
    first, second = (made(t, split="part", missing="common") for t in (frame, other))
    assert first.preprocessing == second.preprocessing
    assert first.test.sizes.tolist() == first.val.sizes.tolist() == [10, 10]
    assert (rows_of(second.test, 0)[:, 1:4] == 0).all()


def test_scaling_per_client_or_not_at_all() -> None:
    frame = table()
    frame.loc[frame["site"] == "west", "age"] += 500
    per_client = made(frame, scale="client")
    for client in range(3):
        assert abs(float(rows_of(per_client.train, client)[:, 0].mean())) < 1e-4
    plain = made(frame, scale="none")
    assert float(rows_of(plain.train, 2)[:, 0].min()) > 500
    assert per_client.preprocessing is not None
    alone = per_client.preprocessing.only(2)
    assert len(alone.columns[0].mean) == 1
    np.testing.assert_array_equal(
        alone.transform(frame[:5]), per_client.preprocessing.transform(frame[:5], 2)
    )


def test_missing_cells() -> None:
    frame = table()
    west = frame["site"] == "west"
    frame.loc[3:5, "age"] = np.nan
    frame.loc[[0, 7], "colour"] = None
    with pytest.raises(DataError, match=r"5 cells are missing, by columns: 'age' 3, 'colour' 2; "):
        made(frame)
    dropped = made(frame, missing="drop", test_fraction=0)
    assert dropped.train.sizes.sum() == 55
    assert dropped.notes[0] == "5 of 60 rows with missing cells are left out"
    common = made(frame, missing="common", test_fraction=0)
    assert common.notes[0].startswith("5 missing cells in 2 columns are filled by the common")
    assert abs(float(rows_of(common.train, 0)[1, 0])) < 1e-6  # row 3 has the mean
    own = made(frame, missing="client", scale="none", test_fraction=0)
    mean = frame.loc[frame["site"] == "north", "age"].mean()
    assert float(rows_of(own.train, 0)[1, 0]) == pytest.approx(mean)
    frame.loc[west, "age"] = np.nan
    lent = made(frame, missing="client", scale="none", test_fraction=0)
    expected = frame["age"].mean()
    assert float(rows_of(lent.train, 2)[0, 0]) == pytest.approx(expected)
    assert any("take the common one: 'age'" in words for words in lent.notes)
    with pytest.raises(DataError, match="leaves clients 'west' without a row"):
        made(frame, missing="drop")
    frame.loc[0, "outcome"] = None
    assert made(frame, missing="common", test_fraction=0).train.sizes.tolist() == [19, 20, 20]


def test_the_latest_rows_are_the_test() -> None:
    frame = table().assign(day=RNG.permutation(60))
    late = made(frame, time="day", drop=["colour", "smokes"], scale="none", test_fraction=0.25)
    for client, site in enumerate(("north", "south", "west")):
        expected = frame[frame["site"] == site].sort_values("day")["age"].tail(5)
        np.testing.assert_allclose(rows_of(late.test, client)[:, 0].sort().values, sorted(expected))
    dates = frame.assign(day=pd.to_datetime("2024-01-01") + pd.to_timedelta(frame["day"], "D"))
    for form in (dates, dates.astype({"day": str})):
        again = made(form, time="day", drop=["colour", "smokes"], scale="none", test_fraction=0.25)
        assert torch.equal(again.test.x, late.test.x)


def test_days_and_months() -> None:
    def order(*days: str) -> list[int]:
        parts = RowSplit(0.2, time="day").parts(pd.DataFrame({"day": days}), np.zeros(3, int), None)
        return parts.tolist()

    for last in ("2024-05-04", "2024-05-03T12:00:00+01:00", "3.6.2024", "31.5.2024", "5/31/2024"):
        earlier = {"-": "2024-05-03", ".": "4.5.2024", "/": "5/4/2024"}[last.strip("0123456789")[0]]
        assert order(earlier, last, earlier) == [0, 2, 0]
    with pytest.raises(DataError, match="some begin with the day and others with the month"):
        order("31/5/2024", "5/31/2024", "5/4/2024")
    with pytest.raises(DataError, match="5/4/2024 may begin with the day or with the month"):
        order("5/4/2024", "5/3/2024", "6/1/2024")


def test_a_patient_is_in_one_part() -> None:
    frame = table().assign(mark=np.arange(60) // 6)
    frame["patient"] = frame["site"] + frame["mark"].astype(str)
    f = made(frame, group="patient", features=["mark"], scale="none", val_fraction=0.2)
    for client in range(3):
        parts = [set(rows_of(s, client)[:, 0].tolist()) for s in (f.train, f.val, f.test)]
        assert all(parts) and sum(map(len, parts)) == len(set.union(*parts)) == 10


def test_every_class_has_a_training_row_where_the_client_has_it() -> None:
    frame = table(63)
    frame["outcome"] = np.where(np.arange(63) >= 60, "rare", frame["outcome"])
    for seed in range(5):
        f = made(frame, seed=seed, test_fraction=0.5)
        assert f.class_names == ("ill", "rare", "well")
        assert f.counts("train")[:, 1].tolist() == [1, 1, 1]


def test_regression_is_scored_and_answered_in_its_own_unit(tmp_path: Path) -> None:
    frame = table().assign(price=lambda t: 3000 + 10 * t["age"] + (t["colour"] == "red") * 50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # raw targets of 3000 would be warned about
        f = made(frame, "price", drop=["outcome"])
    assert f.task == "regression" and f.notes[0].endswith("different numbers: regression")
    assert float(f.train.y.abs().max()) < 5
    result = fit(f, "linear", LocalOnly(sgd=LocalSGD(lr=0.1)), rounds=20, out=tmp_path / "run")
    assert float(result.score.min()) > 0.99
    assert 0.5 < result.history[-1]["rmse_mean"] < 20
    rmse = result.history[-1]["rmse_mean"]
    assert float(result.evaluate("rmse").mean()) == pytest.approx(rmse, rel=1e-4)
    answers = result.predict(1, frame)
    assert answers.index.equals(frame.index) and answers.name == "price"
    assert float((answers - frame["price"]).abs().max()) < 60
    loaded = load_model(tmp_path / "run", 1)
    pd.testing.assert_series_equal(loaded.predict(frame.drop(columns="price")), answers)
    assert loaded.preprocessing is not None
    inputs = torch.from_numpy(loaded.preprocessing.transform(frame))
    np.testing.assert_allclose(result.predict(1, inputs)[:, 0], answers)
    two = made(frame, ["price", "age"], drop=["outcome"])
    assert two.num_outputs == 2 and two.preprocessing is not None


def test_tables_are_predicted_in_names(tmp_path: Path) -> None:
    frame = table()
    f = made(frame, missing="client")
    result = fit(f, "mlp", LocalOnly(sgd=LocalSGD(lr=0.2)), rounds=10, out=tmp_path / "run")
    answers = result.predict(2, frame[frame["site"] == "west"])
    assert (answers == frame.loc[answers.index, "outcome"]).mean() > 0.7
    chances = result.predict_proba("west", frame)
    assert (
        list(chances.columns) == ["ill", "well"]
        and (chances.idxmax(axis=1)[answers.index] == answers).all()
    )
    result.export(tmp_path / "out")
    loaded = load_model(tmp_path / "out", 2)
    unseen = pd.DataFrame(
        {"age": [50.0, None], "colour": ["violet", None], "smokes": [True, False]}
    )
    assert set(loaded.predict(unseen)) <= {"ill", "well"}
    assert (loaded.predict(unseen) == result.predict(2, unseen)).all()
    with pytest.raises(ConfigError, match=r"no column 'age': did you mean 'ages'"):
        loaded.predict(unseen.rename(columns={"age": "ages"}))
    refusing = fit(made(frame), "linear", LocalOnly(), rounds=1)
    with pytest.raises(DataError, match=r"column 'age' has 1 missing cells \(rows 1\): fill"):
        refusing.predict(0, unseen)
    numbers = made(frame.assign(outcome=RNG.integers(1, 4, 60)))
    assert fit(numbers, "linear", LocalOnly(), rounds=1).predict(0, frame).dtype == int


def test_predictions_are_of_the_kind_of_the_label() -> None:
    frame = table()
    ill = frame["outcome"] == "ill"
    for outcome in (ill, np.where(ill, "02", "10"), np.where(ill, 3, -1)):
        labelled = frame.assign(outcome=outcome)
        result = fit(made(labelled), "mlp", LocalOnly(sgd=LocalSGD(lr=0.2)), rounds=5)
        mine = labelled[labelled["site"] == "south"]
        assert (result.predict("south", mine) == mine["outcome"]).mean() > 0.6
        assert set(result.predict_proba("south", mine).columns) == set(outcome)


def test_the_positive_class_is_the_last() -> None:
    frame = table()
    f, turned = made(frame), made(frame, positive="ill")
    assert f.class_names == ("ill", "well") and "F1 counts 'well'" in " ".join(f.notes)
    assert turned.class_names == ("well", "ill") and "F1" not in " ".join(turned.notes)
    assert turned.counts("train").flip(1).equal(f.counts("train"))


def test_clients_of_a_file_are_called_as_they_are_written(tmp_path: Path) -> None:
    frame = table().assign(site=np.resize(["007", "7", "10"], 60))
    frame.to_csv(tmp_path / "clinics.csv", index=False)
    assert made(tmp_path / "clinics.csv").client_names == ("007", "7", "10")


def test_rows_of_nobody_are_left_out_where_rows_are_dropped() -> None:
    frame = table()
    frame.loc[0, "site"] = None
    f = made(frame, missing="drop", test_fraction=0)
    assert f.train.sizes.tolist() == [19, 20, 20]
    assert "1 rows have no 'site' and are left out" in f.notes


def test_clients_with_hardly_any_rows_can_be_left_out() -> None:
    frame = pd.concat([table(), table(1).assign(site="tiny"), table(2).assign(site="few")])
    f = made(frame, min_rows=2)
    assert f.client_names == ("few", "north", "south", "west")
    assert "1 clients with less than 2 rows are left out: 'tiny'" in f.notes
    with pytest.raises(ConfigError, match="min_rows = 0 is not possible: give 1"):
        made(frame, min_rows=0)
    with pytest.raises(DataError, match="min_rows = 30 leaves no client: the largest has 20 rows"):
        made(frame, min_rows=30)


def test_columns_of_other_kinds() -> None:
    frame = table().assign(
        paid=[Decimal(n % 7) for n in range(60)], stays=pd.Series([1] * 60, dtype=object)
    )
    frame = frame.rename(columns={"age": 1})
    for backend in (frame, frame.convert_dtypes(dtype_backend="pyarrow")):
        f = made(backend)
        assert f.preprocessing is not None
        kinds = [column.kind for column in f.preprocessing.columns]
        assert kinds == ["number", "category", "switch", "number", "number"]
        assert f.preprocessing.transform(frame).shape == (60, 7)


class Foreign:
    """A table of another library."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.to_pandas = lambda: frame


class Protocol:
    """A table that offers one protocol alone."""

    def __init__(self, frame: pd.DataFrame, name: str) -> None:
        setattr(self, name, getattr(frame, name))


def test_other_tables_are_the_same(tmp_path: Path) -> None:
    frame = table()
    expected = made(frame).train
    frame.to_csv(tmp_path / "clinics.csv", index=False)
    frame.to_csv(tmp_path / "clinics.tsv.gz", sep="\t", index=False)
    frame.to_parquet(tmp_path / "clinics.parquet")
    files = [tmp_path / f"clinics.{end}" for end in ("csv", "tsv.gz", "parquet")]
    protocols = [Protocol(frame, name) for name in ("__arrow_c_stream__", "__dataframe__")]
    for form in (
        *files,
        str(files[0]),
        Foreign(frame),
        *protocols,
        frame.set_index("age").reset_index(),
    ):
        found = made(form)
        if not isinstance(form, pd.DataFrame):
            assert torch.equal(found.train.x, expected.x)
        assert found.name == ("clinics" if isinstance(form, str | Path) else "table")
    with pytest.raises(DataError, match="is a dict: give a pandas table"):
        made(frame.to_dict())
    with pytest.raises(DataError, match="is missing: check the path"):
        made(tmp_path / "no.csv")
    with pytest.raises(DataError, match="an ending that is not known"):
        made(tmp_path / "clinics.xlsx")
    for name in ("broken.csv", "broken.parquet"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DataError, match="cannot be read as a table"):
            made(tmp_path / name)
    frame.to_csv(tmp_path / "german.csv", sep=";", index=False)
    with pytest.raises(DataError, match="separates its columns by ';': save it with commas"):
        made(tmp_path / "german.csv")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"drop": ["aeg"]}, "column 'aeg' is not a column of the table: did you mean 'age'"),
        ({}, {"label": "result"}, "label 'result' is not a column"),
        ({}, {"label": "site"}, "column 'site' cannot be two of client, label"),
        ({}, {"time": "outcome"}, "column 'outcome' cannot be two of client, label, time"),
        ({}, {"positive": "il"}, "unknown positive 'il': did you mean 'ill'"),
        ({}, {"label": "colour", "positive": "red"}, "positive = 'red' needs two classes"),
        ({}, {"label": "age", "positive": "1"}, "positive = '1' is a class, and this is regress"),
        ({}, {"features": "age"}, r"features = 'age' is a text: give a list of columns, \['age'\]"),
        ({}, {"features": ["age", "outcome"]}, "'outcome' is the client or the label"),
        ({}, {"features": ["age"], "drop": ["age"]}, "no column is left"),
        ({}, {"missing": "dorp"}, "unknown missing 'dorp': did you mean 'drop'"),
        ({}, {"time": "age", "group": "colour"}, "time, group and split = .*: give one of them"),
        ({}, {"time": "colour"}, "time column 'colour' cannot be read as dates"),
        ({}, {"split": "colour"}, "split column 'colour' has 'blue': write train, val or test"),
        ({}, {"task": "regression"}, "column 'outcome' has '.*' where a number belongs"),
        ({}, {"test_fraction": 1.0}, "test_fraction = 1.0"),
        ({}, {"test_fraction": "a"}, "test_fraction = 'a' is not possible: give a number"),
        ({"seen": pd.Timestamp("2024-05-31")}, {}, "column 'seen' holds dates: leave it out"),
        ({"seen": "2024-05-31"}, {}, "column 'seen' holds dates"),
        ({"ca": ["1", "2", "?"] * 20}, {}, "numbers as text because of 20 cells such as '\\?'"),
        ({"odd": [[1]] * 60}, {}, "column 'odd' holds values of type list"),
        ({"odd": [np.inf] * 60}, {}, "column 'odd' has infinite numbers"),
        ({"outcome": [1j] * 60}, {"task": "regression"}, "'outcome' holds complex numbers"),
        ({"site": [None] * 60}, {}, "60 rows have no 'site'"),
        ({"outcome": RNG.random(60)}, {"task": "classification"}, "holds numbers such as .*round"),
        ({}, {"label": ["age", "outcome"], "task": "classification"}, "classification takes one"),
        ({"outcome": range(60)}, {"time": "age"}, "'outcome' has 12 classes without a training"),
        ({"part": ["test", "train", "test"] * 20}, {"split": "part"}, "'north', 'west' have no tr"),
    ],
)
def test_refuses(change: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with warnings.catch_warnings(), pytest.raises((DataError, ConfigError), match=message):
        warnings.simplefilter("ignore")
        made(table().assign(**change), **({"label": "outcome"} | options))


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    table().head(0).to_csv(tmp_path / "empty.csv", index=False)
    for data in (table().head(0), tmp_path / "empty.csv"):
        with pytest.raises(DataError, match="has no rows: give"):
            made(data)


def test_columns_with_too_many_categories() -> None:
    frame = pd.concat([table()] * 4).assign(name=[f"patient {i}" for i in range(240)])
    with pytest.raises(DataError, match=r"'name' has 240 different values.*drop=\('name',\)"):
        made(frame)


@pytest.mark.parametrize(
    ("change", "label", "message"),
    [
        ({"id": range(60)}, "outcome", r"'id' has another value in every row, .* drop=\('id',\)"),
        ({"outcome": [0.0, 1.0] * 30}, "outcome", "2 whole numbers stored with a point"),
        ({"outcome": range(60)}, "outcome", "60 different values in 60 rows, each a class"),
        ({"outcome": [*range(30)] * 2}, "outcome", "30 different values in 60 rows, each a class"),
        ({"outcome": ["a", "b", "b"] * 20}, "outcome", "training rows of one class only"),
        (
            {"site": ["Bern", "Ulm", "bern "] * 20},
            "outcome",
            "clients 'Bern', 'bern ' differ in sp",
        ),
        ({"outcome": ["ill", "Ill"] * 30}, "outcome", "classes 'Ill', 'ill' differ in spaces"),
        ({"outcome": [1.5] * 60}, "outcome", "3 of 3 clients have one target in all training"),
    ],
)
def test_warns(change: dict[str, Any], label: str, message: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made(table().assign(**change), label, test_fraction=0)
    assert any(re.search(message, str(w.message)) for w in caught)


def test_what_clients_share() -> None:
    frame = table().assign(patient=np.arange(60) // 6)
    with pytest.warns(UserWarning, match=r"10 values of group 'patient' .* of several clients"):
        made(frame, group="patient")
    frame = table(120)
    south = frame["site"] == "south"
    columns = ["age", "colour", "smokes", "outcome"]
    frame.loc[south, columns] = np.array(frame.loc[frame["site"] == "north", columns])
    with pytest.warns(UserWarning, match=r"of 24 test rows are also training rows of other cl"):
        made(frame)


def test_small_clients() -> None:
    frame = pd.concat([table(), table(1).assign(site="tiny")])
    with pytest.warns(UserWarning) as caught:
        f = made(frame)
    assert f.train.sizes.tolist() == [16, 16, 1, 16] and f.test.sizes.tolist()[2] == 0
    said = " ".join(str(w.message) for w in caught)
    assert "1 of 4 clients have no test samples (clients 'tiny')" in said
    assert "training rows of one class only (clients 'tiny')" in said
