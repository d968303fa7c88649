"""What the recommended method chose for each owner, told beside what came of it."""

from typing import Any

import pytest

from commands import code_of
from scool.contest.kinds import kinds_of
from scool.contest.numbers import rows_of
from scool.contest.one_run import line_of
from scool.contest.plan import read_study
from scool.contest.running import Lines, candidates, finals
from scool.contest.tables import kinds_table, parts_of

OWNERS = 10


def known_lines(study: Any, scores: dict[str, list[float]], **more: Any) -> Lines:
    """The same scores with every seed; `more` is in the lines of `scool`."""
    (setting,), known = study.settings, dict[str, Any]()
    for entry in study.entries:
        for task in candidates(setting, entry):
            known[task.key] = {"score": 1.0, "problem": None}
            for final in finals(setting, entry, task.options):
                own = scores[entry.name]
                line = {"seed": final.seed, "score": 1.0, "problem": None, "scores": own}
                known[final.key] = line | (more if entry.name == "scool" else {})
    return Lines(known)


def test_owners_who_learn_alone_are_told_beside_the_best_rival() -> None:
    names = "local,fedavg,fedrep,scool,scool-no-graph"
    study = read_study("natural", "wisdm", names).changed(seeds=2, candidates=1)
    gains = [-1.0, 0.0, *(float(i) for i in range(1, 9))]
    scores = {
        "local": [50.0] * OWNERS,
        "scool": [50.0 + gain for gain in gains],
        "fedrep": [40.0, 46.0, *[52.0] * 8],
        "fedavg": [30.0] * OWNERS,
        "scool-no-graph": [90.0] * OWNERS,  # a control is no rival
    }
    alone = [1.0, 0.8, *[0.25] * 8]
    tracks = {"alone": alone, "body": [1 - weight for weight in alone]}
    body = [51.0 + i for i in range(OWNERS)]
    seen = {"alone": [50.0] * OWNERS, "body": body}
    lines = known_lines(study, scores, tracks=tracks, held_out=seen)
    (row,) = kinds_of(study, lines, rows_of(study, lines))
    assert row["weights"]["alone"] == pytest.approx(0.38)
    assert (row["alone"], row["owners"], row["rival"]) == (2, 10, "FedRep")
    assert (row["gain_alone"], row["gain_others"]) == (-0.5, 4.5)
    assert (row["rival_alone"], row["rival_others"]) == (-7.0, 2.0)
    foreseen = [owner["foreseen"] for owner in row["each"]]
    assert foreseen == pytest.approx([0.0, 0.2 * 2, *(0.75 * i for i in range(3, 11))])
    assert row["rank_correlation"] == pytest.approx(1.0)
    text = kinds_table([row])
    assert "| 38 % | 62 % | 2 of 10 | -0.50 | -7.00 (FedRep) | +4.50 | +2.00 (FedRep) |" in text
    every = rows_of(study, lines)
    assert "What `scool` chose" in parts_of(study, every, [], [row])["owners"]
    assert not parts_of(study, every, [])["owners"]


def test_owners_that_were_never_judged_have_nothing_foreseen() -> None:
    study = read_study("natural", "wisdm", "local,scool").changed(seeds=2, candidates=1)
    scores = {"local": [50.0] * 2, "scool": [51.0, 52.0]}
    seen = {"alone": [50.0, None], "body": [52.0, None]}
    tracks = {"alone": [0.5, 0.5], "body": [0.5, 0.5]}
    lines = known_lines(study, scores, tracks=tracks, held_out=seen)
    (row,) = kinds_of(study, lines, rows_of(study, lines))
    assert [owner["foreseen"] for owner in row["each"]] == [1.0, None]
    assert row["rank_correlation"] is None and row["rival"] is None
    assert "| 0 of 2 | – | – | +1.50 | – | – |" in kinds_table([row])


def test_a_run_says_what_was_chosen_for_each_owner() -> None:
    study = read_study("natural", "heart-disease", "scool").changed(seeds=1, rounds=2)
    (setting,), (entry,) = study.settings, study.entries
    task = finals(setting, entry, candidates(setting, entry)[0].options)[0]
    line = line_of(task, None)
    assert set(line["tracks"]) == set(line["held_out"])
    for i in range(4):
        assert sum(weights[i] for weights in line["tracks"].values()) == pytest.approx(1, abs=1e-3)


def test_the_tables_of_a_contest_have_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "reproduce natural --datasets heart-disease --methods local,scool --rounds 1 --quiet"
    small = ["--candidates", "1", "--seeds", "2", "--device", "cpu", "--out", str(tmp_path)]
    assert code_of(monkeypatch, *words.split(), *small) == 0
    assert "### What `scool` chose for the owners" in capsys.readouterr().out
    assert '"kinds": [\n' in (tmp_path / "natural.json").read_text()
