"""The benchmark of federations that `scool` has not seen runs, and judges as it says."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("unseen")


def test_a_run_is_done_once_and_a_table_made(
    unseen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, table = tmp_path / "log.jsonl", tmp_path / "table.csv"
    words = ["unseen.py", str(log), "--federations", "two_opponents", "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--methods", "local,fedavg"])
    unseen.main()
    written = log.read_text()
    unseen.main()  # all is done
    assert log.read_text() == written and len(written.splitlines()) == 2
    monkeypatch.setattr(sys, "argv", [*words, "--table", "--csv", str(table)])
    unseen.main()
    assert "| federation |" in capsys.readouterr().out
    assert table.read_text().startswith("federation,method,failed,seeds,score,gain")


def test_validation_samples_of_real_owners_are_no_test_samples(unseen: Any) -> None:
    case = unseen.FEDERATIONS["iris_of_two"](0)
    tuned, tested = (unseen.federation_of(case, 0, stage) for stage in ("tune", "test"))
    seen = {tuple(row) for row in tuned.test.x[tuned.test.index[tuned.test.mask]].tolist()}
    held = {tuple(row) for row in tested.train.x[tested.train.index[tested.train.mask]].tolist()}
    assert seen and seen <= held


def test_gains_are_paired_with_learning_alone(unseen: Any) -> None:
    def line(method: str, seed: int, scores: list[float]) -> dict[str, Any]:
        return {"federation": "strangers", "method": method, "seed": seed, "scores": scores}

    lines = [line("local", s, [50.0, 60.0]) | {"ratio": 1.0} for s in (0, 1)]
    found = [line("scool", s, [55.0 + s, 58.0]) | {"ratio": 1.0} for s in (0, 1)]
    lines += [run | {"tracks": {"alone": [0.9, 0.1]}, "told": [True, False]} for run in found]
    rows = {row["method"]: row for row in unseen.rows_of(lines, "strangers")}
    ours = rows["scool"]
    assert ours["gain"] == pytest.approx(1.75) and ours["worse"] == 0.5 and ours["clearly"] == 0.5
    assert ours["told_alone"] == 1 and ours["of_others_gain"] == 0.0
    page = unseen.markdown([*rows.values()])
    assert (
        "| strangers | 2 | 2 | 55.0 | +1.8 |" in page and "| 50% | 50% | 1 | 0% | – | – |" in page
    )
