"""Owners that come and go in `fit`: what each option does, and what is said of wrong ones."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scool import DPSGD, SBM, FedAvg, LocalOnly, LocalSGD, SCooL, Tracks, fit, load_model
from scool.errors import ConfigError, RunError
from scool.health import Attendance
from scool.learning.local_sgd import shortened
from toys import assert_trees_equal, classification, regression, start

NAMES = ("city", "port", "hill", "lake")
FEDERATION = replace(classification(), client_names=NAMES)
SGD = LocalSGD(lr=0.1, epochs=2, batch_size=4)
LOCAL = LocalOnly(sgd=SGD)


def run(method: Any = LOCAL, rounds: int = 3, **options: Any) -> Any:
    return fit(FEDERATION, "linear", method, rounds=rounds, device="cpu", **options)


def absences(result: Any) -> list[list[int]]:
    return [row.get("absent", []) for row in result.history]


def test_a_share_is_drawn_for_every_round_as_servers_draw_it() -> None:
    result = run(DPSGD(sgd=SGD, topology="complete"), rounds=6, participation=0.5)
    assert all(len(absent) == 2 for absent in absences(result))
    assert len({tuple(absent) for absent in absences(result)}) > 1
    asked = run(FedAvg(sgd=SGD), participation=0.5)
    own = run(FedAvg(sgd=SGD, participation=0.5))
    assert_trees_equal(asked.theta, own.theta)
    with pytest.raises(ConfigError, match=r"FedAvg has 0\.5 already"):
        run(FedAvg(sgd=SGD, participation=0.5), participation=0.25)


def test_a_trace_may_be_a_function_a_table_or_a_file(tmp_path: Path) -> None:
    table = np.ones((3, 4), dtype=bool)
    table[1, 0] = table[2, 3] = False
    lines = ["client,from,to", "city,0,0", "city,2,9", "3,0,1"]
    (tmp_path / "trace.csv").write_text("\n".join(lines))
    traces = [table, lambda c, t: bool(table[t, c]), str(tmp_path / "trace.csv")]
    for trace in traces:
        assert absences(run(availability=trace)) == [[], [0], [3]]


def test_a_client_that_joins_late_is_scored_with_the_first_model_until_then() -> None:
    result = run(joins={"port": 2})
    assert absences(result) == [[1], [1], []]
    with pytest.warns(UserWarning, match="client port joins in round 2, and 2 are run"):
        early = run(rounds=2, joins={1: 2})
    first = early.history[0]["scores"][1]
    assert first == early.history[1]["scores"][1] != result.history[2]["scores"][1]


def test_a_method_hears_of_newcomers() -> None:
    table = torch.tensor([[1, 0, 1], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    attendance = Attendance(3, seed=0, table=table)
    assert [attendance.newcomers(t).tolist() for t in range(3)] == [[], [1], []]


def test_the_graph_holds_what_each_client_last_mixed_with() -> None:
    method = SCooL(prior=SBM(num_blocks=2), sgd=SGD)
    result = run(method, rounds=2, availability=lambda c, t: c != 1 or t == 0)
    assert torch.equal(result.graphs[1][1], torch.eye(4)[1])
    assert torch.equal(result.graph[1], result.graphs[0][1])
    assert torch.equal(result.graph[0], result.graphs[1][0])


def test_a_slow_client_takes_the_first_of_its_steps() -> None:
    one = LocalSGD(lr=0.1, steps=1, batch_size=4)
    four = LocalSGD(lr=0.1, steps=4, batch_size=4)
    slow = run(LocalOnly(sgd=four), rounds=1, stragglers=1.0, straggler_steps=0.25)
    fast = run(LocalOnly(sgd=one), rounds=1)
    assert_trees_equal(slow.theta, fast.theta)
    assert slow.history[0]["slow"] == [0, 1, 2, 3]
    assert slow.history[0]["epochs"] == fast.history[0]["epochs"]
    some = run(rounds=8, stragglers=0.5)
    assert 0 < sum(len(row.get("slow", [])) for row in some.history) < 32
    assert shortened(torch.tensor([3]), torch.tensor([0.5])).tolist() == [2]


def test_each_client_may_have_a_learning_rate_of_its_own() -> None:
    result = run(client_lr={"city": 0.3, "hill": 0.02})
    for client, lr in ((0, 0.3), (1, 0.1), (2, 0.02)):
        alone = run(LocalOnly(sgd=replace(SGD, lr=lr)))
        for name, stacked in result.theta.items():
            torch.testing.assert_close(stacked[client], alone.theta[name][client])
    same = run(client_lr=torch.full((4,), 0.1))
    assert_trees_equal(same.theta, run().theta)


def test_a_run_stops_when_validation_says_so_and_keeps_the_best(tmp_path: Path) -> None:
    wild = LocalOnly(sgd=LocalSGD(lr=5.0, epochs=3, batch_size=2))
    result = run(wild, rounds=40, patience=2, out=tmp_path / "run")
    rows = result.history
    assert result.rounds == len(rows) < 40 and rows[-1]["waited"] == 2
    losses = [row["validation_loss"] for row in rows]
    best = losses.index(min(losses))
    assert best == len(rows) - 3
    until = run(wild, rounds=best + 1, patience=2)
    assert_trees_equal(result.theta, until.theta)
    again = run(wild, rounds=40, patience=2, out=tmp_path / "run", resume=True)
    assert again.rounds == result.rounds
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"participation": 0.0}, r"participation = 0\.0 .* \(0, 1\]"),
        ({"stragglers": 2.0}, r"stragglers = 2\.0"),
        ({"straggler_steps": 0.0}, r"straggler_steps = 0\.0"),
        ({"joins": {"prot": 1}}, "unknown client 'prot': did you mean 'port'"),
        ({"joins": {"port": 0.5}}, r"joins = 0\.5 .* give a round"),
        ({"joins": "port"}, r"joins = 'port' .*joins=\{'a': 3\}"),
        ({"client_lr": {7: 0.1}}, "client = 7 .* from 0 to 3"),
        ({"client_lr": {0: -1}}, "client_lr = -1"),
        ({"client_lr": {0: 0.1}, "method": Tracks(kinds="alone")}, "lr = 0.0 .* of the others"),
        ({"availability": lambda c, t: t < 2}, "nobody is there in round 2"),
        ({"availability": torch.ones(2, 4)}, r"availability = .*\(2, 4\).* give \(3, 4\)"),
        ({"availability": "no.csv"}, "'no.csv' cannot be read"),
        ({"availability": 7}, "availability = 7 .* a function"),
        ({"patience": -1}, "patience = -1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(**options)


def test_a_run_is_continued_with_the_owners_it_was_started_with(tmp_path: Path) -> None:
    run(rounds=1, participation=0.5, out=tmp_path)
    for options in ({}, {"participation": 0.25}, {"participation": 0.5, "joins": {"port": 1}}):
        with pytest.raises(RunError, match="come and go otherwise"):
            run(rounds=2, out=tmp_path, resume=True, **options)
    identity = json.loads((tmp_path / "run.json").read_text())["identity"]
    assert identity["owners"] == {"participation": 0.5}


def test_clients_train_on_alone_before_they_are_judged_also_who_is_away(tmp_path: Path) -> None:
    """As `LocalOnly` for a round does that starts with the models of the run."""
    method = DPSGD(sgd=SGD, topology="complete")
    away = {"availability": lambda client, round: client != 2 or round == 0}
    before = run(method, rounds=2, **away)
    tuned = run(method, rounds=2, fine_tune=4, out=tmp_path / "r", **away)
    alone = LocalOnly(sgd=replace(SGD, epochs=4))
    engine, _ = start(FEDERATION, before.module, seed=0)
    expected = engine.train(before.theta, alone.sgd, 2).theta
    assert_trees_equal(tuned.theta, expected)
    assert not torch.equal(tuned.score, before.score)
    assert tuned.history[0] == before.history[0] and tuned.messages == before.messages
    assert tuned.history[1]["epochs"] > before.history[1]["epochs"]
    model = load_model(tmp_path / "r", "hill", module=tuned.module)
    assert torch.equal(model.network.state_dict()["1.weight"], expected["1.weight"][2])
    longer = run(method, rounds=3, fine_tune=4, out=tmp_path / "r", resume=True, **away)
    assert_trees_equal(longer.theta, run(method, rounds=3, fine_tune=4, **away).theta)
    with pytest.raises(RunError, match="another between_rounds"):
        run(method, rounds=3, out=tmp_path / "r", resume=True, **away)


def test_fine_tuning_waits_for_the_end_and_leaves_out_whom_it_breaks() -> None:
    wild = LocalOnly(sgd=LocalSGD(lr=5.0, epochs=3, batch_size=2))
    stopped = run(wild, rounds=40, patience=2)
    tuned = run(wild, rounds=40, patience=2, fine_tune=1)
    assert tuned.rounds == stopped.rounds and "scores" in tuned.history[-1]
    assert tuned.history[:-1] == stopped.history[:-1]
    assert not torch.equal(tuned.theta["1.weight"], stopped.theta["1.weight"])
    steep = {"rounds": 1, "client_lr": {0: 9.0}, "device": "cpu"}
    gentle = LocalOnly(sgd=LocalSGD(lr=0.01, steps=1))
    with pytest.warns(UserWarning, match="client 0 is left out after round 1: non-finite"):
        broken = fit(regression(), "linear", gentle, fine_tune=200, **steep)
    kept = fit(regression(), "linear", gentle, **steep).theta
    for name, rows in broken.theta.items():
        assert torch.equal(rows[0], kept[name][0]) and not torch.equal(rows[1], kept[name][1])
    for option in ("fine_tune", "patience"):
        with pytest.raises(ConfigError, match=f"{option} = 2 is not possible: Tracks answers wi"):
            run(Tracks(sgd=SGD), **{option: 2})
