"""A personal model beside that of any method."""

from pathlib import Path
from typing import Any

import pytest
import torch

from scool.algorithms import CGA, IFCA, Ditto, FedAvg, LocalOnly, SCooL
from scool.algorithms.between_rounds import unwrapped, wrapped
from scool.errors import ConfigError, RunError
from scool.experiment.run import fit
from scool.learning.local_sgd import LocalSGD, Pull
from scool.priors import SBM
from scool.report.records import read_run
from toys import assert_trees_equal, classification, is_finite, poisoned, start

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=3)
DRAWN = SCooL(prior=SBM(num_blocks=2), sgd=SGD, peers="drawn", sparsify_round=1)
ALL: dict[str, Any] = {"slow_momentum": 0.5, "model_average": 0.8, "personal_pull": 0.7}


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_around_fedavg_it_is_ditto(participation: float) -> None:
    """To the bit, in models, losses and costs."""
    ditto = Ditto(sgd=SGD, lam=0.7, participation=participation)
    fedavg = FedAvg(sgd=SGD, participation=participation)
    wanted = fit(classification(), "mlp", ditto, rounds=4, device="cpu")
    found = fit(classification(), "mlp", fedavg, rounds=4, device="cpu", personal_pull=0.7)
    assert_trees_equal(found.theta, wanted.theta)
    assert [row["train_loss"] for row in found.history] == [
        row["train_loss"] for row in wanted.history
    ]
    assert (found.epochs, found.bytes_sent) == (wanted.epochs, wanted.bytes_sent)


def test_the_pull_is_to_what_would_be_scored_without_it() -> None:
    """The average over rounds, and the method goes on as if nobody watched."""
    engine, theta0 = start(classification())
    method = wrapped(DRAWN, **ALL)
    alone = wrapped(DRAWN, slow_momentum=0.5, model_average=0.8)
    other, _ = start(classification())
    personal = engine.replicate(theta0)
    state, plain = method.init(engine, theta0), alone.init(other, theta0)
    for t in range(4):
        state, _ = method.step(engine, state, t)
        anchor = {n: x.clone() for n, x in plain.theta.items()}
        personal = other.train(personal, SGD, t, pull=Pull(anchor, 0.7)).theta
        personal = {n: x.clone() for n, x in personal.items()}
        plain, _ = alone.step(other, plain, t)
        assert_trees_equal(state.theta, personal)
        assert_trees_equal(state.method.theta, plain.theta)
    assert unwrapped(method) is DRAWN


def test_a_stopped_run_goes_on_to_the_bit_and_reports_find_the_blocks(tmp_path: Path) -> None:
    options = {"device": "cpu", **ALL}
    whole = fit(classification(), "mlp", DRAWN, rounds=5, **options)
    out = tmp_path / "run"
    fit(classification(), "mlp", DRAWN, rounds=3, out=out, **options)
    with pytest.raises(RunError, match="another between_rounds"):
        less = {**options, "personal_pull": 0.0}
        fit(classification(), "mlp", DRAWN, rounds=5, out=out, resume=True, **less)
    parts = fit(classification(), "mlp", DRAWN, rounds=5, out=out, resume=True, **options)
    assert_trees_equal(parts.theta, whole.theta)
    shares = read_run(out).memberships()
    assert shares is not None and shares.shape[1] == 2


def test_runs_from_before_the_option_go_on(tmp_path: Path) -> None:
    local = LocalOnly(sgd=SGD)
    fit(classification(), "mlp", local, rounds=2, device="cpu", out=tmp_path)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"personal_pull": 0.0', '"model_average": 0.0'))
    assert "personal_pull" not in path.read_text()
    more: dict[str, Any] = {"out": tmp_path, "resume": True, "device": "cpu"}
    assert fit(classification(), "mlp", local, rounds=3, **more).rounds == 3
    with pytest.raises(RunError, match="another between_rounds"):
        fit(classification(), "mlp", local, rounds=4, personal_pull=1.0, **more)


@pytest.mark.parametrize("method", [CGA(sgd=SGD, degree=2), IFCA(sgd=SGD, num_clusters=2)])
def test_methods_that_train_other_models_go_on_beside_it(method: Any) -> None:
    """Visitors are trained in rows that are lent; clusters have models of their own."""
    plain = fit(classification(), "mlp", method, rounds=3, device="cpu")
    found = fit(classification(), "mlp", method, rounds=3, device="cpu", personal_pull=0.5)
    assert found.epochs == plain.epochs + 3 * SGD.epochs
    for mine, other in zip(found.graphs.values(), plain.graphs.values(), strict=True):
        assert torch.equal(mine, other)
    assert any(not torch.equal(found.theta[n], plain.theta[n]) for n in plain.theta)


def test_who_breaks_keeps_its_personal_model_and_the_others_go_on() -> None:
    local = LocalOnly(sgd=SGD)
    whole = fit(classification(), "mlp", local, rounds=3, device="cpu", personal_pull=0.5)
    data = poisoned(classification(), 1)
    found = fit(data, "mlp", local, rounds=3, device="cpu", personal_pull=0.5)
    assert list(found.history[-1]["quarantined"]) == ["1"] and is_finite(found.theta)
    others = [i for i in range(classification().num_clients) if i != 1]
    assert_trees_equal(
        {n: t[others] for n, t in found.theta.items()},
        {n: t[others] for n, t in whole.theta.items()},
    )


class NoSGD:
    def init(self, engine: Any, theta0: Any) -> Any: ...
    def step(self, engine: Any, state: Any, round: int) -> Any: ...


def test_what_cannot_be_is_refused() -> None:
    local = LocalOnly(sgd=SGD)
    with pytest.raises(ConfigError, match=r"personal_pull = -1 is not possible: give 0"):
        wrapped(local, personal_pull=-1)
    with pytest.raises(ConfigError, match=r"personal_pull = 20.*overshoots; give less than 20"):
        wrapped(local, personal_pull=20)
    with pytest.raises(ConfigError, match=r"personal_pull = 1 is not possible: NoSGD has no `sgd`"):
        wrapped(NoSGD(), personal_pull=1)
    assert wrapped(local) is local
