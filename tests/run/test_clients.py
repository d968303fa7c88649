"""One client at a time: its data, its model's answers, and metrics of all clients afterwards."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

import scool
from scool.errors import ConfigError
from toys import classification, regression

NAMES = ("Bern", "Ulm", "Lyon")


@pytest.fixture(scope="module")
def federation() -> scool.Federation:
    rng = np.random.default_rng(0)
    clients = []
    for size in (60, 40, 30):
        x = rng.normal(size=(size, 4)).astype("float32")
        clients.append((x, (x[:, 0] + 0.5 * rng.normal(size=size) > 0).astype(int)))
    return scool.from_arrays(clients, client_names=NAMES, class_names=["well", "ill"])


@pytest.fixture(scope="module")
def result(federation: scool.Federation, tmp_path_factory: pytest.TempPathFactory) -> scool.Result:
    out = tmp_path_factory.mktemp("runs") / "run"
    sgd = scool.LocalSGD(lr=0.2)
    return scool.fit(
        federation, "mlp", scool.LocalOnly(sgd=sgd), rounds=2, metrics=("auc", "f1"), out=out
    )


def test_a_client_has_its_own_samples_and_its_name(federation: scool.Federation) -> None:
    one = federation.client("Ulm")
    assert (one.number, one.name) == (1, "Ulm")
    for part in ("train", "val", "test"):
        split, mine = getattr(federation, part), getattr(one, part)
        there = split.mask[1]
        assert torch.equal(mine.x, split.x[split.index[1][there]])
        assert torch.equal(mine.y, split.y[1][there])
        assert len(mine.y) == int(split.sizes[1])
    assert torch.equal(federation.client(np.int64(1)).train.x, one.train.x)
    assert classification().client(3).name == "3"


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("Brn", "unknown client 'Brn': did you mean 'Bern'"),
        (3, "client = 3 is not possible: give a number from 0 to 2 or a name"),
        (-1, "client = -1"),
        (True, "client = True"),
        (None, "client = None"),
    ],
)
def test_a_client_that_is_not_there_is_named(result: scool.Result, which: int, words: str) -> None:
    x = result.federation.test.x
    for ask in (
        result.federation.client,
        result.model,
        lambda client: result.predict(client, x),
        lambda client: scool.load_model(str(result.run_dir), client),
    ):
        with pytest.raises(ConfigError, match=words):
            ask(which)
    with pytest.raises(ConfigError, match="the clients have no names; give a number from 0 to 3"):
        classification().client("Bern")


def test_models_are_found_by_name(result: scool.Result, tmp_path: Path) -> None:
    x = result.federation.client("Lyon").test.x
    result.export(tmp_path / "export")
    for model in (
        scool.load_model(str(result.run_dir), "Lyon"),
        scool.load_model(tmp_path / "export", "Lyon"),
    ):
        assert torch.equal(model(x), result.outputs(2, x))
    assert torch.equal(result.predict("Lyon", x), result.predict(2, x))
    with pytest.raises(ConfigError, match="unknown client 'Lion': did you mean 'Lyon'"):
        scool.load_model(tmp_path / "export", "Lion")
    with pytest.raises(ConfigError, match="has 3 models; give the number or the name"):
        scool.load_model(tmp_path / "export")


def test_probabilities_belong_to_the_predictions(result: scool.Result) -> None:
    x = result.federation.test.x
    model = scool.load_model(str(result.run_dir), 0)
    found = result.predict_proba(0, x)
    assert found.shape == (len(x), 2)
    assert torch.allclose(found.sum(dim=1), torch.ones(len(x)))
    assert torch.equal(found.argmax(dim=1), result.predict(0, x))
    assert torch.equal(found, model.predict_proba(x))
    bad = x.clone()
    bad[1, 0] = math.nan
    with pytest.raises(ConfigError, match=r"x has 1 of .* rows that are not finite"):
        model.predict_proba(bad)
    with pytest.raises(ConfigError, match=r"array of torch.complex64.*give real numbers"):
        model.predict(x * 1j)
    with pytest.raises(ConfigError, match=r"x = 'a torch.sparse_coo array .*dense"):
        model.predict(x.to_sparse())
    for odd in (None, csr_matrix(x.numpy()), [[1, 2], [3]]):
        with pytest.raises(ConfigError, match=r"x is not an array of numbers .a .*: give as many"):
            model.predict(odd)


def test_classes_that_a_client_never_answers_with_have_no_probability() -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(12, 4)).astype("float32"), np.arange(12) % 2 + k) for k in (0, 1)]
    federation = scool.from_arrays(clients, classes=torch.tensor([[1, 1, 0], [0, 1, 1]]).bool())
    result = scool.fit(federation, "linear", scool.LocalOnly(), rounds=1)
    found = result.predict_proba(0, federation.test.x[:5])
    assert bool((found[:, ~federation.classes[0]] == 0).all())


def test_batches_change_nothing(result: scool.Result) -> None:
    x = result.federation.test.x
    whole = result.predict_proba(1, x)
    for batch in (1, 3, len(x)):
        assert torch.allclose(result.predict_proba(1, x, batch=batch), whole)
        assert torch.equal(result.predict(1, x, batch=batch), whole.argmax(dim=1))
    assert len(result.predict(1, x[:0])) == 0
    with pytest.raises(ConfigError, match="batch = 0 is not possible"):
        result.predict(1, x, batch=0)


def test_metrics_afterwards_are_those_of_the_run(result: scool.Result) -> None:
    last = result.history[-1]["metrics"]
    for name in ("auc", "f1"):
        expected = [math.nan if value is None else value for value in last[name]]
        assert result.evaluate(name).tolist() == pytest.approx(expected, nan_ok=True)
    assert result.evaluate("accuracy").tolist() == pytest.approx(result.score.tolist())


def test_metrics_are_in_the_tables_of_a_result(result: scool.Result) -> None:
    last = result.history[-1]
    frame = result.to_pandas("clients")
    assert frame["auc"].isna().tolist() == [value is None for value in last["metrics"]["auc"]]
    assert frame["auc"].dropna().tolist() == [v for v in last["metrics"]["auc"] if v is not None]
    assert result.to_pandas()["f1_mean"].tolist()[-1] == last["f1_mean"]
    assert f"{last['auc_mean']:.3f}" in result._repr_html_()


def test_a_function_judges_each_part_of_each_client(result: scool.Result) -> None:
    def ill(outputs: Tensor, targets: Tensor) -> float:
        return float((outputs.argmax(dim=1) == 1).sum() * 100 + len(targets))

    for part in ("train", "val", "test"):
        found = result.evaluate(ill, on=part)  # type: ignore[arg-type]
        for name, value in zip(NAMES, found.tolist(), strict=True):
            x, y = getattr(result.federation.client(name), part)
            if len(y):
                assert value == 100 * int((result.predict(name, x) == 1).sum()) + len(y)
            else:
                assert math.isnan(value)
    assert result.evaluate(lambda outputs, targets: 1.0).tolist() == [1.0] * 3
    with pytest.raises(ConfigError, match="unknown part of the data 'tst': did you mean 'test'"):
        result.evaluate("auc", on="tst")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown metric 'acc'"):
        result.evaluate("acc")


def test_regression_has_a_score_and_no_accuracy() -> None:
    federation = regression()
    result = scool.fit(federation, "linear", scool.LocalOnly(), rounds=1)
    with pytest.raises(ConfigError, match=r"`result.score` is R\^2"):
        _ = result.accuracy
    with pytest.raises(ConfigError, match="a regression has no probabilities"):
        result.predict_proba(0, federation.test.x)
    with pytest.raises(ConfigError, match=r"metrics = 'auc' .* this is regression"):
        result.evaluate("auc")
    rmse = result.evaluate("rmse")
    x, y = federation.client(0).test
    assert float(rmse[0]) == pytest.approx(float((result.predict(0, x) - y).square().mean().sqrt()))
    assert result.evaluate("r2").tolist() == pytest.approx(result.score.tolist(), rel=1e-4)
