"""Damaged folders: every command is right, says what is wrong, or was not concerned."""

import random
from pathlib import Path

import pytest

from recording.fuzz import RUNNING_FILES, Case, Fuzz, judge_running, run_cases, run_running
from recording.harms import HARMS
from scool.recording import lines
from scool.recording.lines import open_line


@pytest.mark.parametrize("seed", [11, 12])
def test_no_damage_changes_output_without_a_word(seed: int, tmp_path: Path) -> None:
    cases = list(run_cases(tmp_path, 50, seed))
    assert [case for case in cases if case.outcome == "wrong"] == []
    assert {case.outcome for case in cases} == {"right", "said"}


def test_damage_while_a_run_writes_is_repaired_or_named(tmp_path: Path) -> None:
    cases = list(run_running(tmp_path, 12, seed=13))
    assert [case for case in cases if case.outcome == "wrong"] == []


@pytest.mark.parametrize("file", RUNNING_FILES)
def test_a_file_deleted_under_a_run_is_missed(file: str, tmp_path: Path) -> None:
    assert judge_running(tmp_path, file, "delete", 2, 0).outcome != "wrong"


def test_the_judge_can_say_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without checksums a changed digit of a score would pass."""
    fuzz, case = Fuzz(tmp_path), Case("a", "metrics.jsonl", "another score", "report")
    monkeypatch.setitem(HARMS, "another score", _another_score)
    assert fuzz.judge(case, random.Random(0)).outcome == "said"
    monkeypatch.setattr(lines, "open_line", lambda line, before: open_line(line, None))
    assert fuzz.judge(case, random.Random(0)).outcome == "wrong"


def _another_score(path: Path, donor: Path, rng: object) -> None:
    text = path.read_text()
    place = text.index('"scores": [') + len('"scores": [')
    digit = str((int(text[place]) + 1) % 10)
    path.write_text(text[:place] + digit + text[place + 1 :])
