"""A contest from end to end on the federation that comes with the package."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

import scool
from commands import code_of
from scool.contest.field import masked_accuracy, may_answer_all, poisoned
from scool.contest.numbers import overall_of, rows_of
from scool.contest.one_run import federation_of, line_of
from scool.contest.plan import STUDIES, read_study
from scool.contest.running import Lines, candidates, finals
from scool.contest.tables import setting_table

WORDS = "reproduce natural --datasets heart-disease --methods local,fedavg --rounds 1 --quiet"
SMALL = [*WORDS.split(), "--candidates", "2", "--seeds", "2", "--device", "cpu"]


def test_a_contest_runs_once_and_goes_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin natural -->old<!-- end natural -->\nafter\n")
    parts = tmp_path / "parts.md"
    parts.write_text("<!-- begin natural settings -->old<!-- end natural settings -->\n")
    command = [*SMALL, "--out", str(tmp_path / "out")]
    assert code_of(monkeypatch, *command, "--page", str(page)) == 0
    log = tmp_path / "out" / "runs.jsonl"
    whole = log.read_text()
    lines = [json.loads(line) for line in whole.splitlines()]
    stages = [line["stage"] for line in lines]
    assert stages.count("tune") == 2 * 2 * 2 and stages.count("test") == 2 * 2
    assert (tmp_path / "out" / "natural.svg").read_bytes().startswith(b"<?xml")
    assert "old" not in page.read_text() and "### Heart disease" in page.read_text()
    content = json.loads((tmp_path / "out" / "natural.json").read_text())
    table = {row["method"]: row for row in content["rows"]}
    for name, row in table.items():
        mine = [line for line in lines if line["method"] == name]
        final = [line["score"] for line in mine if line["stage"] == "test"]
        assert row["mean"] == pytest.approx(sum(final) / 2)
        means: dict[str, float] = {}
        for line in mine:
            if line["stage"] == "tune":
                key = json.dumps(line["options"])
                means[key] = means.get(key, 0.0) + line["score"] / 2
        assert row["options"] == json.loads(max(means, key=means.__getitem__))
        assert row["validation"] == pytest.approx(max(means.values()))

    log.write_text(whole[:-20])  # a kill
    capsys.readouterr()
    assert code_of(monkeypatch, *command, "--json", "--page", str(parts)) == 0
    assert "old" not in parts.read_text() and "### Heart disease" in parts.read_text()
    assert json.loads(capsys.readouterr().out)["rows"][0]["mean"] == content["rows"][0]["mean"]
    again = [json.loads(line) for line in log.read_text().splitlines()]
    for line in (*lines, *again):
        line.pop("seconds")
        line.pop("seal")
    assert again == lines

    assert code_of(monkeypatch, *command, "--methods", "fedavg", "--forget") == 0
    assert "6 runs are forgotten" in capsys.readouterr().out
    assert code_of(monkeypatch, *command, "--list") == 0
    assert "6 runs to do: about 0." in capsys.readouterr().out


def test_a_run_that_fails_is_told_and_tried_again_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("no such thing")

    with monkeypatch.context() as patch:
        patch.setattr("scool.algorithms.fedavg.FedAvg.step", broken)
        assert code_of(monkeypatch, *SMALL, "--out", str(tmp_path)) == 1
    said = capsys.readouterr()
    assert "| alone |" in said.out and "FedAvg" not in said.out
    assert said.err.count("heart-disease fedavg tune seed=0 failed: TypeError: no") == 2
    assert code_of(monkeypatch, *SMALL, "--out", str(tmp_path)) == 0
    assert "FedAvg" in capsys.readouterr().out


def test_stage_one_sees_no_test_sample_and_nobody_what_judges_it() -> None:
    (setting,) = read_study("natural", "heart-disease").settings
    tuned, tested = (federation_of(setting, None, stage, 0) for stage in ("tune", "test"))
    assert not tuned.val.mask.any() and not tested.val.mask.any()
    for client in (1, 2, 3):  # in the first hospital two patients are alike
        own, final = tuned.client(client), tested.client(client)
        rows = {tuple(x.tolist()) for x in own.test.x}
        assert not rows & {tuple(x.tolist()) for x in own.train.x}
        assert len(own.test.x) + len(own.train.x) == len(final.train.x)


@pytest.mark.parametrize("name", STUDIES)
def test_every_method_has_as_many_candidates_in_every_setting(name: str) -> None:
    study = read_study(name)
    assert len(study.settings) >= 6 and len(study.entries) >= 24
    for setting in study.settings:
        for entry in study.entries:
            tasks = candidates(setting, entry)
            if entry.name == "scool-untuned":
                assert len(tasks) == setting.tuning_seeds
                continue
            assert len(tasks) == setting.candidates * setting.tuning_seeds, entry.name
            assert len({task.key for task in tasks}) == len(tasks)


def test_owners_who_lose_are_counted_with_and_without_noise() -> None:
    study = read_study("natural", "wisdm", "local,fedavg,dpsgd").changed(seeds=3, candidates=1)
    (setting,), known = study.settings, {}
    scores = {
        "local": [[80.0, 70.0, 60.0, 50.0]] * 3,
        "fedavg": [[82.0, 60.0, 50.0, 51.0], [82.0, 61.0, 70.0, 51.0], [82.0, 60.0, 57.0, 51.0]],
        "dpsgd": [[90.0, 90.0, 90.0, 90.0]] * 3,
    }
    for entry in study.entries:
        for task in candidates(setting, entry):
            known[task.key] = {"score": 1.0, "problem": None}
            for final in finals(setting, entry, task.options):
                own = scores[entry.name][final.seed]
                mean = sum(own) / 4
                known[final.key] = {
                    "seed": final.seed,
                    "score": mean,
                    "problem": None,
                    "scores": own,
                    "owners": ["Bern", "Ulm", "Lyon", "Graz"],
                }
    rows = {row["method"]: row for row in rows_of(study, Lines(known))}
    row = rows["fedavg"]
    assert row["worse"] == 0.5  # the second and the third
    assert row["clearly_worse"] == 0.25  # the third is as much above as below, by the seed
    assert (row["clearly_better"], row["owners_clearly_worse"]) == (0.5, [1])
    assert row["owners_worse"] == ["Ulm", "Lyon"]
    gains = [2.0, -29 / 3, -1.0, 1.0]  # of the owners, mean over the seeds
    ends = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    mine = (row["gain_clients_low"], row["gain_clients_high"])
    assert mine == pytest.approx((ends.low, ends.high))
    text = setting_table(setting, list(rows.values()))
    assert "| 50 %: Ulm, Lyon |" in text and f"| {ends.low:+.2f} to {ends.high:+.2f} |" in text
    assert row["worst_tenth"] == pytest.approx((50 + 51 + 51) / 3)
    assert [rows[name]["rank"] for name in ("dpsgd", "local", "fedavg")] == [1, 2, 3]
    assert rows["local"]["gain"] is None and row["gain"] < 0 < rows["dpsgd"]["gain"]
    assert overall_of(study, list(rows.values()))[0]["method"] == "dpsgd"
    lower = replace(study, settings=(replace(setting, metric="log_loss"),))
    known = {
        task.key: known[same.key]
        for one, other in zip(lower.settings, study.settings, strict=True)
        for entry in study.entries
        for stage in (candidates, lambda s, e: finals(s, e, candidates(s, e)[0].options))
        for task, same in zip(stage(one, entry), stage(other, entry), strict=True)
    }
    rows = {row["method"]: row for row in rows_of(lower, Lines(known))}
    assert [rows[name]["rank"] for name in ("dpsgd", "local", "fedavg")] == [3, 2, 1]
    assert rows["fedavg"]["mean"] == row["mean"] and rows["fedavg"]["gain"] == -row["gain"]
    assert rows["fedavg"]["worst_tenth"] == 82


def test_a_log_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.jsonl").write_text('{"round": 1}\n{"round": 2}\n')
    assert code_of(monkeypatch, *SMALL, "--out", str(tmp_path), "--only-tables") == 2
    assert "runs.jsonl is damaged" in capsys.readouterr().err
    assert code_of(monkeypatch, "reproduce", "natural", "--datasets", "wisdom") == 2
    assert "wisdm" in capsys.readouterr().err


def test_poisoned_clients_train_on_random_labels_and_are_not_judged() -> None:
    federation = scool.digits(num_clients=10, groups=2, samples_per_client=40, seed=0)
    found = poisoned(federation, 0.3, seed=1)
    is_same = (found.train.y == federation.train.y).all(dim=1)
    assert int(is_same.sum()) == 7
    assert found.test.mask.any(dim=1).tolist() == is_same.tolist()
    assert bool(may_answer_all(found).classes.all())


def test_no_model_answers_a_class_that_nobody_has() -> None:
    """As where few samples are taken of many classes: there is no answer to learn."""
    federation = scool.digits(num_clients=4, groups=1, seed=0)
    held = federation.classes.clone()
    held[:, 3] = False
    parts = {
        name: part._replace(mask=part.mask & (part.y != 3))
        for name in ("train", "val", "test")
        for part in [getattr(federation, name)]
    }
    found = may_answer_all(replace(federation, classes=held, **parts))
    assert found.classes.all(dim=0).tolist() == [label != 3 for label in range(10)]


def test_runs_of_another_length_stand_beside_no_published_numbers() -> None:
    (setting,) = read_study("field", "pfllib-cifar100-dirichlet").changed(rounds=2000).settings
    assert setting.published and setting.source and not setting.about
    (setting,) = read_study("field", "pfllib-cifar100-dirichlet").changed(rounds=200).settings
    assert not setting.published and not setting.source
    assert setting.about == "200 rounds, the setting has 2,000."


def test_a_setting_of_the_field_tells_best_round_masked_and_published() -> None:
    (setting,) = read_study("field", "pfedgraph-cifar10-dirichlet").settings
    data = {"dataset": "digits", "partition": "pathological", "clients": 4, "classes_per_client": 3}
    setting = replace(setting, data=data, model={}, rounds=3, options={"steps": 2}, device="cpu")
    study = replace(read_study("field", methods="local,ditto"), settings=(setting,))
    study = study.changed(seeds=1, candidates=1)
    (setting,), known = study.settings, {}
    for entry in study.entries:
        (task,) = candidates(setting, entry)
        for one in (task, *finals(setting, entry, task.options)):
            known[one.key] = line_of(one, None)
    rows = {row["method"]: row for row in rows_of(study, Lines(known))}
    row = rows["ditto"]
    assert row["best"] >= row["mean"] and row["masked"] >= row["mean"]
    assert row["published"] == 83.78 and rows["local"]["published"] is None
    text = setting_table(setting, list(rows.values()))
    assert f"| 83.78 | {row['mean'] - 83.78:+.2f} |" in text and "beyond noise" not in text


def test_a_model_is_right_among_the_classes_that_it_is_tested_on() -> None:
    outputs = torch.tensor([[0.0, 9.0, 1.0], [5.0, 9.0, 1.0]])
    assert float(masked_accuracy(outputs, torch.tensor([2, 2]))) == 100
    assert float(masked_accuracy(outputs, torch.tensor([2, 0]))) == 100
    assert float(masked_accuracy(outputs, torch.tensor([2, 1]))) == 50
