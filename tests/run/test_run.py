"""`fit` from Python: results, records, and models of one's own."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from records import change_header, killed_after, make_old
from scool import DPSGD, LocalOnly, LocalSGD, SCooL, fit
from scool.display.records import read_run
from scool.errors import ConfigError, ModelError, RankLost, RunError
from scool.graph.edges import as_matrix
from scool.priors import SBM
from scool.recording.checkpoint import save_checkpoint
from scool.recording.disk import LOCK, is_written, writing
from scool.run import prepare
from scool.run.identity import source_commit
from scool.run.loop import Interrupted
from scool.run.progress import Progress
from toys import (
    assert_trees_equal,
    classification,
    overflowing,
    regression,
    start,
    tanh_net,
)

SGD = LocalSGD(lr=0.1, epochs=2, batch_size=4)
METHOD = SCooL(prior=SBM(num_blocks=2), sgd=SGD)


def test_a_result_holds_models_scores_graphs_and_costs(tmp_path: Path) -> None:
    federation = classification()
    result = fit(federation, "mlp", METHOD, rounds=3, device="cpu", out=tmp_path / "run")
    assert result.score.shape == (4,) and len(result.history) == 3 and len(result.graphs) == 3
    assert len(result.elbo) == 3
    assert result.bytes_sent == sum(row["bytes"] for row in result.history) > 0
    x, y = federation.test.x[federation.test.index[1]], federation.test.y[1]
    right = (result.predict(1, x) == y).double().mean()
    assert abs(100 * float(right) - float(result.score[1])) < 1e-9
    for array in (x.numpy(), x.double().numpy()):
        assert torch.equal(result.predict(1, array), result.predict(1, x))
    for client in (-1, 4, 99):
        for refuse in (lambda n=client: result.model(n), lambda n=client: result.predict(n, x)):
            with pytest.raises(ConfigError, match=f"client = {client} .* from 0 to 3"):
                refuse()
    keys = {"method", "accuracy_mean", "accuracy_std", "rounds", "seconds", "graph_l1"}
    assert keys | {"graph_ari", "bytes_sent", "messages", "run_dir"} <= result.summary().keys()
    json.dumps(result.summary(), allow_nan=False)
    files = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert files == [
        "checkpoint-000003.safetensors",
        "clients.safetensors",
        "graphs",
        "manifest.json",
        "metrics.jsonl",
        "run.json",
        "timing.jsonl",
    ]
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert header["status"] == "finished" and header["rounds_done"] == 3
    assert {"versions", "hardware", "seed", "command", "config"} <= header.keys()
    assert header["versions"]["commit"] == source_commit()


def test_fit_strings_the_rounds_together() -> None:
    federation = classification()
    module = tanh_net()
    result = fit(federation, module, METHOD, rounds=3, seed=3, device="cpu")
    engine, theta0 = start(federation, module)
    state = METHOD.init(engine, theta0)
    for t in range(3):
        state, info = METHOD.step(engine, state, t)
        assert torch.equal(result.graphs[t], as_matrix(info["graph"]).float())
    assert_trees_equal(result.theta, state.theta)


def test_who_was_left_out_stays_out_after_a_resume(tmp_path: Path) -> None:
    federation = overflowing(regression(), 2)
    options: dict[str, Any] = {"device": "cpu", "checkpoint_every": 1}
    for name in "ab":
        fit(federation, "mlp", METHOD, rounds=4, out=tmp_path / name, **options)
    last = json.loads((tmp_path / "a" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["quarantined"] == {"2": "loss or model in round 0, step 0"}
    killed_after(tmp_path / "b", 3)
    fit(federation, "mlp", METHOD, rounds=4, out=tmp_path / "b", resume=True, **options)
    for file in ("metrics.jsonl", "checkpoint-000004.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    """Rounds recorded twice would be paid twice in the result."""
    fed, method = classification(), LocalOnly(sgd=SGD)
    out = tmp_path / "run"
    fit(fed, "linear", method, rounds=2, out=out, device="cpu")
    before = (out / "metrics.jsonl").read_bytes()
    with writing(out):
        assert is_written(out)
        with pytest.raises(RunError, match="another process"):
            fit(fed, "linear", method, rounds=4, out=out, resume=True, device="cpu")
    assert (out / "metrics.jsonl").read_bytes() == before
    assert not is_written(out) and not (out / LOCK).exists()
    again = fit(fed, "linear", method, rounds=4, out=out, resume=True, device="cpu")
    assert len(again.history) == 4 and not (out / LOCK).exists()
    (tmp_path / "new").mkdir()
    with writing(tmp_path / "new"), pytest.raises(RunError, match="another process"):
        fit(fed, "linear", method, rounds=1, out=tmp_path / "new", device="cpu")


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(hash(name) % 1000)  # the global generator has no say
        fit(classification(), "mlp", METHOD, rounds=2, seed=seed, device="cpu", out=tmp_path / name)
    a, b, c = ((tmp_path / n / "metrics.jsonl").read_bytes() for n in "abc")
    assert a == b != c


def test_evaluation_every_few_rounds_changes_nothing_else() -> None:
    often, seldom = (
        fit(classification(), "mlp", METHOD, rounds=5, device="cpu", eval_every=n) for n in (1, 3)
    )
    assert torch.equal(often.score, seldom.score)
    evaluated = [row["round"] for row in seldom.history if "accuracy_mean" in row]
    assert evaluated == [2, 4]  # every third, and the last always


def test_a_module_of_ones_own_and_a_function_that_builds_one() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3))

    module = build()
    first = {n: p.detach().clone() for n, p in module.named_parameters()}
    result = fit(classification(), module, LocalOnly(sgd=SGD), rounds=2, device="cpu")
    assert all(torch.equal(p, first[n]) for n, p in module.named_parameters())  # not touched
    again = fit(classification(), module, LocalOnly(sgd=SGD), rounds=2, device="cpu")
    assert torch.equal(result.score, again.score)
    assert fit(classification(), build, METHOD, rounds=1, device="cpu").score.shape == (4,)
    batch_norm = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ModelError, match="GroupNorm"):
        fit(classification(), batch_norm, METHOD, rounds=1, device="cpu")
    with pytest.raises(ConfigError, match="did you mean 'mlp'"):
        fit(classification(), "mpl", METHOD, rounds=1, device="cpu")


def test_dropout_trains_and_resumes_to_the_bit(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 3))

    options: dict[str, Any] = {"device": "cpu", "checkpoint_every": 1}
    whole = fit(classification(), build, METHOD, rounds=3, **options)
    fit(classification(), build, METHOD, rounds=2, out=tmp_path / "r", **options)
    parts = fit(
        classification(), build, METHOD, rounds=3, out=tmp_path / "r", resume=True, **options
    )
    assert all(torch.equal(parts.theta[n], t) for n, t in whole.theta.items())


def test_long_runs_keep_the_graphs_of_early_and_evaluated_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scool.run.progress.LONG", 30)
    options: dict[str, Any] = {"device": "cpu", "out": tmp_path / "run", "eval_every": 25}
    result = fit(classification(), "linear", LocalOnly(sgd=SGD), rounds=50, **options)
    assert list(result.graphs) == [*range(20), 24, 49] and len(result.history) == 50
    files = sorted(int(file.stem) for file in (tmp_path / "run" / "graphs").iterdir())
    assert files == list(result.graphs)


def test_a_run_from_before_an_option_existed_can_go_on(tmp_path: Path) -> None:
    algorithm = SCooL(sgd=LocalSGD(lr=0.1, epochs=1))
    fit(classification(), "linear", algorithm, rounds=1, device="cpu", out=tmp_path / "run")
    identity = json.loads((tmp_path / "run" / "run.json").read_text())["identity"]
    del identity["algorithm"]["aggregate"]
    del identity["algorithm"]["draw"]["cross_noise"]
    change_header(tmp_path / "run", identity=identity)
    options = {"rounds": 2, "device": "cpu", "out": tmp_path / "run", "resume": True}
    assert fit(classification(), "linear", algorithm, **options).rounds == 2
    with pytest.raises(RunError, match="another algorithm"):
        other = SCooL(sgd=LocalSGD(lr=0.2, epochs=1))
        fit(classification(), "linear", other, **options)


@pytest.mark.parametrize("slow_momentum", [0.0, 0.5])
def test_a_run_goes_on_without_an_option_that_is_gone_if_it_did_nothing(
    tmp_path: Path, slow_momentum: float
) -> None:
    options: dict[str, Any] = {"device": "cpu", "out": tmp_path, "slow_momentum": slow_momentum}
    fit(classification(), "linear", SCooL(sgd=SGD), rounds=1, **options)
    identity = json.loads((tmp_path / "run.json").read_text())["identity"]
    identity["algorithm"]["cross_when"] = "before"
    change_header(tmp_path, identity=identity)
    with pytest.raises(RunError, match="another algorithm"):
        fit(classification(), "linear", SCooL(sgd=SGD), rounds=2, resume=True, **options)
    identity["algorithm"] |= {"cross_when": "after", "validation": 0.0}
    identity["between_rounds"]["personal_pull"] = 1.0
    change_header(tmp_path, identity=identity)
    with pytest.raises(RunError, match="another between_rounds"):
        fit(classification(), "linear", SCooL(sgd=SGD), rounds=2, resume=True, **options)
    identity["between_rounds"]["personal_pull"] = 0.0
    change_header(tmp_path, identity=identity)
    assert (
        fit(classification(), "linear", SCooL(sgd=SGD), rounds=2, resume=True, **options).rounds
        == 2
    )


def test_records_are_not_overwritten_and_absent_ones_not_resumed(tmp_path: Path) -> None:
    fit(classification(), "mlp", METHOD, rounds=1, device="cpu", out=tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match="exists already"):
        fit(classification(), "mlp", METHOD, rounds=1, device="cpu", out=tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    with pytest.raises(RunError, match="not a run folder"):
        fit(classification(), "mlp", METHOD, device="cpu", out=tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
    with pytest.raises(RunError, match="another algorithm"):
        other = SCooL(prior=SBM(num_blocks=3), sgd=SGD)
        out = tmp_path / "run"
        fit(classification(), "mlp", other, rounds=2, device="cpu", out=out, resume=True)


def test_recorders_watch() -> None:
    seen: list[Any] = []

    class Watcher:
        def start(self, header: Any, first_round: int) -> None:
            seen.append(("start", header["method"], first_round))

        def round(self, row: Any, info: Any) -> None:
            seen.append(row["round"])

        def end(self, result: Any) -> None:
            seen.append("end")

    fit(classification(), "mlp", LocalOnly(sgd=SGD), rounds=2, device="cpu", recorders=[Watcher()])
    assert seen == [("start", "LocalOnly", 0), 0, 1, "end"]


def test_a_run_is_continued_only_with_what_it_was_started_with(tmp_path: Path) -> None:
    federation, out = classification(), tmp_path / "run"
    fit(federation, "mlp", METHOD, rounds=2, device="cpu", out=out, seed=4)
    again = {"device": "cpu", "out": out, "resume": True}
    with pytest.raises(RunError, match="another seed"):
        fit(federation, "mlp", METHOD, rounds=2, seed=5, **again)
    with pytest.raises(RunError, match="another algorithm"):
        fit(federation, "mlp", LocalOnly(sgd=SGD), rounds=2, seed=4, **again)
    with pytest.raises(RunError, match="another data or model"):
        fit(federation, "linear", METHOD, rounds=2, seed=4, **again)
    with pytest.raises(RunError, match="rounds = 1 is not possible"):
        fit(federation, "mlp", METHOD, rounds=1, seed=4, **again)
    longer = fit(federation, "mlp", METHOD, rounds=3, seed=4, **again)
    assert longer.rounds == len(longer.history) == 3
    header = json.loads((out / "run.json").read_text())
    assert header["rounds"] == header["rounds_done"] == 3
    assert header["identity"]["algorithm"]["name"] == type(METHOD).__name__


def test_things_that_are_no_prior_or_no_federation_are_named() -> None:
    for wrong in (SBM, "sbm"):
        with pytest.raises(ConfigError, match=r"prior = .* give a prior, e\.g\. scool\.SBM"):
            SCooL(prior=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"federation = \[1, 2\]"):
        fit([1, 2], "mlp", METHOD)  # type: ignore[arg-type]
    result = fit(classification(), "linear", LocalOnly(sgd=SGD), rounds=1, device="cpu")
    with pytest.raises(ConfigError, match=r"x = 'inputs of shape \(2, 99\)' is not possible"):
        result.predict(0, torch.zeros(2, 99))


@pytest.mark.parametrize(
    ("every", "words"),
    [
        (0, "models were not kept"),
        (1, r"checkpoint-000002\S+ is missing.*checkpoint-000001\S+ is missing"),
    ],
)
@pytest.mark.parametrize("is_old", [False, True])
def test_a_record_without_models_is_not_begun_anew(
    tmp_path: Path, every: int, words: str, is_old: bool
) -> None:
    federation = classification()
    out = tmp_path / "run"
    options: dict[str, Any] = {"device": "cpu", "out": out, "checkpoint_every": every}
    fit(federation, "linear", LocalOnly(), rounds=2, **options)
    for file in out.glob("checkpoint-*"):
        file.unlink()
    if is_old:  # nothing says that there were any
        make_old(out)
        words = "models were not kept"
    before = {f: f.read_bytes() for f in out.rglob("*") if f.is_file()}
    with pytest.raises(RunError, match=words):
        fit(federation, "linear", LocalOnly(), rounds=4, resume=True, **options)
    assert {f: f.read_bytes() for f in out.rglob("*") if f.is_file()} == before


def test_a_run_from_before_an_option_had_its_default(tmp_path: Path) -> None:
    """What the recipe sets today is not what the run was started with."""
    options: dict[str, Any] = {"rounds": 1, "device": "cpu", "out": tmp_path / "r"}
    fit(classification(), "linear", DPSGD(sgd=SGD), **options)
    identity = json.loads((tmp_path / "r" / "run.json").read_text())["identity"]
    del identity["algorithm"]["shuffle"]
    change_header(tmp_path / "r", identity=identity)
    with pytest.raises(RunError, match="was made with another algorithm"):
        fit(classification(), "linear", DPSGD(sgd=SGD, shuffle=True), resume=True, **options)
    fit(classification(), "linear", DPSGD(sgd=SGD), resume=True, **options)


def test_a_run_that_an_error_ended_says_so(tmp_path: Path) -> None:
    class Tired:
        def start(self, header: Any, first_round: int) -> None: ...
        def end(self, result: Any) -> None: ...
        def round(self, row: Any, info: Any) -> None:
            if row["round"] == 1:
                raise ValueError("enough")

    options: dict[str, Any] = {"rounds": 3, "device": "cpu", "checkpoint_every": 1}
    whole = fit(classification(), "linear", METHOD, **options)
    with pytest.raises(ValueError, match="enough"):
        fit(classification(), "linear", METHOD, out=tmp_path, recorders=[Tired()], **options)
    record = read_run(tmp_path)
    assert record.status == "failed" and record.header["reason"] == "ValueError('enough')"
    assert any("failed: 2 of 3 rounds are recorded (ValueError" in p for p in record.problems)
    again = fit(classification(), "linear", METHOD, out=tmp_path, resume=True, **options)
    assert_trees_equal(again.theta, whole.theta)
    assert read_run(tmp_path).status == "finished"


@pytest.mark.parametrize(
    ("stop_in", "words"), [(0, r"the same `scool\.fit\("), (1, "the state is saved")]
)
def test_a_stop_says_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_in: int, words: str
) -> None:
    plain = LocalOnly.step

    def step(self: LocalOnly, engine: Any, state: Any, round: int) -> Any:
        if round == stop_in:
            raise KeyboardInterrupt
        return plain(self, engine, state, round)

    monkeypatch.setattr(LocalOnly, "step", step)
    with pytest.raises(Interrupted, match=f"after round {stop_in} of 3 of LocalOnly; {words}"):
        fit(classification(), "linear", LocalOnly(), rounds=3, out=tmp_path / "run")
    assert bool(list(tmp_path.glob("run/checkpoint-*"))) == bool(stop_in)


@pytest.mark.parametrize("lost_in", [2, 3])  # in a round, and when all rounds are done
def test_a_lost_rank_does_not_hide_a_checkpoint_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_in: int
) -> None:
    plain, written = LocalOnly.step, save_checkpoint

    def slow(*arguments: Any) -> str:
        time.sleep(0.2)
        return written(*arguments)

    def step(self: LocalOnly, engine: Any, state: Any, round: int) -> Any:
        if round == lost_in:
            raise RankLost("another rank is gone")
        return plain(self, engine, state, round)

    def seal(self: Any, **header: Any) -> None:
        raise RankLost("another rank is gone")

    monkeypatch.setattr("scool.recording.writer.save_checkpoint", slow)
    monkeypatch.setattr(LocalOnly, "step", step)
    monkeypatch.setattr(Progress, "seal", seal)
    options: dict[str, Any] = {"rounds": 3, "checkpoint_every": 1, "out": tmp_path / "run"}
    with pytest.raises(RankLost, match=f"gone; round {lost_in} is saved, the same `scool.fit"):
        fit(classification(), "linear", LocalOnly(), **options)
    assert (tmp_path / "run" / f"checkpoint-{lost_in:06d}.safetensors").exists()


def test_rounds_that_another_version_made_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go(commit: str, rounds: int) -> dict[str, Any]:
        monkeypatch.setattr(prepare, "source_commit", lambda: commit)
        again = (tmp_path / "run.json").exists()
        fit(classification(), "linear", METHOD, rounds=rounds, out=tmp_path, resume=again)
        return json.loads((tmp_path / "run.json").read_text())

    assert go("a", 1)["versions"]["commit"] == "a" and "resumed" not in go("a", 2)
    go("b", 3)
    header = go("b", 4)
    found = [(told["after_round"], told["versions"]["commit"]) for told in header["resumed"]]
    assert header["versions"]["commit"] == "a" and found == [(2, "b")]
    found = [told["versions"]["commit"] for told in go("a", 5)["resumed"]]
    assert found == ["b", "a"]
