"""Clients whose data, losses or models are not finite: left out, recorded, said."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scool import DPSGD, IFCA, MMSBM, SPDB, FedFomo, LocalOnly, LocalSGD, SCooL, Truth, fit
from scool.data.arrays import from_arrays
from scool.data.federation import Federation
from scool.errors import QuarantineError
from scool.evaluation.scores import Scores, describe_round
from scool.graph.mixing import without
from scool.health import Reason
from scool.priors import SBM
from scool.run.prepare import prepare_data
from toys import (
    classification,
    poisoned,
    regression,
    start,
)

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=4)
METHOD = SCooL(prior=SBM(num_blocks=2), sgd=SGD)


def test_quarantine_is_recorded_and_strict_stops(tmp_path: Path) -> None:
    federation = poisoned(classification(), 1)
    words = "client 1 is left out from the start: .* Fix its data"
    with pytest.warns(UserWarning, match=words) as said:
        result = fit(federation, "mlp", METHOD, rounds=2, device="cpu", out=tmp_path / "a")
    assert len(said) == 1
    assert result.summary()["quarantined"] == {"1": "inputs or targets"}
    assert result.summary()["accuracy_mean"] is not None
    with pytest.raises(QuarantineError, match="client 1"):
        fit(federation, "mlp", METHOD, rounds=2, device="cpu", out=tmp_path / "b", strict=True)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "method",
    [METHOD, SCooL(prior=MMSBM(num_blocks=2), sgd=SGD), IFCA(num_clusters=2, sgd=SGD)],
)
def test_a_client_in_quarantine_is_in_no_block(method: Any, tmp_path: Path) -> None:
    federation = poisoned(classification(), 1)
    result = fit(federation, "mlp", method, rounds=2, device="cpu", out=tmp_path / "run")
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        blocks = json.loads(line)["blocks"]
        assert blocks[1] is None and all(blocks[i] in (0, 1) for i in (0, 2, 3))
    assert result.to_pandas("clients")["block"].isna().tolist() == [False, True, False, False]


def test_groups_are_looked_for_among_the_active() -> None:
    """A graph that is right for all who take part has an index of 1."""
    federation = classification((3,) * 20, groups=4)
    engine, _ = start(federation)
    engine.quarantine(dict.fromkeys(range(5), Reason.read("loss")))
    assert federation.truth is not None
    graph = without(federation.truth, engine.active)
    scores = Scores(*[torch.ones(20)] * 3)
    info: dict[str, Any] = {"train_loss": 1.0, "graph": graph}
    assert describe_round(0, info, scores, engine, federation)["graph_ari"] == 1.0


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_targets_that_are_no_numbers_put_a_client_into_quarantine(value: float) -> None:
    federation = regression()
    y = federation.train.y.clone()
    y[2, 0] = value
    federation = replace(federation, train=federation.train._replace(y=y))
    with pytest.warns(UserWarning, match="client 2 is left out from the start"):
        result = fit(federation, "linear", LocalOnly(), rounds=1, device="cpu")
    assert list(result.summary()["quarantined"]) == ["2"]


def test_broken_samples_in_the_validation_share_count_too() -> None:
    method = FedFomo(sgd=SGD, validation=0.4)
    held = prepare_data(classification(), method, 0)
    x = held.val.x.clone()
    x[held.val.index[1, 0]] = torch.nan
    broken = replace(held, val=held.val._replace(x=x))
    with pytest.warns(UserWarning, match="client 1 is left out from the start"):
        fit(broken, "mlp", method, rounds=1, device="cpu")


@pytest.mark.parametrize("make", [classification, regression])
def test_test_data_that_are_no_numbers_give_no_score(make: Callable[[], Federation]) -> None:
    federation = make()
    x = federation.test.x.clone()
    x[federation.test.index[1, 0]] = torch.nan
    broken = replace(federation, test=federation.test._replace(x=x))
    words = r"1 of \d clients have non-finite test inputs or targets \(clients 1\): .* no score"
    with pytest.warns(UserWarning, match=words):
        result = fit(broken, "linear", LocalOnly(), rounds=1, device="cpu")
    whole = fit(federation, "linear", LocalOnly(), rounds=1, device="cpu")
    assert bool(result.score[1].isnan())
    others = torch.arange(len(result.score)) != 1
    assert torch.equal(result.score[others], whole.score[others])
    row = result.history[-1]
    name = "accuracy_mean" if federation.task == "classification" else "r2_mean"
    assert row[name] == pytest.approx(float(whole.score[others].mean()))
    with pytest.raises(QuarantineError, match="client 1 has non-finite test inputs or targets"):
        fit(broken, "linear", LocalOnly(), rounds=1, device="cpu", strict=True)


@pytest.mark.parametrize("method", [DPSGD(topology="complete"), SPDB(topology="complete"), Truth()])
def test_the_recorded_graph_leaves_out_who_is_in_quarantine(method: Any) -> None:
    federation = poisoned(classification(), 1)
    k = federation.num_clients
    federation = replace(federation, truth=torch.full((k, k), 1 / k, dtype=torch.float64))
    with pytest.warns(UserWarning, match="client 1 is left out"):
        result = fit(federation, "mlp", method, rounds=1, device="cpu")
    expected = torch.full((k, k), 1 / (k - 1))
    expected[1], expected[:, 1], expected[1, 1] = 0, 0, 1
    torch.testing.assert_close(result.graphs[0], expected)


@pytest.mark.parametrize("federation", [regression(), classification()])
def test_everybody_in_quarantine_ends_with_a_word(federation: Any, tmp_path: Path) -> None:
    method = SCooL(prior=SBM(num_blocks=2), sgd=LocalSGD(lr=1e38, batch_size=2))
    with pytest.raises(QuarantineError, match=r"all 4 clients .* nobody is left"):
        fit(federation, "mlp", method, rounds=3, device="cpu", out=tmp_path / "run")


def test_nobody_has_test_samples() -> None:
    own = [(torch.randn(4, 4), torch.tensor([0, 1, 2, 0])) for _ in range(3)]
    result = fit(from_arrays(own, test_fraction=0.0), "linear", METHOD, rounds=1, device="cpu")
    assert result.summary()["accuracy_mean"] is None
    json.dumps(result.summary(), allow_nan=False)


@pytest.mark.filterwarnings("ignore:1 of .* clients have the same target")
def test_a_client_with_one_test_value_has_no_r2_and_spoils_nobodys_mean() -> None:
    clients = []
    for tests in (1, 5, 5):
        x, x_test = torch.randn(6, 2), torch.randn(tests, 2)
        clients.append((x, x.sum(dim=1), x_test, x_test.sum(dim=1)))
    federation = from_arrays(clients, task="regression")
    result = fit(federation, "linear", LocalOnly(sgd=SGD), rounds=2, device="cpu")
    assert result.score.isnan().tolist() == [True, False, False]
    assert result.summary()["r2_mean"] is not None
